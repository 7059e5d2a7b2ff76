// Verify and commit calls over draft trees, and the decode runs that they must equal.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "linestate/ops/lightning_verify.h"
#include "ops/draft_tree/random_tree_case.h"
#include "testing/lightning_case.h"

namespace linestate::testing {

/// Calls with a workspace of exactly the asked size, filled with NaN.
template <typename Params>
Status run_sized(Status (*op)(const Params&, const ExecContext&, std::string_view),
                 Result<int64_t> (*sizer)(const Params&, const ExecContext&, std::string_view),
                 const Params& params, const char* kernel, int threads = 1,
                 DeviceStatus* status = nullptr) {
  ExecContext context;
  context.num_threads = threads;
  context.status = status;
  const Result<int64_t> bytes = sizer(params, context, kernel);
  if (!bytes.ok()) return bytes.status();
  HostTensor workspace(DType::kF32, {*bytes / 4 + 1});
  fill_nan(workspace);
  context.workspace = {workspace.data(), *bytes};
  return op(params, context, kernel);
}

struct SnapshotEntry {
  int32_t row = 0;
  int64_t position = 0;
  int32_t slot = 0;
};

struct SnapshotTensors {
  HostTensor row, position, slot;
  explicit SnapshotTensors(const std::vector<SnapshotEntry>& entries) {
    std::vector<int32_t> rows, slots;
    std::vector<int64_t> positions;
    for (const SnapshotEntry& entry : entries) {
      rows.push_back(entry.row);
      positions.push_back(entry.position);
      slots.push_back(entry.slot);
    }
    row = i32_tensor(rows);
    position = i64_tensor(positions);
    slot = i32_tensor(slots);
  }
  SnapshotPlan view() const { return {row, position, slot}; }
};

class LightningDraftCase {
 public:
  static constexpr int64_t kGuard = 2;  // tokens of canary around the record

  LightningCase base;
  std::vector<std::vector<int32_t>> trees;  // parents of every row
  HostTensor parent;
  HostTensor record_k, record_v;  // with guards

  LightningDraftCase(const LightningShape& shape, std::vector<std::vector<int32_t>> trees_in)
      : base(shape), trees(std::move(trees_in)) {
    std::vector<int32_t> parents;
    for (const std::vector<int32_t>& tree : trees) {
      parents.insert(parents.end(), tree.begin(), tree.end());
    }
    parents.resize(static_cast<size_t>(base.shape.capacity), -7);
    parent = i32_tensor(parents);
    const std::vector<int64_t> size{base.shape.capacity + 2 * kGuard, base.shape.heads,
                                    base.shape.dim};
    record_k = HostTensor(base.shape.io, size);
    record_v = HostTensor(base.shape.io, size);
    fill_nan(record_k);
    fill_nan(record_v);
  }

  /// Chains for every row.
  explicit LightningDraftCase(const LightningShape& shape)
      : LightningDraftCase(shape, chains(shape)) {}

  LightningRecord record() {
    return {record_k.view().slice(0, kGuard, kGuard + base.shape.capacity),
            record_v.view().slice(0, kGuard, kGuard + base.shape.capacity)};
  }
  LightningVerifyParams verify_params() { return {base.params, parent.view(), record()}; }
  LightningCommitParams commit_params(const HostTensor& accepted, HostTensor& state) {
    LightningCommitParams params;
    params.rows = base.params.rows;
    params.parent = parent;
    params.accepted_node = accepted;
    params.record = record();
    params.slopes = base.slopes;
    params.state = state;
    return params;
  }

  Status verify(const char* kernel, int threads = 1) {
    return run_sized(lightning_verify, lightning_verify_workspace_bytes, verify_params(), kernel,
                     threads, &base.status);
  }
  Status commit(const std::vector<int32_t>& accepted, HostTensor& state, const char* kernel,
                int threads = 1) {
    const HostTensor nodes = i32_tensor(accepted);
    return run_sized(lightning_commit, lightning_commit_workspace_bytes,
                     commit_params(nodes, state), kernel, threads, &base.status);
  }

  bool live(size_t n) const {
    const int32_t slot = base.shape.rows[n].slot;
    return slot >= 0 && slot < base.shape.slots;
  }
  int64_t valid(size_t n) const {
    const LightningRow& row = base.shape.rows[n];
    return row.num_valid < 0 ? row.tokens : row.num_valid;
  }

  /// Decodes row n's tokens `path` one after the other on `pool`; the outputs [path, H, D].
  HostTensor decode_path(size_t n, const std::vector<int64_t>& path, HostTensor& pool,
                         const char* kernel) const {
    const LightningRow& row = base.shape.rows[n];
    HostTensor out(base.shape.out,
                   {static_cast<int64_t>(path.size()), base.shape.heads, base.shape.dim});
    for (size_t i = 0; i < path.size(); ++i) {
      LightningShape shape = base.shape;
      shape.rows = {{row.slot, row.start + static_cast<int64_t>(i), 1}};
      shape.slots = 1;  // its own pool is not used
      shape.capacity = 0;
      LightningCase step(shape);
      const int64_t at = base.token_of(n) + path[i];
      step.params.q = base.q.view().slice(0, at, at + 1);
      step.params.k = base.k.view().slice(0, at, at + 1);
      step.params.v = base.v.view().slice(0, at, at + 1);
      step.params.out = out.view().slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
      step.params.slopes = base.slopes;
      step.params.state = pool;
      EXPECT_EQ(run_lightning(lightning_decode, lightning_decode_workspace_bytes, step, kernel)
                    .to_string(),
                "ok");
    }
    return out;
  }

  static std::vector<std::vector<int32_t>> chains(const LightningShape& shape) {
    std::vector<std::vector<int32_t>> out;
    for (const LightningRow& row : shape.rows) {
      out.emplace_back();
      for (int32_t i = 0; i < row.tokens; ++i) out.back().push_back(i - 1);
    }
    return out;
  }
  static std::vector<std::vector<int32_t>> random(const LightningShape& shape, uint64_t seed,
                                                  bool inert) {
    Random generator(seed);
    std::vector<std::vector<int32_t>> out;
    for (const LightningRow& row : shape.rows) {
      out.push_back(random_parents(generator, row.tokens, inert));
    }
    return out;
  }
};

}  // namespace linestate::testing
