// A verify and a commit call with their own memory, and the decodes they are measured against.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "linestate/ops/kda_verify.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {

/// Runs an op with a workspace of exactly the size it asks for, poisoned with NaN. Returns the
/// error's text, "workspace overrun", or nothing.
template <typename Params>
std::string run_sized(Status (*op)(const Params&, const ExecContext&, std::string_view),
                      Result<int64_t> (*sizer)(const Params&, const ExecContext&, std::string_view),
                      const Params& params, const std::string& kernel, int threads = 1,
                      DeviceStatus* status = nullptr) {
  constexpr int64_t kGuard = 64;
  ExecContext context;
  context.num_threads = threads;
  context.status = status;
  context.check_finite = status != nullptr;
  const Result<int64_t> bytes = sizer(params, context, kernel);
  if (!bytes.ok()) return bytes.status().to_string();
  HostTensor memory(DType::kU8, {*bytes + kGuard});
  std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));
  context.workspace = {memory.data(), *bytes};
  const Status result = op(params, context, kernel);
  if (!result.ok()) return result.to_string();
  const auto* guard = static_cast<const uint8_t*>(memory.data()) + *bytes;
  const bool intact = std::all_of(guard, guard + kGuard, [](uint8_t b) { return b == 0xff; });
  return intact ? "" : "workspace overrun";
}

inline constexpr int64_t kConvChannels = 10;

struct KdaVerifyCase {
  KdaProblem problem;
  std::vector<KdaRow> rows;
  HostTensor parent;  // undefined = chains
  HostTensor u, k, k_inverse_norm, alpha;
  HostTensor accepted, conv_x, window;
  HostTensor plan_row, plan_position, plan_slot, taken;

  KdaVerifyParams verify_params() {
    KdaVerifyParams p;
    p.kda = problem.params();
    p.parent = parent.view();
    p.record = {u, k, k_inverse_norm, alpha};
    return p;
  }
  KdaCommitParams commit_params() {
    KdaCommitParams p;
    p.rows = problem.params().rows;
    p.parent = parent.view();
    p.accepted_node = accepted;
    p.record = {u, k, k_inverse_norm, alpha};
    p.conv_x = conv_x;
    p.window = window;
    p.state = problem.state;
    p.snapshots = {plan_row.view(), plan_position.view(), plan_slot.view()};
    if (taken.defined()) p.taken = taken;
    return p;
  }
  std::string verify(const std::string& kernel, int threads = 1, DeviceStatus* status = nullptr) {
    return run_sized(kda_verify, kda_verify_workspace_bytes, verify_params(), kernel, threads,
                     status);
  }
  std::string commit(const std::string& kernel, const std::vector<int32_t>& nodes, int threads = 1,
                     DeviceStatus* status = nullptr) {
    accepted = i32_tensor(nodes);
    return run_sized(kda_commit, kda_commit_workspace_bytes, commit_params(), kernel, threads,
                     status);
  }
  void set_plan(const std::vector<int32_t>& row, const std::vector<int64_t>& position,
                const std::vector<int32_t>& slot) {
    plan_row = i32_tensor(row);
    plan_position = i64_tensor(position);
    plan_slot = i32_tensor(slot);
    taken = HostTensor(DType::kU8, {static_cast<int64_t>(row.size())});
    for (int64_t m = 0; m < taken.num_elements(); ++m) taken.set(m, 9);
  }
  /// Packed token of a row's first node.
  int64_t begin_of(size_t n) const {
    int64_t t = 0;
    for (size_t i = 0; i < n; ++i) t += rows[i].tokens;
    return t;
  }
  HostTensor slot_state(int64_t slot) const {
    return copy_of(problem.state.view().slice(0, slot, slot + 1));
  }
  HostTensor slot_window(int64_t slot) const {
    return copy_of(window.view().slice(0, slot, slot + 1));
  }
  KdaVerifyCase clone() const {
    KdaVerifyCase copy;
    copy.problem = problem.clone();
    copy.rows = rows;
    const HostTensor* from[] = {&parent, &u, &k, &k_inverse_norm, &alpha, &conv_x, &window};
    HostTensor* to[] = {&copy.parent, &copy.u,      &copy.k,     &copy.k_inverse_norm,
                        &copy.alpha,  &copy.conv_x, &copy.window};
    for (size_t i = 0; i < std::size(from); ++i) {
      if (from[i]->defined()) *to[i] = from[i]->clone();
    }
    return copy;
  }
};

