// Verify on the CPU. Rows of the state do not depend on each other, so one V row of it goes through
// all nodes, each starting from its parent's copy: the state is read once and never written, and
// the copies of a row stay in the caches.
#include <algorithm>

#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/kda/kda_record.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/verify/kda_verify_kernels.h"
#include "ops/kda/verify/kda_verify_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/verify/kda_verify_cpu.cc"
#include <hwy/foreach_target.h>

#include "ops/kda/kda_math_inl.h"
#include "ops/kda/kda_row_step_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

HWY_INLINE void read_nodes(const KdaVerifyParams& params, const RowInfo& row, const DraftTree& tree,
                           int64_t j, const KdaVerifyScratch& x) {
  const KdaParams& p = params.kda;
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const int64_t group = p.v.shape[1] / p.q.shape[1];
  const KdaGateHead head = read_kda_gate_head(p, j, x.dt_bias);
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    if (tree.inert(i)) continue;
    const int64_t t = row.token_begin + i;
    KdaHeadToken token{x.alpha + i * K, x.k + i * K, x.q + i * K, x.v + i * V};
    read_kda_head_token(p, head, t, j, token);
    x.beta[i] = token.beta;
    simd_load_run(token.alpha, DType::kF32, 0, 1, K, kda_record_alpha(params.record, t, j));
    if (j % group == 0) record_kda_key(params.record, p.k, t, j / group, token.k_inverse_norm);
  }
}

// One row of the state through all nodes.
HWY_INLINE void verify_state_row(const KdaVerifyParams& params, const RowInfo& row,
                                 const DraftTree& tree, int64_t j, int64_t v,
                                 const KdaVerifyScratch& x) {
  const KdaParams& p = params.kda;
  const TensorView& state = p.state;
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  if (row.fresh) {
    std::fill(x.s, x.s + K, 0.0f);
  } else {
    simd_load_run(state.data, state.dtype, offset_of(state, row.slot, j, v), state.stride[3], K,
                  x.s);
  }
  OverflowWatch<float> unused;
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    if (tree.inert(i)) continue;
    const int64_t t = row.token_begin + i;
    const float* before = x.s + (1 + tree.parent_of(i)) * K;
    float* s = x.s + (1 + i) * K;
    const float* k = x.k + i * K;
    float predicted = 0.0f, o = 0.0f;
    kda_decay_and_predict<1>(x.alpha + i * K, k, K, before, K, s, &predicted);
    const float u = x.beta[i] * (x.v[i * V + v] - predicted);
    kda_update_and_read<1>(k, x.q + i * K, &u, K, s, s, K, &o, unused);
    kda_record_u(params.record, t, j)[v] = u;
    store_f32(p.out.data, p.out.dtype, offset_of(p.out, t, j, v), o);
  }
}

// The nodes of one row, on one head.
void verify_nodes(const KdaVerifyParams& params, const RowInfo& row, const DraftTree& tree,
                  int64_t j, const KdaVerifyScratch& x) {
  read_nodes(params, row, tree, j, x);
  for (int64_t v = 0; v < params.kda.state.shape[2]; ++v) {
    verify_state_row(params, row, tree, j, v, x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(verify_nodes);

namespace {

KdaVerifyScratch take_scratch(const KdaParams& p, Scratch& scratch) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const int64_t nodes = kMaxVerifyNodes;  // not the batch: backends size scratch without one
  KdaVerifyScratch out;
  out.dt_bias = scratch.take<float>(K);
  out.alpha = scratch.take<float>(nodes * K);
  out.k = scratch.take<float>(nodes * K);
  out.q = scratch.take<float>(nodes * K);
  out.v = scratch.take<float>(nodes * V);
  out.beta = scratch.take<float>(nodes);
  out.s = scratch.take<float>((1 + nodes) * K);
  return out;
}

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void verify_head(const KdaVerifyParams& params, int64_t n, int64_t j, const KdaVerifyScratch& x) {
  const KdaParams& p = params.kda;
  const RowInfo row = read_prefill_row(p.rows, n, p.state.shape[0]);
  clear_kda_out(p, row.token_begin, row.token_begin + row.tokens, j);
  if (row.valid == 0) return;
  const DraftTree tree(params.parent, row);
  HWY_DYNAMIC_DISPATCH(verify_nodes)(params, row, tree, j, x);
}

}  // namespace

int64_t kda_verify_cpu_workspace(const KdaVerifyParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params.kda);
}

Status kda_verify_cpu(const KdaVerifyParams& params, const ExecContext& context) {
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
#endif
