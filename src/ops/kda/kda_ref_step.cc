#include "ops/kda/kda_ref_step.h"

#include <cmath>

#include "base/element.h"

namespace linestate {
namespace {

double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

double sigmoid(double x) {
  return x >= 0.0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x));
}

double log_decay(const KdaParams& p, double a, int64_t j, int64_t k) {
  if (p.gate_form == KdaGate::kActivated) return a;
  const double A = std::exp(load_f32(p.A_log.data, p.A_log.dtype, offset_of(p.A_log, j)));
  const double x = a + load_f32(p.dt_bias.data, p.dt_bias.dtype, offset_of(p.dt_bias, j, k));
  return p.gate_form == KdaGate::kSoftplus ? -A * softplus(x)
                                           : static_cast<double>(p.lower_bound) * sigmoid(A * x);
}

// x / |x| of one head, times `scale`; returns 1 / |x|.
float normalized(const ConstTensorView& tensor, int64_t t, int64_t h, bool unit_length,
                 double scale, double* x) {
  const int64_t K = tensor.shape[2];
  double sum = 0.0;
  for (int64_t k = 0; k < K; ++k) {
    x[k] = load_f32(tensor.data, tensor.dtype, offset_of(tensor, t, h, k));
    sum += x[k] * x[k];
  }
  const auto inverse = static_cast<float>(unit_length ? 1.0 : 1.0 / std::sqrt(sum + 1e-6));
  for (int64_t k = 0; k < K; ++k) x[k] *= scale * static_cast<double>(inverse);
  return inverse;
}

}  // namespace

KdaRefToken take_kda_ref_token(const KdaParams& params, Scratch& scratch) {
  const int64_t K = params.q.shape[2];
  return {scratch.take<float>(K), scratch.take<double>(K), scratch.take<double>(K)};
}

void read_kda_ref_token(const KdaParams& p, int64_t t, int64_t j, KdaRefToken& token) {
  const int64_t K = p.q.shape[2];
  const int64_t h = j / (p.v.shape[1] / p.q.shape[1]);
  const double scale =
      p.scale != 0.0f ? static_cast<double>(p.scale) : 1.0 / std::sqrt(static_cast<double>(K));
  for (int64_t k = 0; k < K; ++k) {
    const double a = load_f32(p.gate.data, p.gate.dtype, offset_of(p.gate, t, j, k));
    token.alpha[k] = static_cast<float>(std::exp(log_decay(p, a, j, k)));
  }
  const double b = load_f32(p.beta.data, p.beta.dtype, offset_of(p.beta, t, j));
  token.beta = p.beta_form == KdaBeta::kLogits ? sigmoid(b) : b;
  token.k_inverse_norm = normalized(p.k, t, h, p.qk_normalized, 1.0, token.k);
  normalized(p.q, t, h, p.qk_normalized, scale, token.q);
}

void update_kda_ref_row(const float* alpha, const double* k, float u, int64_t K, float* s) {
  for (int64_t i = 0; i < K; ++i) {
    const double decayed = static_cast<double>(s[i]) * static_cast<double>(alpha[i]);
    s[i] = static_cast<float>(decayed + static_cast<double>(u) * k[i]);
  }
}

double step_kda_ref_row(const KdaRefToken& token, int64_t K, double v, float* s, float* u_out) {
  double prediction = 0.0;  // (S diag(alpha) k^)[v]
  for (int64_t k = 0; k < K; ++k) {
    prediction += static_cast<double>(s[k]) * static_cast<double>(token.alpha[k]) * token.k[k];
  }
  const auto u = static_cast<float>(token.beta * (v - prediction));
  if (u_out != nullptr) *u_out = u;
  update_kda_ref_row(token.alpha, token.k, u, K, s);
  double o = 0.0;
  for (int64_t k = 0; k < K; ++k) o += static_cast<double>(s[k]) * token.q[k];
  return o;
}

}  // namespace linestate