inline KdaVerifyCase make_verify_case(const KdaShape& shape, const std::vector<KdaRow>& rows,
                                      uint64_t seed, int64_t capacity = 0) {
  KdaVerifyCase out;
  const int64_t T = std::max(total_tokens(rows), capacity);
  out.rows = rows;
  out.problem = make_kda_problem(shape, T, seed);
  out.problem.set_rows(rows);
  out.u = HostTensor(DType::kF32, {T, shape.HV, shape.V});
  out.k = HostTensor(shape.io, {T, shape.H, shape.K});
  out.k_inverse_norm = HostTensor(DType::kF32, {T, shape.H});
  out.alpha = HostTensor(DType::kF32, {T, shape.HV, shape.K});
  for (HostTensor* tensor : {&out.u, &out.k, &out.k_inverse_norm, &out.alpha}) fill_nan(*tensor);
  out.conv_x = HostTensor(DType::kBF16, {T, kConvChannels});
  out.window = HostTensor(DType::kBF16, {shape.slots, kConvChannels, 3});
  fill_normal(out.conv_x, seed + 20);
  fill_normal(out.window, seed + 21);
  return out;
}

/// Random parents for every row; with `inert`, some nodes hang from nobody.
inline std::vector<int32_t> random_parents(const std::vector<KdaRow>& rows, uint64_t seed,
                                           bool inert) {
  Random random(seed);
  std::vector<int32_t> parent;
  for (const KdaRow& row : rows) {
    for (int64_t i = 0; i < row.tokens; ++i) {
      const int64_t least = i == 0 || (inert && random.integer(0, 5) == 0) ? -1 : 0;
      parent.push_back(static_cast<int32_t>(least < 0 ? -1 : random.integer(0, i - 1)));
    }
  }
  return parent;
}

/// Node ids from the root to `node`; empty when it is inert.
inline std::vector<int64_t> path_of(const KdaVerifyCase& test, size_t n, int64_t node) {
  std::vector<int64_t> path;
  while (true) {
    path.insert(path.begin(), node);
    if (node == 0) return path;
    node = test.parent.defined() ? static_cast<int64_t>(test.parent.at(test.begin_of(n) + node))
                                 : node - 1;
    if (node < 0) return {};
  }
}

/// The call for tokens [begin, end) of a problem.
inline KdaParams slice_tokens(KdaProblem& problem, int64_t begin, int64_t end) {
  KdaParams p = problem.params();
  p.q = p.q.slice(0, begin, end);
  p.k = p.k.slice(0, begin, end);
  p.v = p.v.slice(0, begin, end);
  p.gate = p.gate.slice(0, begin, end);
  p.beta = p.beta.slice(0, begin, end);
  p.out = p.out.slice(0, begin, end);
  return p;
}

/// Decodes a path of row n with an f32 pool and f32 outputs; out and state of the row's slot are
/// left in the problem that comes back. `error` gets what went wrong.
inline KdaProblem decode_path(const KdaVerifyCase& test, size_t n, const std::vector<int64_t>& path,
                              const std::string& kernel, std::string& error) {
  KdaProblem steps = test.problem.clone();
  steps.state = cast_of(test.problem.state.view(), DType::kF32);
  steps.out = cast_of(test.problem.out.view(), DType::kF32);
  KdaRow row = test.rows[n];
  for (size_t i = 0; i < path.size() && error.empty(); ++i) {
    steps.set_rows({{row.slot, row.start + static_cast<int64_t>(i), 1}});
    const int64_t t = test.begin_of(n) + path[i];
    error = run_kda(KdaPhase::kDecode, slice_tokens(steps, t, t + 1), kernel);
  }
  return steps;
}

}  // namespace linestate::testing
