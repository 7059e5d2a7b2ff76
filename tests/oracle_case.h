// What the numbered cases and the rules share: the two kernel rows, a KDA recurrence in double
// written apart from the library, and checks of whole pools.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/half.h"
#include "testing/kda_problem.h"

namespace linestate::testing {

inline const std::vector<std::string> kKernelRows = {"cpu", "ref"};

/// Runs an op with a workspace of exactly the size it asks for, filled with 0xff (NaN in every
/// dtype). Returns the error's text, "workspace overrun", or nothing.
template <typename Params>
std::string call_op(Status (*op)(const Params&, const ExecContext&, std::string_view),
                    Result<int64_t> (*sizer)(const Params&, const ExecContext&, std::string_view),
                    const Params& params, const std::string& kernel, int threads = 1) {
  constexpr int64_t kGuard = 64;
  ExecContext context;
  context.num_threads = threads;
  const Result<int64_t> bytes = sizer(params, context, kernel);
  if (!bytes.ok()) return bytes.status().to_string();
  HostTensor memory(DType::kU8, {*bytes + kGuard});
  std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));
  context.workspace = {memory.data(), *bytes};
  const Status status = op(params, context, kernel);
  if (!status.ok()) return status.to_string();
  const auto* guard = static_cast<const uint8_t*>(memory.data()) + *bytes;
  const bool intact = std::all_of(guard, guard + kGuard, [](uint8_t b) { return b == 0xff; });
  return intact ? "" : "workspace overrun";
}

/// The base configuration of the cases: H = HV = 4, K = V = 128, bf16 inputs, f32 pool of 8 slots,
/// bounded gate with lower bound -5.
inline KdaShape base_kda_shape() {
  KdaShape shape;
  shape.H = shape.HV = 4;
  shape.K = shape.V = 128;
  shape.io = DType::kBF16;
  shape.out = DType::kBF16;
  shape.gate_form = KdaGate::kBounded;
  shape.lower_bound = -5.0f;
  return shape;
}

/// Small, f32 throughout.
inline KdaShape small_kda_shape() {
  KdaShape shape;
  shape.K = 32;
  shape.V = 48;
  shape.gate_form = KdaGate::kBounded;
  shape.lower_bound = -5.0f;
  return shape;
}

/// Log decay of token t, value head j, key channel c.
inline double kda_log_decay(const KdaProblem& p, int64_t t, int64_t j, int64_t c) {
  const double a = p.gate.at((t * p.shape.HV + j) * p.shape.K + c);
  if (p.shape.gate_form == KdaGate::kActivated) return a;
  const double x = a + p.dt_bias.at(j * p.shape.K + c);
  const double rate = std::exp(p.A_log.at(j));
  if (p.shape.gate_form == KdaGate::kBounded) {
    return p.shape.lower_bound / (1.0 + std::exp(-rate * x));
  }
  return -rate * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
}

/// A head's q or k, of unit length unless the caller made it so.
inline std::vector<double> kda_unit(const KdaProblem& p, const HostTensor& from, int64_t t,
                                    int64_t head) {
  std::vector<double> out(static_cast<size_t>(p.shape.K));
  double sum = 0.0;
  for (size_t c = 0; c < out.size(); ++c) {
    out[c] = from.at((t * p.shape.H + head) * p.shape.K + static_cast<int64_t>(c));
    sum += out[c] * out[c];
  }
  if (p.shape.qk_normalized) return out;
  for (double& x : out) x /= std::sqrt(sum + 1e-6);
  return out;
}

/// One token on S [V, K]; o [V] comes back.
inline std::vector<double> kda_oracle_token(const KdaProblem& p, int64_t t, int64_t j,
                                            std::vector<double>& S) {
  const auto K = static_cast<size_t>(p.shape.K);
  const int64_t head = j / (p.shape.HV / p.shape.H);
  const std::vector<double> q = kda_unit(p, p.q, t, head);
  const std::vector<double> k = kda_unit(p, p.k, t, head);
  std::vector<double> alpha(K);
  for (size_t c = 0; c < K; ++c) {
    alpha[c] = std::exp(kda_log_decay(p, t, j, static_cast<int64_t>(c)));
  }
  double beta = p.beta.at(t * p.shape.HV + j);
  if (p.shape.beta_form == KdaBeta::kLogits) beta = 1.0 / (1.0 + std::exp(-beta));
  const double scale = 1.0 / std::sqrt(static_cast<double>(K));
  std::vector<double> o(static_cast<size_t>(p.shape.V));
  for (size_t r = 0; r < o.size(); ++r) {
    double* row = &S[r * K];
    double predicted = 0.0;
    for (size_t c = 0; c < K; ++c) {
      row[c] *= alpha[c];
      predicted += row[c] * k[c];
    }
    const double v = p.v.at((t * p.shape.HV + j) * p.shape.V + static_cast<int64_t>(r));
    const double u = beta * (v - predicted);
    double sum = 0.0;
    for (size_t c = 0; c < K; ++c) {
      row[c] += u * k[c];
      sum += row[c] * q[c];
    }
    o[r] = scale * sum;
  }
  return o;
}

struct KdaExpected {
  HostTensor out;    // f64 [T, HV, V]
  HostTensor state;  // f64 [P, HV, V, K]
};

