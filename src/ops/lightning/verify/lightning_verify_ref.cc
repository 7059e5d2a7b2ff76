// Columns of S do not see each other, so one column after the other is followed through the tree:
// every node keeps its column, and a child starts from its parent's.
#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_record.h"
#include "ops/lightning/lightning_ref.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"

namespace linestate {
namespace {

struct Buffers {
  float* q;       // [nodes, K]
  float* k;       // [nodes, K]
  float* v;       // [nodes, V]
  float* o;       // [nodes, V]
  float* before;  // [K], the column of the committed state
  float* column;  // [nodes, K], the column behind every node
};

Buffers cut(Scratch& scratch, const LightningParams& params) {
  const int64_t dim = params.q.shape[2];
  const int64_t nodes = kMaxVerifyNodes;  // not the batch: scratch must not grow with it
  Buffers x;
  x.q = scratch.take<float>(nodes * dim);
  x.k = scratch.take<float>(nodes * dim);
  x.v = scratch.take<float>(nodes * dim);
  x.o = scratch.take<float>(nodes * dim);
  x.before = scratch.take<float>(dim);
  x.column = scratch.take<float>(nodes * dim);
  return x;
}

int64_t scratch_bytes(const LightningParams& params) {
  Scratch counter;
  cut(counter, params);
  return counter.bytes();
}

void load_column(const TensorView& state, const RowInfo& row, int64_t head, int64_t j, float* s) {
  for (int64_t i = 0; i < state.shape[2]; ++i) {
    s[i] = row.fresh ? 0.0f
                     : load_f32(state.data, state.dtype, offset_of(state, row.slot, head, i, j));
  }
}

// s <- lambda s + k v_j along every edge, o_j = scale * s . q at every node.
void follow_column(const DraftTree& tree, int64_t dim, int64_t j, double lambda, double scale,
                   const Buffers& x) {
  for (int64_t node = 0; node < tree.nodes(); ++node) {
    if (tree.inert(node)) continue;
    const int64_t parent = tree.parent_of(node);
    const float* from = parent < 0 ? x.before : x.column + parent * dim;
    float* s = x.column + node * dim;
    double sum = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
      s[i] = lightning_ref_entry(lambda, from[i], x.k[node * dim + i], x.v[node * dim + j]);
      sum += static_cast<double>(s[i]) * static_cast<double>(x.q[node * dim + i]);
    }
    x.o[node * dim + j] = static_cast<float>(scale * sum);
  }
}

void verify_head(const LightningVerifyParams& verify, const RowInfo& row, int64_t head,
                 Scratch scratch) {
  const LightningParams& params = verify.lightning;
  zero_tokens(params.out, head, row.token_begin + row.valid, row.token_begin + row.tokens);
  if (row.valid == 0) return;
  record_nodes(verify, row, head);
  const DraftTree tree(verify.parent, row);
  const int64_t dim = params.q.shape[2];
  const Buffers x = cut(scratch, params);
  for (int64_t node = 0; node < tree.nodes(); ++node) {
    load_token(params.q, row.token_begin + node, head, x.q + node * dim);
    load_token(params.k, row.token_begin + node, head, x.k + node * dim);
    load_token(params.v, row.token_begin + node, head, x.v + node * dim);
  }
  const double lambda = lightning_ref_lambda(params.slopes, head);
  for (int64_t j = 0; j < dim; ++j) {
    load_column(params.state, row, head, j, x.before);
    follow_column(tree, dim, j, lambda, static_cast<double>(params.scale), x);
  }
  for (int64_t node = 0; node < tree.nodes(); ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      zero_tokens(params.out, head, t, t + 1);
    } else {
      store_token(params.out, t, head, x.o + node * dim);
    }
  }
}

}  // namespace

int64_t lightning_verify_ref_workspace_bytes(const LightningVerifyParams& params,
                                             const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params.lightning);
}

Status lightning_verify_ref(const LightningVerifyParams& verify, const ExecContext& context) {
  const LightningParams& params = verify.lightning;
  const int64_t heads = params.q.shape[1];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const RowInfo row = read_prefill_row(params.rows, task / heads, params.state.shape[0]);
    verify_head(verify, row, task % heads, thread_scratch(context, thread, bytes));
  });
  for (int64_t h = 0; h < heads; ++h) {
    zero_tokens(params.out, h, end_of_rows(params.rows), params.out.shape[0]);
  }
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
