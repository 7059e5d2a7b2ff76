#include "base/message.h"
#include "cuda/finite_check.h"
#include "ops/kda/decode_step/kda_decode_step_device.cuh"
#include "ops/kda/decode_step/kda_decode_step_kernels.h"
#include "ops/kda/decode_step/kda_decode_step_parts.h"

namespace linestate {
namespace {

template <typename Block>
__device__ KdaStepTask step_task(const KdaStepDevice& p) {
  KdaStepTask task;
  uint32_t h;
  task.n = p.key_heads.divide(blockIdx.x / Block::kSplit, h);
  task.h = h;
  task.rank = static_cast<int>(blockIdx.x % Block::kSplit);
  task.first = task.rank * Block::kRows;
  const bool reports = threadIdx.x < 32 && task.rank == 0 && h == 0;
  task.row = read_decode_row(p.kda.rows, task.n, reports ? p.kda.status : nullptr);
  return task;
}

/// v of the lane's rows: loads, and behind them the convolution.
template <typename Block>
struct StepValues {
  ConvStepChannels<1> channel[Block::kPasses];
  uint32_t z;

  __device__ int64_t at(const KdaStepDevice& p, const KdaStepTask& task, int64_t j,
                        int pass) const {
    return step_value_channel(p, j, task.first + step_lane_row<Block>(pass));
  }
  __device__ void load_old(const KdaStepDevice& p, const KdaStepTask& task, int64_t j) {
#pragma unroll
    for (int pass = 0; pass < Block::kPasses; ++pass) {
      load_conv_weights(p.conv, at(p, task, j, pass), channel[pass]);
      load_conv_window(p.conv, task.row, at(p, task, j, pass), channel[pass]);
    }
  }
  __device__ void load_new(const KdaStepDevice& p, const KdaStepTask& task, int64_t j) {
#pragma unroll
    for (int pass = 0; pass < Block::kPasses; ++pass) {
      load_conv_x(p.conv, task.n, at(p, task, j, pass), channel[pass]);
    }
    const bool reads_z = p.z.data != nullptr && threadIdx.x < Block::kRows;
    const int64_t row = task.first + threadIdx.x;
    z = reads_z ? load_bits(p.z.data, p.z.dtype, p.z.offset(task.n, j, row)) : 0;
  }
};

/// One value head, when the token's q and k are on their way: `turn` counts the block's heads.
template <typename Block>
__device__ void step_value_head(const KdaStepDevice& p, const KdaStepTask& task, int turn,
                                const StepValues<Block>& values, KdaStepShared<Block>& shared,
                                const ConvStepChannels<4>& key) {
  using Role = KdaLaneRole<KdaTileMap>;
  const int64_t j = task.h * p.values + turn;
  float v[Block::kPasses];
#pragma unroll
  for (int pass = 0; pass < Block::kPasses; ++pass) {
    v[pass] = conv_step_output(p.conv, values.channel[pass], 0);
  }
  __syncwarp();  // lanes that share a row have read its window
  if (!Role::upper() && Role::speaks()) {
#pragma unroll
    for (int pass = 0; pass < Block::kPasses; ++pass) {
      step_targets(p, task, [&](int64_t slot) {
        store_conv_window(p.conv, slot, values.at(p, task, j, pass), values.channel[pass]);
      });
    }
  }
  finish_fetch();
  __syncthreads();
  KdaLaneToken<KdaTileMap> token;
  read_kda_token(shared.token, token);
  token.kq = kda_lane_dot<KdaTileMap>(token.k, token.q);
  if (!task.row.fresh) wait_fetch(&shared.fetched[turn]);
  if (turn == 0) {
    if (Block::kSplit > 1) cluster_wait();  // all blocks run, and have read the old window
    if (task.rank == 0 && step_warp() < 2) {
      step_targets(p, task, [&](int64_t slot) {
        store_conv_window(p.conv, slot, step_key_channel(p, task, step_warp()), key);
      });
    }
  }
  float* o = shared.o[turn % 2];
#pragma unroll
  for (int pass = 0; pass < Block::kPasses; ++pass) {
    step_pass<Block>(p, task, j, pass, token, v[pass], o, shared.tile);
  }
  if (Block::kSplit > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  write_step_out<Block>(p, task, j, o, values.z);
}

/// Dynamic shared memory: KdaStepShared.
template <typename Block>
__global__ void __launch_bounds__(Block::kThreads, Block::kSplit > 1 ? 4 : 2)
    kda_decode_step_kernel(const __grid_constant__ KdaStepDevice p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<KdaStepShared<Block>*>(memory);
  const KdaStepTask task = step_task<Block>(p);
  const int warp = step_warp();
  const int64_t j = task.h * p.values;
  const int64_t key_at = step_key_channel(p, task, warp);
  const bool works = task.row.valid > 0;
  ConvStepChannels<4> key;
  KdaStepGate gate;
  StepValues<Block> values;
  if (works) begin_step_fetch<Block>(p, task, j, 0, shared);
  if (works && warp < 2) {
    load_conv_weights(p.conv, key_at, key);
    load_conv_window(p.conv, task.row, key_at, key);
  }
  if (works) values.load_old(p, task, j);
  if (p.overlap) wait_for_earlier_kernel();
  admit_next_kernel();
  if (task.rank == 0 && task.h == 0 && warp == 0) {
    report_snapshots(p.kda.snapshots, p.kda.rows, task.n, task.row, task.row.valid, p.kda.status);
  }
  if (!works) {
    clear_step<Block>(p, task);
    return;
  }
  if (warp < 2) load_conv_x(p.conv, task.n, key_at, key);
  if (warp == 2) gate = load_step_gate(p.kda, task.n, j);
  values.load_new(p, task, j);
  if (warp < 2) make_step_key<Block>(p, key, shared.token);
  if (Block::kSplit > 1) cluster_arrive();
  if (warp == 2) make_step_gate(p.kda, gate, shared.token);
  step_value_head<Block>(p, task, 0, values, shared, key);
  for (int32_t turn = 1; turn < p.values; ++turn) {
    const int64_t next = j + turn;
    __syncthreads();  // nobody reads the tile or the token any more
    begin_step_fetch<Block>(p, task, next, turn, shared);
    values.load_old(p, task, next);
    values.load_new(p, task, next);
    if (warp == 2) make_step_gate(p.kda, load_step_gate(p.kda, task.n, next), shared.token);
    step_value_head<Block>(p, task, turn, values, shared, key);
  }
}

template <typename Block>
Status run(const KdaStepDevice& p, int64_t N, const ExecContext& context) {
  static std::atomic<uint64_t> told{0};
  constexpr int kBytes = static_cast<int>(sizeof(KdaStepShared<Block>));
  const auto kernel = kda_decode_step_kernel<Block>;
  LINESTATE_RETURN_IF_ERROR(allow_shared_memory(kernel, kBytes, context, told));
  const LaunchShape shape{grid_of(N * p.kda.H * Block::kSplit), Block::kThreads, Block::kSplit,
                          kBytes, true};
  return launch_shaped("kda_decode_step", kernel, shape, context, p);
}

/// Few heads: four blocks divide one. Many: a block each. Rows of S do not see each other before
/// the norm, which adds in one order, so no bit depends on it.
template <bool kNarrow>
Status run_shaped(const KdaStepDevice& p, int64_t N, const ExecContext& context) {
  const bool few = N * p.kda.H <= 64 && cuda_architecture(context.device.index) >= 90;
  return few ? run<KdaStepBlock<kNarrow, 4, 1, 4>>(p, N, context)
             : run<KdaStepBlock<kNarrow, 8, 2, 1>>(p, N, context);
}

KdaStepDevice step_device(const KdaDecodeStepParams& params, const ExecContext& context) {
  const KdaParams recurrence = kda_step_recurrence(params, params.x);
  KdaStepDevice p{};
  p.kda = kda_device(recurrence, context);
  p.conv.weight = device_view<2>(params.conv_weight);
  p.conv.bias = device_view<1>(params.conv_bias);
  p.conv.window = device_view<3>(params.window);
  p.conv.x = device_view<2>(params.x);
  p.conv.silu = params.activation == Activation::kSilu;
  p.norm_weight = device_view<1>(params.norm_weight);
  p.z = device_view<3>(params.z);
  p.eps = params.eps;
  p.key_heads = FastDivider(p.kda.H);
  p.values = p.kda.HV / p.kda.H;
  p.overlap = launches_overlap(context);
  return p;
}

}  // namespace

std::string refuse_kda_decode_step_cuda(const KdaDecodeStepParams& params, const ExecContext&) {
  const KdaParams recurrence = kda_step_recurrence(params, params.x);
  const int64_t H = recurrence.q.shape[1];
  const auto& state = params.state.shape;
  if (state[2] != kKdaTileWidth || state[3] != kKdaTileWidth) {
    return concat("K and V must be 128, got ", state[3], " and ", state[2]);
  }
  if (params.conv_weight.shape[1] != kConvStepWidth) {
    return concat("W must be 4, got ", params.conv_weight.shape[1]);
  }
  if (state[1] > kKdaStepMostValues * H) {
    return concat("takes at most ", kKdaStepMostValues, " value heads a key head, got ",
                  state[1] / H);
  }
  if (params.x.shape[0] * H >= (1 << 28)) return "too many rows times heads";
  if (!device_view<2>(params.conv_weight).packed) {
    return "conv_weight: the taps of a channel are not contiguous and aligned";
  }
  if (!kda_tiles_fit(recurrence)) {
    return "state, x, gate or dt_bias: rows are not contiguous and 16-byte aligned";
  }
  return {};
}

Status kda_decode_step_cuda(const KdaDecodeStepParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const KdaStepDevice p = step_device(params, context);
  const int64_t N = params.x.shape[0];
  LINESTATE_RETURN_IF_ERROR(params.state.dtype == DType::kF32 ? run_shaped<false>(p, N, context)
                                                              : run_shaped<true>(p, N, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
