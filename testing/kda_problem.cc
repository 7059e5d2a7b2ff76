#include "testing/kda_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "testing/compare.h"
#include "testing/fill.h"

namespace linestate::testing {

KdaParams KdaProblem::params() {
  KdaParams p;
  p.rows = {slot.view(), query_start_loc.view(), start.view(), num_valid.view()};
  p.q = q;
  p.k = k;
  p.v = v;
  p.gate = gate;
  p.beta = beta;
  p.gate_form = shape.gate_form;
  p.beta_form = shape.beta_form;
  p.lower_bound = shape.lower_bound;
  p.qk_normalized = shape.qk_normalized;
  if (shape.gate_form != KdaGate::kActivated) {
    p.A_log = A_log;
    p.dt_bias = dt_bias;
  }
  p.state = state;
  p.out = out;
  return p;
}

void KdaProblem::set_rows(const std::vector<KdaRow>& rows) {
  std::vector<int32_t> slots;
  std::vector<int32_t> offsets{0};
  std::vector<int64_t> starts;
  std::vector<int32_t> valid;
  for (const KdaRow& row : rows) {
    slots.push_back(row.slot);
    offsets.push_back(offsets.back() + row.tokens);
    starts.push_back(row.start);
    valid.push_back(row.num_valid >= 0 ? row.num_valid : row.tokens);
  }
  slot = i32_tensor(slots);
  query_start_loc = i32_tensor(offsets);
  start = i64_tensor(starts);
  num_valid = i32_tensor(valid);
}

KdaProblem KdaProblem::clone() const {
  KdaProblem copy;
  copy.shape = shape;
  const HostTensor* from[] = {
      &q,     &k,        &v, &gate, &beta, &A_log, &dt_bias, &state, &out, &slot, &query_start_loc,
      &start, &num_valid};
  HostTensor* to[] = {&copy.q,
                      &copy.k,
                      &copy.v,
                      &copy.gate,
                      &copy.beta,
                      &copy.A_log,
                      &copy.dt_bias,
                      &copy.state,
                      &copy.out,
                      &copy.slot,
                      &copy.query_start_loc,
                      &copy.start,
                      &copy.num_valid};
  for (size_t i = 0; i < std::size(from); ++i) {
    if (from[i]->defined()) *to[i] = from[i]->clone();
  }
  return copy;
}

KdaProblem make_kda_problem(const KdaShape& shape, int64_t tokens, uint64_t seed) {
  KdaProblem p;
  p.shape = shape;
  p.q = HostTensor(shape.io, {tokens, shape.H, shape.K});
  p.k = HostTensor(shape.io, {tokens, shape.H, shape.K});
  p.v = HostTensor(shape.io, {tokens, shape.HV, shape.V});
  p.gate = HostTensor(shape.gate_dtype, {tokens, shape.HV, shape.K});
  p.beta = HostTensor(shape.gate_dtype, {tokens, shape.HV});
  p.A_log = HostTensor(DType::kF32, {shape.HV});
  p.dt_bias = HostTensor(DType::kF32, {shape.HV, shape.K});
  p.state = HostTensor(shape.state, {shape.slots, shape.HV, shape.V, shape.K});
  p.out = HostTensor(shape.out, {tokens, shape.HV, shape.V});
  fill_normal(p.q, seed + 1);
  fill_normal(p.k, seed + 2);
  if (shape.qk_normalized) {
    const double unit = 1.0 / std::sqrt(static_cast<double>(shape.K));
    fill_normal(p.q, seed + 1, unit);
    fill_normal(p.k, seed + 2, 0.9 * unit);  // a length above sqrt(2) would make S grow
  }
  fill_normal(p.v, seed + 3);
  if (shape.gate_form == KdaGate::kActivated) {
    fill_uniform(p.gate, seed + 4, -1.0, 0.0);
  } else {
    fill_normal(p.gate, seed + 4, 1.5, -2.0);
  }
  if (shape.beta_form == KdaBeta::kProbability) {
    fill_uniform(p.beta, seed + 5, 0.0, 1.0);
  } else {
    fill_normal(p.beta, seed + 5);
  }
  fill_uniform(p.A_log, seed + 6, -1.0, 1.0);
  fill_normal(p.dt_bias, seed + 7, 0.5);
  fill_normal(p.state, seed + 8);
  fill_nan(p.out);
  return p;
}

int64_t total_tokens(const std::vector<KdaRow>& rows) {
  int64_t sum = 0;
  for (const KdaRow& row : rows) sum += row.tokens;
  return sum;
}

std::string run_kda(KdaPhase phase, const KdaParams& params, const std::string& kernel, int threads,
                    DeviceStatus* status) {
  constexpr int64_t kGuard = 256;
  ExecContext context;
  context.num_threads = threads;
  context.status = status;
  context.check_finite = status != nullptr;
  const bool prefill = phase == KdaPhase::kPrefill;
  const Result<int64_t> bytes = prefill ? kda_prefill_workspace_bytes(params, context, kernel)
                                        : kda_decode_workspace_bytes(params, context, kernel);
  if (!bytes.ok()) return bytes.status().to_string();
  HostTensor memory(DType::kU8, {*bytes + kGuard});
  std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));  // NaN in every dtype
  context.workspace = {memory.data(), *bytes};
  const Status result =
      prefill ? kda_prefill(params, context, kernel) : kda_decode(params, context, kernel);
  if (!result.ok()) return result.to_string();
  const auto* guard = static_cast<const uint8_t*>(memory.data()) + *bytes;
  const bool intact = std::all_of(guard, guard + kGuard, [](uint8_t b) { return b == 0xff; });
  return intact ? "" : "workspace overrun";
}

namespace {

std::string judge(const char* name, const HostTensor& actual, const HostTensor& expected,
                  double f32_limit) {
  const double limit =
      actual.dtype() == DType::kF32 ? f32_limit : 1.05 * rounding_error(expected, actual.dtype());
  const Difference difference = compare(actual, expected);
  if (difference.finite && difference.rel <= limit) return {};
  return std::string(name) + ": " + difference.text() + ", limit " + std::to_string(limit * 1e6) +
         "e-6; ";
}

}  // namespace

std::string check_kda_against_ref(KdaPhase phase, KdaProblem& problem, const std::string& kernel,
                                  double out_limit, double state_limit) {
  KdaProblem exact = problem.clone();
  exact.state = cast_of(problem.state, DType::kF32);
  exact.out = cast_of(problem.out, DType::kF32);
  std::string error = run_kda(phase, exact.params(), "ref");
  if (error.empty()) error = run_kda(phase, problem.params(), kernel);
  if (!error.empty()) return error;
  return judge("out", problem.out, exact.out, out_limit) +
         judge("state", problem.state, exact.state, state_limit);
}

}  // namespace linestate::testing