/// What the rows of the problem, as it stands before the call, must give. Padding and tokens of no
/// row: zeros.
inline KdaExpected expect_kda(const KdaProblem& p) {
  const KdaShape& s = p.shape;
  KdaExpected e{HostTensor(DType::kF64, p.out.shape()), cast_of(p.state.view(), DType::kF64)};
  for (int64_t n = 0; n < p.slot.num_elements(); ++n) {
    const auto slot = static_cast<int64_t>(p.slot.at(n));
    if (slot < 0 || slot >= s.slots) continue;
    const auto begin = static_cast<int64_t>(p.query_start_loc.at(n));
    const auto valid = static_cast<int64_t>(p.num_valid.at(n));
    for (int64_t j = 0; j < s.HV; ++j) {
      const int64_t base = (slot * s.HV + j) * s.V * s.K;
      std::vector<double> S(static_cast<size_t>(s.V * s.K), 0.0);
      for (size_t i = 0; i < S.size() && p.start.at(n) > 0; ++i) {
        S[i] = p.state.at(base + static_cast<int64_t>(i));
      }
      for (int64_t t = begin; t < begin + valid; ++t) {
        const std::vector<double> o = kda_oracle_token(p, t, j, S);
        for (size_t r = 0; r < o.size(); ++r) {
          e.out.set((t * s.HV + j) * s.V + static_cast<int64_t>(r), o[r]);
        }
      }
      for (size_t i = 0; i < S.size(); ++i) e.state.set(base + static_cast<int64_t>(i), S[i]);
    }
  }
  return e;
}

/// Relative RMS within the floor of the tensor's dtype: `f32_limit`, or 1.05 x the rounding.
inline void expect_close(const ConstTensorView& actual, const ConstTensorView& expected,
                         double f32_limit, const std::string& what) {
  const double limit =
      actual.dtype == DType::kF32 ? f32_limit : 1.05 * rounding_error(expected, actual.dtype);
  const Difference difference = compare(actual, expected);
  EXPECT_TRUE(difference.finite) << what;
  EXPECT_LE(difference.rel, limit) << what << ": " << difference.text();
}

/// Runs and judges a whole call against expect_kda.
inline void expect_kda_call(KdaPhase phase, KdaProblem& p, const std::string& kernel,
                            const std::string& what, double out_limit = 1e-6,
                            double state_limit = 5e-7) {
  const KdaExpected expected = expect_kda(p);
  ASSERT_EQ(run_kda(phase, p.params(), kernel), "") << what;
  expect_close(p.out, expected.out, out_limit, what + ", out, " + kernel);
  expect_close(p.state, expected.state, state_limit, what + ", state, " + kernel);
}

inline ConstTensorView part(const HostTensor& tensor, int64_t begin, int64_t end) {
  return tensor.view().slice(0, begin, end);
}
inline ConstTensorView pool_slot(const HostTensor& pool, int64_t slot) {
  return part(pool, slot, slot + 1);
}

/// Every slot outside `live` keeps its bits.
inline void expect_untouched(const HostTensor& after, const HostTensor& before,
                             const std::vector<int64_t>& live, const std::string& what) {
  for (int64_t s = 0; s < after.shape()[0]; ++s) {
    if (std::find(live.begin(), live.end(), s) != live.end()) continue;
    EXPECT_EQ(bit_difference(pool_slot(after, s), pool_slot(before, s)), "")
        << what << ", slot " << s;
  }
}

/// A view with the elements of `tensor` inside a larger buffer of NaN: every row of the last
/// dimension gets `gap` elements behind it, and `offset` lie in front.
struct PaddedCopy {
  HostTensor memory;
  TensorView view;
  PaddedCopy(const ConstTensorView& tensor, int64_t gap, int64_t offset) {
    const int64_t width = tensor.shape[static_cast<size_t>(tensor.rank - 1)];
    const int64_t rows = tensor.num_elements() / width;
    memory = HostTensor(tensor.dtype, {offset + rows * (width + gap)});
    fill_nan(memory);
    view.data = static_cast<char*>(memory.data()) + offset * dtype_bytes(tensor.dtype);
    view.dtype = tensor.dtype;
    view.rank = tensor.rank;
    view.shape = tensor.shape;
    int64_t stride = 1;
    for (int d = tensor.rank - 1; d >= 0; --d) {
      view.stride[static_cast<size_t>(d)] = stride;
      stride *= view.shape[static_cast<size_t>(d)];
      if (d == tensor.rank - 1) stride += gap;
    }
    const HostTensor dense = copy_of(tensor);
    int64_t at = 0;
    for_each_offset(view,
                    [&](int64_t to) { store_f64(view.data, view.dtype, to, dense.at(at++)); });
  }
  /// The elements of `view` are NaN-free elsewhere: everything outside it is still NaN.
  bool padding_intact() const {
    HostTensor copy = memory.clone();
    TensorView inside = view;
    const auto shift =
        static_cast<const char*>(view.data) - static_cast<const char*>(memory.data());
    inside.data = static_cast<char*>(copy.data()) + shift;
    fill_nan(inside);
    HostTensor nan(memory.dtype(), memory.shape());
    fill_nan(nan);
    return bit_difference(copy, nan).empty();
  }
};

}  // namespace linestate::testing
