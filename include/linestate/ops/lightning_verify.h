// Lightning attention over draft tokens. The record of a node is its k and v.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/ops/draft_tree.h"
#include "linestate/ops/lightning.h"

namespace linestate {

/// Addressed by packed token, so it belongs to the batch row and never to a slot. Contiguous.
struct LightningRecord {
  TensorView k;  // [T, H, D] dtype of k
  TensorView v;  // [T, H, D] dtype of v
};

struct LightningVerifyParams {
  LightningParams lightning;  // rows, inputs, out as in prefill; state is only read; no snapshots
  ConstTensorView parent;     // [T] i32 | i64, see draft_tree.h; undefined = chains
  LightningRecord record;     // written for every node of live rows; overlaps nothing else
};

/// Semantics and errors as kda_verify.
Status lightning_verify(const LightningVerifyParams& params, const ExecContext& context,
                        std::string_view kernel = kAutoKernel);
Result<int64_t> lightning_verify_workspace_bytes(const LightningVerifyParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel = kAutoKernel);
KernelChoice explain_lightning_verify(const LightningVerifyParams& params,
                                      const ExecContext& context,
                                      std::string_view kernel = kAutoKernel);

struct LightningCommitParams {
  RowTensors rows;                // of the verify call
  ConstTensorView parent;         // of the verify call
  ConstTensorView accepted_node;  // [N] i32 | i64; -1 = none
  LightningRecord record;         // of the verify call; only read
  ConstTensorView slopes;         // [H] f32

  TensorView state;        // [P, H, K, V] in place
  SnapshotPlan snapshots;  // as kda_commit
  TensorView taken;        // [M] u8; undefined = not wanted
  int32_t layer = 0;       // only for error reports
};

/// Semantics and errors as kda_commit.
Status lightning_commit(const LightningCommitParams& params, const ExecContext& context,
                        std::string_view kernel = kAutoKernel);
Result<int64_t> lightning_commit_workspace_bytes(const LightningCommitParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel = kAutoKernel);
KernelChoice explain_lightning_commit(const LightningCommitParams& params,
                                      const ExecContext& context,
                                      std::string_view kernel = kAutoKernel);

}  // namespace linestate
