#include "backends/token_fill.h"
#include "base/int_math.h"
#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kBlocksPerRow = 8;  // long rows are shared

struct Output {
  DeviceView<3> view;
  int64_t rows;     // second dimension
  int64_t columns;  // third
};

Output output_of(const TensorView& out) {
  return {device_view<3>(out), out.shape[1], out.shape[2]};
}

__device__ void zero_token(const Output& out, int64_t t) {
  for (int64_t i = threadIdx.x; i < out.rows * out.columns; i += kThreads) {
    store_at(out.view, 0.0f, t, i / out.columns, i % out.columns);
  }
}

__global__ void zero_tokens_kernel(Output out, int64_t tokens) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) zero_token(out, t);
}

// A node that the root does not reach.
__device__ bool is_inert(const IndexView& parent, const DeviceRow& row, int64_t node) {
  while (node > 0) {
    const int64_t up = parent.at(row.token_begin + node);
    if (up < 0 || up >= node) return true;
    node = up;
  }
  return false;
}

// Row n = N is the tail behind the rows.
__global__ void zero_unreal_kernel(Output out, DeviceRows rows, IndexView parent) {
  const int64_t units = (rows.count + 1) * kBlocksPerRow;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t n = unit / kBlocksPerRow;
    const DeviceRow row = read_prefill_row(rows, n, nullptr);
    for (int64_t i = unit % kBlocksPerRow; i < row.tokens; i += kBlocksPerRow) {
      const int64_t t = row.token_begin + i;
      if (i >= row.valid || (parent.defined() && is_inert(parent, row, i))) zero_token(out, t);
    }
  }
}

template <typename Word>
__global__ void copy_tokens_kernel(const Word* x, int64_t x_token, int64_t x_channel, Word* to,
                                   int64_t to_token, int64_t to_channel, int64_t tokens,
                                   int64_t channels) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    for (int64_t c = threadIdx.x; c < channels; c += kThreads) {
      to[t * to_token + c * to_channel] = x[t * x_token + c * x_channel];
    }
  }
}

template <typename Word>
Status copy_words(const ConstTensorView& x, const TensorView& to, const ExecContext& context) {
  return launch("copy_tokens", copy_tokens_kernel<Word>, grid_of(x.shape[0]), kThreads, context,
                static_cast<const Word*>(x.data), x.stride[0], x.stride[1],
                static_cast<Word*>(to.data), to.stride[0], to.stride[1], x.shape[0], x.shape[1]);
}

}  // namespace

Status zero_tokens_cuda(const TensorView& out, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  return launch("zero_tokens", zero_tokens_kernel, grid_of(out.shape[0]), kThreads, context,
                output_of(out), out.shape[0]);
}

Status zero_unreal_tokens_cuda(const Segment& segment, int64_t num_slots, const TensorView& out,
                               const ExecContext& context) {
  if (out.shape[0] == 0) return {};
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const DeviceRows rows = device_rows(segment.rows, num_slots, out.shape[0]);
  const bool tree = segment.kind == RowKind::kVerify;
  const IndexView parent = tree ? index_view(segment.parent) : IndexView{};
  return launch("zero_unreal_tokens", zero_unreal_kernel, grid_of((rows.count + 1) * kBlocksPerRow),
                kThreads, context, output_of(out), rows, parent);
}

Status copy_tokens_cuda(const ConstTensorView& x, const TensorView& to,
                        const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  return dtype_bytes(x.dtype) == 2 ? copy_words<uint16_t>(x, to, context)
                                   : copy_words<uint32_t>(x, to, context);
}

}  // namespace linestate
