// Lightning attention in float64, one token at a time, as the paper writes it:
//   S <- lambda * S + k v^T,   o = scale * S^T q,   lambda = exp(-slope).
// S is rounded to f32 after every token, so that where a call ends cannot be seen in the numbers.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "cpu/scratch.h"
#include "linestate/exec_context.h"
#include "linestate/ops/lightning.h"
#include "ops/common/snapshot_access.h"

namespace linestate {

/// Working memory of one head.
struct LightningRefHead {
  float* S;     // [K, V]
  float* q;     // [K]
  float* k;     // [K]
  float* v;     // [V]
  float* o;     // [V]
  double* sum;  // [V]
};

LightningRefHead cut_lightning_ref_head(Scratch& scratch, int64_t dim);
/// Scratch of one thread for heads of dimension `dim`.
int64_t lightning_ref_scratch_bytes(int64_t dim);

/// exp(-slope) of a head.
double lightning_ref_lambda(const ConstTensorView& slopes, int64_t head);

/// One entry of S <- lambda S + k v^T.
inline float lightning_ref_entry(double lambda, float S, float k, float v) {
  return static_cast<float>(lambda * static_cast<double>(S) +
                            static_cast<double>(k) * static_cast<double>(v));
}

/// S <- lambda S + k v^T.
void lightning_ref_update(const LightningRefHead& x, int64_t dim, double lambda);
/// o = scale * S^T q.
void lightning_ref_output(const LightningRefHead& x, int64_t dim, double scale);

/// One head of one row: its valid tokens, the snapshots wanted on the way, the final state, zero
/// output for the rest.
void lightning_ref_head(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t row_index, int64_t head, Scratch scratch);

}  // namespace linestate
