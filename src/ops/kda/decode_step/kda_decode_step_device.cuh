// The whole step of one key head of one row, by one block or by a cluster that divides the rows of
// S. Every block of a cluster makes q and k for itself from the old window; the window is written
// once, by the first block, when all have read it. The norm needs all of o: blocks send each other
// what they have.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/launch.cuh"
#include "ops/common/conv_step_device.cuh"
#include "ops/common/gated_norm_device.cuh"
#include "ops/kda/kda_tile_step.cuh"

namespace linestate {

inline constexpr int kKdaStepMostValues = 8;  // value heads a key head

struct KdaStepDevice {
  KdaDevice kda;  // q, k, v: what the convolution reads, in x
  ConvStepDevice conv;
  DeviceView<1> norm_weight;
  DeviceView<3> z;
  float eps;
  FastDivider key_heads;
  int32_t values;  // HV / H
  bool overlap;
};

template <bool kNarrowIn, int kWarpsIn, int kPassesIn, int kSplitIn>
struct KdaStepBlock {
  static constexpr bool kNarrow = kNarrowIn;
  static constexpr int kWarps = kWarpsIn;
  static constexpr int kPasses = kPassesIn;
  static constexpr int kSplit = kSplitIn;  // blocks of a cluster
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPassRows = kWarps * kStateRows;
  static constexpr int kRows = kPasses * kPassRows;  // of S, a block
  static constexpr int kBytes = kRows * kKdaTileRowBytes<kNarrow>;
  static_assert(kRows * kSplit == kKdaTileWidth, "V = 128");
  static_assert(kWarps >= 4,
                "q, k and the gate have a warp each, and one more waits for the state");
};

template <typename Block>
struct KdaStepShared {
  alignas(128) uint8_t tile[Block::kBytes];
  KdaSharedToken token;
  float o[2][kKdaTileWidth];  // of this value head and the one before
  uint64_t fetched[kKdaStepMostValues];
};

/// What a block works on.
struct KdaStepTask {
  int64_t n, h;
  int64_t first;  // row of S
  int rank;       // in the cluster
  DeviceRow row;
};

__device__ inline int step_warp() { return static_cast<int>(threadIdx.x) / 32; }

/// The lane's row of the block's part of S in a pass.
template <typename Block>
__device__ int step_lane_row(int pass) {
  return pass * Block::kPassRows + step_warp() * kStateRows + KdaLaneRole<KdaTileMap>::row();
}

/// Channels of the convolution: q | k | v.
__device__ inline int64_t step_key_channel(const KdaStepDevice& p, const KdaStepTask& task,
                                           int which) {
  return (static_cast<int64_t>(which) * p.kda.H + task.h) * kKdaTileWidth + KdaTileMap::channel(0);
}
__device__ inline int64_t step_value_channel(const KdaStepDevice& p, int64_t j, int64_t row) {
  return (static_cast<int64_t>(2) * p.kda.H + j) * kKdaTileWidth + row;
}

/// visit(slot) for every slot that gets the window and the state behind this token.
template <typename Visit>
__device__ void step_targets(const KdaStepDevice& p, const KdaStepTask& task, const Visit& visit) {
  visit(task.row.slot);
  for (int64_t m = 0; m < p.kda.snapshots.count; ++m) {
    if (snapshot_after(p.kda.snapshots, p.kda.rows, task.n, task.row, 1, m) != 1) continue;
    visit(p.kda.snapshots.slot.at(m));
  }
}

/// q (warp 0) or k (warp 1) from their convolution, into the block's token.
template <typename Block>
__device__ void make_step_key(const KdaStepDevice& p, const ConvStepChannels<4>& channels,
                              KdaSharedToken& token) {
  float x[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] = conv_step_output(p.conv, channels, e);
  const float norm = kda_inverse_norm<32>(x, p.kda.qk_normalized);
  const bool is_q = step_warp() == 0;
  const float factor = is_q ? p.kda.scale * norm : norm;
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] *= factor;
  (is_q ? token.q : token.k)[lane_id()] = make_float4(x[0], x[1], x[2], x[3]);
}

/// The gate and beta of value head j as they lie in memory.
struct KdaStepGate {
  uint4 gate;
  float4 bias;
  uint32_t beta;
  float A_log;
};

__device__ inline KdaStepGate load_step_gate(const KdaDevice& p, int64_t n, int64_t j) {
  const int c = KdaTileMap::channel(0);
  KdaStepGate bits;
  bits.gate = load_quad_bits(p.gate.data, p.gate.dtype != DType::kF32, p.gate.offset(n, j, c));
  bits.bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  bits.A_log = 0.0f;
  if (p.dt_bias.data != nullptr) {
    const auto* bias = static_cast<const float*>(p.dt_bias.data);
    bits.bias = *reinterpret_cast<const float4*>(bias + p.dt_bias.offset(j, c));
    bits.A_log = load_at(p.A_log, j);
  }
  bits.beta = load_bits(p.beta.data, p.beta.dtype, p.beta.offset(n, j));
  return bits;
}

