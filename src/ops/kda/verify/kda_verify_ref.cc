// The recurrence of include/linestate/ops/kda.h from every node's parent: for each node the bits of
// decoding its path token by token with an f32 pool.
#include <algorithm>

#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/kda/kda_record.h"
#include "ops/kda/kda_ref_step.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/verify/kda_verify_kernels.h"

namespace linestate {
namespace {

struct RefScratch {
  KdaRefToken* tokens;  // [nodes]
  float* s;             // [1 + nodes, K] one row of S: committed, then behind every node
};

RefScratch take_scratch(const KdaParams& p, Scratch& scratch) {
  const int64_t nodes = kMaxVerifyNodes;  // not the batch: scratch must not grow with it
  RefScratch out{scratch.take<KdaRefToken>(nodes),
                 scratch.take<float>((1 + nodes) * p.state.shape[3])};
  for (int64_t i = 0; i < nodes; ++i) {
    const KdaRefToken token = take_kda_ref_token(p, scratch);
    if (out.tokens != nullptr) out.tokens[i] = token;
  }
  return out;
}

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void record_token(const KdaVerifyParams& params, int64_t t, int64_t j, const KdaRefToken& token) {
  const int64_t group = params.kda.v.shape[1] / params.kda.q.shape[1];
  const int64_t K = params.kda.k.shape[2];
  std::copy(token.alpha, token.alpha + K, kda_record_alpha(params.record, t, j));
  if (j % group != 0) return;
  record_kda_key(params.record, params.kda.k, t, j / group, token.k_inverse_norm);
}

// Row v of the state through all nodes, each from its parent's.
void verify_state_row(const KdaVerifyParams& params, const RowInfo& row, const DraftTree& tree,
                      int64_t j, int64_t v, const RefScratch& scratch) {
  const KdaParams& p = params.kda;
  const int64_t K = p.state.shape[3];
  for (int64_t k = 0; k < K; ++k) {
    const int64_t at = row.fresh ? 0 : offset_of(p.state, row.slot, j, v, k);
    scratch.s[k] = row.fresh ? 0.0f : load_f32(p.state.data, p.state.dtype, at);
  }
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    if (tree.inert(i)) continue;
    const int64_t t = row.token_begin + i;
    const float* before = scratch.s + (1 + tree.parent_of(i)) * K;
    float* s = scratch.s + (1 + i) * K;
    std::copy(before, before + K, s);
    const double value = load_f32(p.v.data, p.v.dtype, offset_of(p.v, t, j, v));
    float* u = kda_record_u(params.record, t, j) + v;
    const double o = step_kda_ref_row(scratch.tokens[i], K, value, s, u);
    store_f32(p.out.data, p.out.dtype, offset_of(p.out, t, j, v), static_cast<float>(o));
  }
}

void verify_head(const KdaVerifyParams& params, int64_t n, int64_t j, const RefScratch& scratch) {
  const KdaParams& p = params.kda;
  const RowInfo row = read_prefill_row(p.rows, n, p.state.shape[0]);
  clear_kda_out(p, row.token_begin, row.token_begin + row.tokens, j);
  if (row.valid == 0) return;
  const DraftTree tree(params.parent, row);
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    if (tree.inert(i)) continue;
    read_kda_ref_token(p, row.token_begin + i, j, scratch.tokens[i]);
    record_token(params, row.token_begin + i, j, scratch.tokens[i]);
  }
  for (int64_t v = 0; v < p.state.shape[2]; ++v) verify_state_row(params, row, tree, j, v, scratch);
}

}  // namespace

int64_t kda_verify_ref_workspace(const KdaVerifyParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params.kda);
}

Status kda_verify_ref(const KdaVerifyParams& params, const ExecContext& context) {
  const KdaParams& p = params.kda;
  const int64_t HV = p.v.shape[1];
  const int64_t bytes = scratch_bytes(p);
  parallel_for(context, p.rows.slot.shape[0] * HV, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    verify_head(params, task / HV, task % HV, take_scratch(p, scratch));
  });
  for (int64_t j = 0; j < HV; ++j) clear_kda_out(p, end_of_rows(p.rows), p.q.shape[0], j);
  raise_if_not_finite(context, p.out);
  return {};
}

}  // namespace linestate
