// KDA over draft tokens: outputs for every node of a chain or tree from its own path, the committed
// state untouched, and a compact record from which commit makes the state of an accepted node.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/draft_tree.h"
#include "linestate/ops/kda.h"

namespace linestate {

/// What verify remembers of each draft token. Addressed by packed token, so it belongs to the batch
/// row and never to a slot. Contiguous. Bytes a token: HV*V*4 + H*K*io + H*4 + HV*K*4.
struct KdaRecord {
  TensorView u;               // [T, HV, V] f32, the correction beta * (v - S k^)
  TensorView k;               // [T, H, K] dtype of k, as it came in
  TensorView k_inverse_norm;  // [T, H] f32, 1 when qk_normalized
  TensorView alpha;           // [T, HV, K] f32, this node's own decay exp(g), not cumulative
};

struct KdaVerifyParams {
  KdaParams kda;  // rows, inputs, gate, out as in prefill; state is only read; no snapshots
  ConstTensorView parent;  // [T] i32 | i64, see draft_tree.h; undefined = chains
  KdaRecord record;        // written for every node of live rows; overlaps nothing else
};

/// num_valid nodes a row count; nodes behind them and inert nodes give zero output.
/// The state that node i sees is that of its parent's path, formed by products of alpha.
/// Errors: as kda_prefill; more than kMaxVerifyNodes tokens in a row; parent[i] >= i.
Status kda_verify(const KdaVerifyParams& params, const ExecContext& context,
                  std::string_view kernel = kAutoKernel);
Result<int64_t> kda_verify_workspace_bytes(const KdaVerifyParams& params,
                                           const ExecContext& context,
                                           std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_verify(const KdaVerifyParams& params, const ExecContext& context,
                                std::string_view kernel = kAutoKernel);

struct KdaCommitParams {
  RowTensors rows;                // of the verify call
  ConstTensorView parent;         // of the verify call
  ConstTensorView accepted_node;  // [N] i32 | i64; -1 = none. A chain with c accepted: c - 1
  KdaRecord record;               // of the verify call; only read
  ConstTensorView conv_x;         // [T, channels] inputs of the convolution; undefined = no window

  TensorView state;   // [P, HV, V, K] in place
  TensorView window;  // [P, channels, W-1] in place; defined exactly when conv_x is

  SnapshotPlan snapshots;  // positions resolved to the node of that depth on the accepted path
  TensorView taken;        // [M] u8: 1 where the snapshot was taken; undefined = not wanted
  int32_t layer = 0;       // only for error reports
};

/// State and window become what decoding the tokens root..accepted_node gives; they move together.
/// accepted_node = -1 leaves every bit (also of a fresh row). A node outside the row's valid nodes,
/// or an inert one: kInvalidArgument on the CPU, before anything is written; on a device the row is
/// skipped and kBadAcceptedNode raised. With an f32 pool `ref` verify + commit gives the bits of
/// `ref` decode steps.
Status kda_commit(const KdaCommitParams& params, const ExecContext& context,
                  std::string_view kernel = kAutoKernel);
Result<int64_t> kda_commit_workspace_bytes(const KdaCommitParams& params,
                                           const ExecContext& context,
                                           std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_commit(const KdaCommitParams& params, const ExecContext& context,
                                std::string_view kernel = kAutoKernel);

/// Convolution of draft tokens: the history of a node is its path's inputs behind the slot's
/// window. The window is only read; params.snapshots must be undefined.
struct CausalConv1dVerifyParams {
  CausalConv1dParams conv;  // rows with query_start_loc, x [T, channels]
  ConstTensorView parent;   // [T] i32 | i64; undefined = chains
};

Status causal_conv1d_verify(const CausalConv1dVerifyParams& params, const ExecContext& context,
                            std::string_view kernel = kAutoKernel);
Result<int64_t> causal_conv1d_verify_workspace_bytes(const CausalConv1dVerifyParams& params,
                                                     const ExecContext& context,
                                                     std::string_view kernel = kAutoKernel);
KernelChoice explain_causal_conv1d_verify(const CausalConv1dVerifyParams& params,
                                          const ExecContext& context,
                                          std::string_view kernel = kAutoKernel);

}  // namespace linestate