__device__ inline void make_step_gate(const KdaDevice& p, const KdaStepGate& bits,
                                      KdaSharedToken& token) {
  const bool activated = p.gate_form == KdaGate::kActivated;
  const KdaGateHead head{p.gate_form, activated ? 1.0f : expf(bits.A_log), p.lower_bound};
  float a[4];
  float bias[4];
  widen_quad(bits.gate, p.gate.dtype, a);
  unpack_float4(bits.bias, bias);
#pragma unroll
  for (int e = 0; e < 4; ++e) a[e] = kda_decay(head, a[e], bias[e]);
  token.alpha[lane_id()] = make_float4(a[0], a[1], a[2], a[3]);
  if (lane_id() == 0) token.beta = kda_beta(p.beta_form, widen_bits(bits.beta, p.beta.dtype));
}

/// Asks for the block's rows of value head j.
template <typename Block>
__device__ void begin_step_fetch(const KdaStepDevice& p, const KdaStepTask& task, int64_t j,
                                 int turn, KdaStepShared<Block>& shared) {
  if (task.row.fresh) return;
  const int64_t at = p.kda.state.offset(task.row.slot, j, task.first);
  const auto* state = static_cast<const uint8_t*>(p.kda.state.data);
  // The last warp has the least to do for the token.
  const int thread = (static_cast<int>(threadIdx.x) + 32) % Block::kThreads;
  begin_fetch(shared.tile, state + at * (Block::kNarrow ? 2 : 4), Block::kBytes,
              &shared.fetched[turn], thread, Block::kThreads);
}

/// One pass over the block's rows: state out, o to every block of the cluster.
template <typename Block>
__device__ void step_pass(const KdaStepDevice& p, const KdaStepTask& task, int64_t j, int pass,
                          const KdaLaneToken<KdaTileMap>& token, float v, float* o,
                          const uint8_t* tile) {
  using Role = KdaLaneRole<KdaTileMap>;
  const int row = pass * Block::kPassRows + step_warp() * kStateRows;
  KdaLaneRows<KdaTileMap> rows = {};
  if (!task.row.fresh) {
    read_kda_tile<Block::kNarrow>(tile + row * kKdaTileRowBytes<Block::kNarrow>, p.kda.state.dtype,
                                  rows);
  }
  const KdaLaneResult result = step_kda_rows<KdaTileMap>(token, v, rows);
  if (Role::upper() && Role::speaks()) {
    float* to = o + task.first + row + Role::row();
#pragma unroll
    for (int rank = 0; rank < Block::kSplit; ++rank) {
      if (Block::kSplit == 1) *to = result.o;
      if (Block::kSplit > 1) store_in_block(to, rank, result.o);
    }
  }
  step_targets(p, task, [&](int64_t slot) {
    const int64_t at = p.kda.state.offset(slot, j, task.first + row);
    if (!store_kda_tile<Block::kNarrow>(p.kda.state, at, rows)) {
      raise_overflow(p.kda.status, task.n, task.row.slot, p.kda.layer);
    }
  });
}

/// The block's outputs of value head j from all of o, one a thread of the first warps.
template <typename Block>
__device__ void write_step_out(const KdaStepDevice& p, const KdaStepTask& task, int64_t j,
                               const float* o, uint32_t z) {
  if (threadIdx.x >= Block::kRows) return;
  const int64_t row = task.first + threadIdx.x;
  float y = o[row];
  if (p.norm_weight.data != nullptr) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kKdaTileWidth; i += 32) sum = fmaf(o[i + lane_id()], o[i + lane_id()], sum);
    const auto count = static_cast<float>(kKdaTileWidth);
    const float factor = norm_factor(sum_lanes(sum), count, p.eps);
    y = y * factor * load_at(p.norm_weight, row);
    y *= norm_gate(widen_bits(z, p.z.dtype));
  }
  store_at(p.kda.out, y, task.n, j, row);
}

/// A row without a token: zero outputs; a fresh one leaves its slot zero.
template <typename Block>
__device__ void clear_step(const KdaStepDevice& p, const KdaStepTask& task) {
  const bool clears = task.row.live && task.row.fresh;
  if (clears && task.rank == 0 && step_warp() < 2) {
    clear_conv_window<4>(p.conv, task.row.slot, step_key_channel(p, task, step_warp()));
  }
  const KdaLaneRows<KdaTileMap> zeros = {};
  for (int32_t i = 0; i < p.values; ++i) {
    const int64_t j = task.h * p.values + i;
    if (threadIdx.x < Block::kRows) {
      const int64_t row = task.first + threadIdx.x;
      store_at(p.kda.out, 0.0f, task.n, j, row);
      if (clears) clear_conv_window<1>(p.conv, task.row.slot, step_value_channel(p, j, row));
    }
    for (int pass = 0; pass < Block::kPasses && clears; ++pass) {
      const int row = pass * Block::kPassRows + step_warp() * kStateRows;
      store_kda_tile<Block::kNarrow>(p.kda.state,
                                     p.kda.state.offset(task.row.slot, j, task.first + row), zeros);
    }
  }
}

}  // namespace linestate
