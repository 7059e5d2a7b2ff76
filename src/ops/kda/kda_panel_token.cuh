// A token for kernels over panels of the state: all that it is made of is on its way at once, and
// widened only when it is there. The same maths, in the same order, as load_kda_token.
#pragma once

#include <cstdint>

#include "ops/kda/kda_panel_tasks.cuh"

namespace linestate {

/// A token's inputs as they lie in memory, on their way; values of the task's rows.
template <typename Map>
struct KdaPanelBits {
  static constexpr int kValues = kPanelBlockRows / 32;
  uint4 gate[Map::kQuads], k[Map::kQuads], q[Map::kQuads], bias[Map::kQuads];
  uint32_t v[kValues];
  uint32_t beta, A_log;
};

/// The lane's quads of a vector at `at`; zeros behind K. `by_way` [kChannels] is used for strides.
template <typename Map, int kRank>
__device__ void read_lane_bits(const DeviceView<kRank>& view, int64_t at, int K, float* by_way,
                               uint4 (&bits)[Map::kQuads]) {
  const bool narrow = view.dtype != DType::kF32;
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    bits[i] = read_quad_bits(view.data, narrow, at + c, view.packed && c < K);
  }
  if (view.packed) return;
  auto* quads = reinterpret_cast<uint4*>(by_way);
  gather_lane_bits<Map>(view.data, narrow, at, view.step(), K, quads);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) bits[i] = quads[Map::channel(i) / 4];
  __syncwarp();
}

/// Packed token t for the task's value head and key head h; by a warp.
template <typename Map>
__device__ void read_token_bits(const KdaDevice& kda, const KdaTask& task, int64_t t, int64_t h,
                                float* by_way, KdaPanelBits<Map>& bits) {
  const bool gated = kda.gate_form != KdaGate::kActivated;
  read_lane_bits<Map>(kda.gate, kda.gate.offset(t, task.j), kda.K, by_way, bits.gate);
  read_lane_bits<Map>(kda.k, kda.k.offset(t, h), kda.K, by_way, bits.k);
  read_lane_bits<Map>(kda.q, kda.q.offset(t, h), kda.K, by_way, bits.q);
  read_lane_bits<Map>(kda.dt_bias, kda.dt_bias.offset(task.j), gated ? kda.K : 0, by_way,
                      bits.bias);
#pragma unroll
  for (int e = 0; e < KdaPanelBits<Map>::kValues; ++e) {
    const int at = task.begin + lane_id() + 32 * e;
    bits.v[e] = read_element_bits(kda.v.data, kda.v.dtype != DType::kF32,
                                  kda.v.offset(t, task.j, at), at < task.end);
  }
  bits.beta = read_element_bits(kda.beta.data, kda.beta.dtype != DType::kF32,
                                kda.beta.offset(t, task.j), true);
  bits.A_log = read_element_bits(kda.A_log.data, false, kda.A_log.offset(task.j), gated);
}

template <typename Map>
__device__ void widen_lanes(const uint4 (&bits)[Map::kQuads], DType dtype,
                            float (&x)[Map::kElems]) {
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) widen_quad(bits[i], dtype, x + 4 * i);
}

/// Gate, norms and beta.
template <typename Map>
__device__ void finish_token_bits(const KdaDevice& kda, const KdaPanelBits<Map>& bits,
                                  KdaLaneToken<Map>& token) {
  float bias[Map::kElems];
  widen_lanes<Map>(bits.gate, kda.gate.dtype, token.alpha);
  widen_lanes<Map>(bits.k, kda.k.dtype, token.k);
  widen_lanes<Map>(bits.q, kda.q.dtype, token.q);
  widen_lanes<Map>(bits.bias, DType::kF32, bias);
  token.k_inverse_norm = kda_inverse_norm<Map::kLanes>(token.k, kda.qk_normalized);
  const float q_factor = kda.scale * kda_inverse_norm<Map::kLanes>(token.q, kda.qk_normalized);
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) {
    token.k[c] *= token.k_inverse_norm;
    token.q[c] *= q_factor;
  }
  const bool activated = kda.gate_form == KdaGate::kActivated;
  const float exp_A = activated ? 1.0f : expf(__uint_as_float(bits.A_log));
  kda_decays({kda.gate_form, exp_A, kda.lower_bound}, bias, token.alpha);
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) {
    if (Map::channel(c / 4) >= kda.K) token.alpha[c] = 0.0f;
  }
  token.kq = kda_lane_dot<Map>(token.k, token.q);
  token.beta = kda_beta(kda.beta_form, widen_element(bits.beta, kda.beta.dtype));
}

}  // namespace linestate
