// KdaParams as kernels take them, and the maths that every KDA kernel shares: one function for the
// gate, one for beta, one for the norms.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"
#include "cuda/warp.cuh"
#include "linestate/ops/kda.h"

namespace linestate {

struct KdaDevice {
  DeviceRows rows;
  DeviceSnapshots snapshots;
  DeviceView<3> q, k, v, gate, out;
  DeviceView<2> beta, dt_bias;
  DeviceView<1> A_log;
  DeviceView<4> state;
  int32_t H, HV, K, V;
  KdaGate gate_form;
  KdaBeta beta_form;
  float lower_bound;
  float scale;
  bool qk_normalized;
  int32_t layer;
  DeviceStatus* status;
};

inline KdaDevice kda_device(const KdaParams& p, const ExecContext& context) {
  KdaDevice d{};
  d.rows = device_rows(p.rows, p.state.shape[0], p.q.shape[0]);
  d.snapshots = device_snapshots(p.snapshots);
  d.q = device_view<3>(p.q);
  d.k = device_view<3>(p.k);
  d.v = device_view<3>(p.v);
  d.gate = device_view<3>(p.gate);
  d.out = device_view<3>(p.out);
  d.beta = device_view<2>(p.beta);
  if (p.gate_form != KdaGate::kActivated) {
    d.dt_bias = device_view<2>(p.dt_bias);
    d.A_log = device_view<1>(p.A_log);
  }
  d.state = device_view<4>(p.state);
  d.H = static_cast<int32_t>(p.q.shape[1]);
  d.HV = static_cast<int32_t>(p.v.shape[1]);
  d.K = static_cast<int32_t>(p.q.shape[2]);
  d.V = static_cast<int32_t>(p.v.shape[2]);
  d.gate_form = p.gate_form;
  d.beta_form = p.beta_form;
  d.lower_bound = p.lower_bound;
  d.scale = p.scale != 0.0f
                ? p.scale
                : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.q.shape[2])));
  d.qk_normalized = p.qk_normalized;
  d.layer = p.layer;
  d.status = context.status;
  return d;
}

/// 1 / (1 + e^-x) without overflow.
__device__ inline float kda_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// log(1 + e^x) without overflow.
__device__ inline float kda_softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// What the gate of one value head needs besides a.
struct KdaGateHead {
  KdaGate form;
  float exp_A;
  float lower_bound;
};

__device__ inline KdaGateHead kda_gate_head(const KdaDevice& p, int64_t j) {
  const bool activated = p.gate_form == KdaGate::kActivated;
  return {p.gate_form, activated ? 1.0f : expf(load_at(p.A_log, j)), p.lower_bound};
}

/// The gate: alpha = exp(g) of one channel. NaN stays NaN.
__device__ inline float kda_decay(const KdaGateHead& head, float a, float dt_bias) {
  float g = a;
  if (head.form == KdaGate::kSoftplus) {
    g = -head.exp_A * kda_softplus(a + dt_bias);
  } else if (head.form == KdaGate::kBounded) {
    g = head.lower_bound * kda_sigmoid(head.exp_A * (a + dt_bias));
  }
  return expf(g);
}

/// kda_decay of several channels, whose chains of instructions then overlap.
template <int kCount>
__device__ void kda_decays(KdaGateHead head, const float (&dt_bias)[kCount], float (&a)[kCount]) {
  const auto run = [&](KdaGate form) {
    head.form = form;
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[i] = kda_decay(head, a[i], dt_bias[i]);
  };
  if (head.form == KdaGate::kSoftplus) {
    run(KdaGate::kSoftplus);
  } else if (head.form == KdaGate::kBounded) {
    run(KdaGate::kBounded);
  } else {
    run(KdaGate::kActivated);
  }
}

__device__ inline float kda_beta(KdaBeta form, float b) {
  return form == KdaBeta::kLogits ? kda_sigmoid(b) : b;
}

/// rsqrt(sum x^2 + 1e-6) over what kLanes lanes hold together; 1 when x is already normalised.
template <int kLanes, int kCount>
__device__ float kda_inverse_norm(const float (&x)[kCount], bool normalized) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = fmaf(x[i], x[i], sum);
  sum = sum_lanes<kLanes>(sum);
  return normalized ? 1.0f : 1.0f / sqrtf(sum + 1e-6f);
}

}  // namespace linestate
