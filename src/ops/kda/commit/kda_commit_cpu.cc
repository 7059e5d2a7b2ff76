// Commit on the CPU: the record of the accepted path on one value head's state, in the arithmetic
// of decode.
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/commit/kda_commit_walk.h"
#include "ops/kda/kda_record.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/commit/kda_commit_cpu.cc"
#include <hwy/foreach_target.h>

#include "ops/kda/kda_math_inl.h"
#include "ops/kda/kda_row_step_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// S [V, K] <- S advanced by token t; k [K] is scratch.
void apply_token(const KdaCommitParams& p, int64_t t, int64_t j, float* k, float* S) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const TensorView& raw = p.record.k;
  const int64_t h = j / (p.state.shape[1] / raw.shape[1]);
  simd_load_run(raw.data, raw.dtype, offset_of(raw, t, h), 1, K, k);
  kda_scale_run(k, K, kda_record_k_inverse_norm(p.record, t, h));
  const float* alpha = kda_record_alpha(p.record, t, j);
  const float* u = kda_record_u(p.record, t, j);
  for (int64_t v = 0; v < V; ++v) kda_decay_and_update(alpha, k, u[v], K, S + v * K);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(apply_token);

namespace {

struct CommitScratch {
  float* S;  // [V, K]
  float* k;  // [K] k^
};

CommitScratch take_scratch(const KdaCommitParams& p, Scratch& scratch) {
  return {scratch.take<float>(p.state.shape[2] * p.state.shape[3]),
          scratch.take<float>(p.state.shape[3])};
}

int64_t scratch_bytes(const KdaCommitParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

}  // namespace

int64_t kda_commit_cpu_workspace(const KdaCommitParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_commit_cpu(const KdaCommitParams& params, const ExecContext& context) {
  const int64_t HV = params.state.shape[1];
  const int64_t N = params.rows.slot.shape[0];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, N * (HV + 1), [&](int64_t task, int thread) {
    const int64_t n = task / (HV + 1);
    const int64_t j = task % (HV + 1);
    if (j == HV) return commit_window(params, n);
    Scratch memory = thread_scratch(context, thread, bytes);
    const CommitScratch scratch = take_scratch(params, memory);
    commit_kda_head(params, context, n, j, scratch.S, [&](int64_t t, float* S) {
      HWY_DYNAMIC_DISPATCH(apply_token)(params, t, j, scratch.k, S);
    });
  });
  report_commit_snapshots(accepted_nodes(params), params.snapshots, params.taken, context.status);
  return {};
}

}  // namespace linestate
#endif
