// Buffered decode. A slot keeps its state S0 as a checkpoint and up to R-1 pending records; the
// R-th token flushes them into S0. Reading S0 once and writing it once in R tokens is what makes it
// cheaper than plain decode. The state itself is never rebuilt (dual form):
//
//   KDA, c records pending, Gamma = product of decays since the checkpoint, kappa_j = k^_j decayed
//   to now, alpha = exp(g) of this token:
//     Gamma <- Gamma * alpha ;  kappa_j <- kappa_j * alpha
//     p = S0 (Gamma k^) + sum_j (kappa_j . k^) u_j        u = beta * (v - p)
//     o = scale * (S0 (Gamma q^) + sum_j (kappa_j . q^) u_j + (k^ . q^) u)
//     append (u, k^), or flush:  S0 <- S0 diag(Gamma) + sum_j u_j kappa_j^T + u k^T
//   Lightning: the same with k_j, v_j and powers of lambda; nothing is rewritten.
//
// Protocol. One cursor a slot, shared by all layers. Each forward: replay_step_begin once (reads
// the cursors into the step's tensors and advances them), then every layer's *_decode_replay with
// those tensors. A captured graph therefore replays with other slots, lengths and flushes.
// replay_fold empties rings without a token. Prefill, verify, copy, snapshot and pack need folded
// slots; the backends and the pool fold by themselves. R = 1 is plain decode, bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "linestate/ops/kda.h"
#include "linestate/ops/lightning.h"

namespace linestate {

/// Longest ring R. One token in R writes the state.
inline constexpr int64_t kMaxReplayLength = 64;

/// Pending records of one layer. R-1 may be 0; the tensors then have no elements.
struct ReplayRing {
  TensorView keys;    // KDA: kappa [P, HV, R-1, K]; Lightning: k [P, H, R-1, K]; f32 | f16
  TensorView values;  // KDA: u [P, HV, R-1, V]; Lightning: v [P, H, R-1, V]; dtype of keys
  TensorView gamma;   // KDA: [P, HV, K] f32; Lightning: undefined
};

struct ReplayStepParams {
  RowTensors rows;              // decode rows: slot, start (0 = the ring is empty), num_valid
  ConstTensorView force_flush;  // [N] u8 | bool, non-zero = flush at this token; undefined = none
  int64_t ring_length = 1;      // R
  TensorView cursor;            // [P] i32, pending records of every slot; advanced in place
  TensorView pending;           // [N] i32 out: records before this token
  TensorView flush;             // [N] u8 out: 1 = this token flushes
};

/// Rows that are padding or have num_valid = 0 move no cursor, except that a fresh row without its
/// token empties the ring, as it zeroes the state. Errors: kInvalidArgument (shape, dtype, a cursor
/// outside [0, R) on the CPU).
Status replay_step_begin(const ReplayStepParams& params, const ExecContext& context,
                         std::string_view kernel = kAutoKernel);
KernelChoice explain_replay_step_begin(const ReplayStepParams& params, const ExecContext& context,
                                       std::string_view kernel = kAutoKernel);

struct KdaReplayParams {
  KdaParams kda;            // as kda_decode; no snapshots
  ReplayRing ring;          // updated in place
  ConstTensorView pending;  // [N] i32 from replay_step_begin
  ConstTensorView flush;    // [N] u8 from replay_step_begin
};

/// Within the tolerance of the ring's dtype of kda_decode; with R = 1 its bits.
Status kda_decode_replay(const KdaReplayParams& params, const ExecContext& context,
                         std::string_view kernel = kAutoKernel);
Result<int64_t> kda_decode_replay_workspace_bytes(const KdaReplayParams& params,
                                                  const ExecContext& context,
                                                  std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_decode_replay(const KdaReplayParams& params, const ExecContext& context,
                                       std::string_view kernel = kAutoKernel);

struct LightningReplayParams {
  LightningParams lightning;  // as lightning_decode; no snapshots
  ReplayRing ring;
  ConstTensorView pending;
  ConstTensorView flush;
};

Status lightning_decode_replay(const LightningReplayParams& params, const ExecContext& context,
                               std::string_view kernel = kAutoKernel);
Result<int64_t> lightning_decode_replay_workspace_bytes(const LightningReplayParams& params,
                                                        const ExecContext& context,
                                                        std::string_view kernel = kAutoKernel);
KernelChoice explain_lightning_decode_replay(const LightningReplayParams& params,
                                             const ExecContext& context,
                                             std::string_view kernel = kAutoKernel);

/// One layer of replay_fold. `slopes` [H] f32 marks a Lightning layer; undefined = KDA.
struct ReplayFoldLayer {
  TensorView state;
  ReplayRing ring;
  ConstTensorView slopes;
  int32_t layer = 0;
};

struct ReplayFoldParams {
  std::span<const ReplayFoldLayer> layers;  // all layers that share the cursor
  ConstTensorView slots;                    // [n] i32 | i64; padding is skipped
  TensorView cursor;                        // [P] i32; the slots' cursors become 0 at the end
};

/// S0 takes the pending records of the slots, all layers, and the rings are empty. Slots without
/// pending records keep every bit.
Status replay_fold(const ReplayFoldParams& params, const ExecContext& context,
                   std::string_view kernel = kAutoKernel);
KernelChoice explain_replay_fold(const ReplayFoldParams& params, const ExecContext& context,
                                 std::string_view kernel = kAutoKernel);

}  // namespace linestate
