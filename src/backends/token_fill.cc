#include "backends/token_fill.h"

#include <cstring>

#include "base/device_status.h"
#include "base/row_access.h"
#include "base/run_copy.h"
#include "ops/draft_tree/draft_path.h"
#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#include "cuda/finite_check.h"
#endif

namespace linestate {
namespace {

void zero_fill(const TensorView& view, int dim, int64_t offset) {
  const int64_t bytes = dtype_bytes(view.dtype);
  if (dim + 1 == view.rank && view.stride[dim] == 1) {
    std::memset(static_cast<char*>(view.data) + offset * bytes, 0,
                static_cast<size_t>(view.shape[dim] * bytes));
    return;
  }
  for (int64_t i = 0; i < view.shape[dim]; ++i) {
    const int64_t at = offset + i * view.stride[dim];
    if (dim + 1 == view.rank) {
      std::memset(static_cast<char*>(view.data) + at * bytes, 0, static_cast<size_t>(bytes));
    } else {
      zero_fill(view, dim + 1, at);
    }
  }
}

#ifdef LINESTATE_CUDA
bool on_cuda(const ExecContext& context) { return context.device.type == DeviceType::kCuda; }

// [T, C] as [T, 1, C].
template <typename View>
View as_cube(const View& view) {
  if (view.rank != 2) return view;
  View cube = view;
  cube.rank = 3;
  cube.shape[2] = view.shape[1];
  cube.stride[2] = view.stride[1];
  cube.shape[1] = 1;
  cube.stride[1] = 0;
  return cube;
}
#endif

Status zero_tokens(const TensorView& out, const ExecContext& context) {
  if (out.num_elements() == 0) return {};
#ifdef LINESTATE_CUDA
  if (on_cuda(context)) return zero_tokens_cuda(as_cube(out), context);
#endif
  static_cast<void>(context);
  zero_fill(out, 0, 0);
  return {};
}

}  // namespace

Status zero_uncovered_tokens(const ForwardMetadata& metadata, const TensorView& out,
                             const ExecContext& context) {
  for (const Segment& segment : metadata.segments()) {
    if (segment.kind != RowKind::kPad) continue;
    LINESTATE_RETURN_IF_ERROR(
        zero_tokens(out.slice(0, segment.token_begin, segment.token_end), context));
  }
  return zero_tokens(out.slice(0, metadata.num_tokens(), metadata.token_capacity()), context);
}

Status zero_unreal_tokens(const Segment& segment, int64_t num_slots, const TensorView& out,
                          const ExecContext& context) {
#ifdef LINESTATE_CUDA
  if (on_cuda(context)) return zero_unreal_tokens_cuda(segment, num_slots, as_cube(out), context);
#endif
  static_cast<void>(context);
  int64_t end = 0;
  for (int64_t n = 0; n < segment.row_end - segment.row_begin; ++n) {
    const RowInfo row = read_prefill_row(segment.rows, n, num_slots);
    end = row.token_begin + row.tokens;
    zero_fill(out.slice(0, row.token_begin + row.valid, end), 0, 0);
    if (segment.kind != RowKind::kVerify || !segment.parent.defined()) continue;
    const DraftTree tree(segment.parent, row);
    for (int64_t i = 0; i < tree.nodes(); ++i) {
      const int64_t t = row.token_begin + i;
      if (tree.inert(i)) zero_fill(out.slice(0, t, t + 1), 0, 0);
    }
  }
  zero_fill(out.slice(0, end, out.shape[0]), 0, 0);
  return {};
}

Status copy_tokens(const ConstTensorView& x, const TensorView& to, const ExecContext& context) {
#ifdef LINESTATE_CUDA
  if (on_cuda(context)) return copy_tokens_cuda(x, to, context);
#endif
  static_cast<void>(context);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    copy_run({to.data, to.dtype, t * to.stride[0], to.stride[1]},
             {x.data, x.dtype, t * x.stride[0], x.stride[1]}, x.shape[1]);
  }
  return {};
}

Status check_finite_output(const ExecContext& context, const ConstTensorView& out) {
#ifdef LINESTATE_CUDA
  if (on_cuda(context)) {
    const CudaDeviceGuard guard(context.device.index);
    LINESTATE_RETURN_IF_ERROR(guard.status());
    return raise_if_not_finite_cuda(context, out);
  }
#endif
  raise_if_not_finite(context, out);
  return {};
}

}  // namespace linestate
