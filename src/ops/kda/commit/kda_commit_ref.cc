// S <- S diag(alpha) + u k^T for every token of the accepted path, rounded to f32 after each: the
// bits of `ref` decode with an f32 pool.
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/commit/kda_commit_walk.h"
#include "ops/kda/kda_record.h"
#include "ops/kda/kda_ref_step.h"

namespace linestate {
namespace {

struct RefScratch {
  float* S;   // [V, K]
  double* k;  // [K] k^
};

RefScratch take_scratch(const KdaCommitParams& p, Scratch& scratch) {
  return {scratch.take<float>(p.state.shape[2] * p.state.shape[3]),
          scratch.take<double>(p.state.shape[3])};
}

int64_t scratch_bytes(const KdaCommitParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void apply_token(const KdaCommitParams& p, int64_t t, int64_t j, double* k, float* S) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const ConstTensorView raw = p.record.k;
  const int64_t h = j / (p.state.shape[1] / raw.shape[1]);
  const auto inverse = static_cast<double>(kda_record_k_inverse_norm(p.record, t, h));
  for (int64_t i = 0; i < K; ++i) {
    k[i] = static_cast<double>(load_f32(raw.data, raw.dtype, offset_of(raw, t, h, i))) * inverse;
  }
  const float* alpha = kda_record_alpha(p.record, t, j);
  const float* u = kda_record_u(p.record, t, j);
  for (int64_t v = 0; v < V; ++v) update_kda_ref_row(alpha, k, u[v], K, S + v * K);
}

}  // namespace

int64_t kda_commit_ref_workspace(const KdaCommitParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_commit_ref(const KdaCommitParams& params, const ExecContext& context) {
  const int64_t HV = params.state.shape[1];
  const int64_t N = params.rows.slot.shape[0];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, N * HV, [&](int64_t task, int thread) {
    Scratch memory = thread_scratch(context, thread, bytes);
    const RefScratch scratch = take_scratch(params, memory);
    const int64_t j = task % HV;
    commit_kda_head(params, context, task / HV, j, scratch.S,
                    [&](int64_t t, float* S) { apply_token(params, t, j, scratch.k, S); });
  });
  parallel_for(context, N, [&](int64_t n, int) { commit_window(params, n); });
  report_commit_snapshots(accepted_nodes(params), params.snapshots, params.taken, context.status);
  return {};
}

}  // namespace linestate
