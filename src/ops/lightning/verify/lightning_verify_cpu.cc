// All nodes of a row from one pass over the state. Node i at depth d_i (the root's is 1) sees the
// committed state S0 and the nodes a on its path, itself included:
//   o_i = scale * (lambda^d_i S0^T q_i + sum_a lambda^(d_i - d_a) (q_i . k_a) v_a)
// Every power of lambda is exp(-slope * m) with m >= 0, computed in double and rounded once.
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/avx2.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "cpu/small_matmul.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_decay.h"
#include "ops/lightning/lightning_record.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"

namespace linestate {
namespace {

constexpr int64_t kRowTile = 4;      // of small_matmul
constexpr int64_t kColumnTile = 16;  // of small_matmul

struct Buffers {
  int64_t rows;     // nodes of the largest row, whole tiles
  int64_t columns;  // the same for columns
  float* q;         // [rows, D]
  float* q_decay;   // [rows, D], q_i * scale * lambda^d_i
  float* kT;        // [D, columns]
  float* v;         // [rows, D]
  float* k;         // [D]
  float* A;         // [rows, columns], q_i . k_a
  float* o;         // [rows, D]
  float* S;         // [K, V], used when the pool is not dense f32
  float* scaled;    // [nodes + 1], scale * lambda^m
};

Buffers cut(Scratch& scratch, const LightningParams& params) {
  const int64_t dim = params.q.shape[2];
  const int64_t nodes = kMaxVerifyNodes;  // not the batch: scratch must not grow with it
  Buffers x;
  x.rows = round_up(nodes, kRowTile);
  x.columns = round_up(nodes, kColumnTile);
  x.q = scratch.take<float>(x.rows * dim);
  x.q_decay = scratch.take<float>(x.rows * dim);
  x.kT = scratch.take<float>(dim * x.columns);
  x.v = scratch.take<float>(x.rows * dim);
  x.k = scratch.take<float>(dim);
  x.A = scratch.take<float>(x.rows * x.columns);
  x.o = scratch.take<float>(x.rows * dim);
  x.S = scratch.take<float>(dim * dim);
  x.scaled = scratch.take<float>(nodes + 1);
  return x;
}

int64_t scratch_bytes(const LightningParams& params) {
  Scratch counter;
  cut(counter, params);
  return counter.bytes();
}

// Inert nodes get rows too, which nobody reads.
void load_nodes(const LightningParams& params, const RowInfo& row, int64_t head,
                const DraftTree& tree, const Buffers& x) {
  const int64_t dim = params.q.shape[2];
  const int64_t nodes = tree.nodes();
  const int64_t columns = round_up(nodes, kColumnTile);
  std::fill(x.kT, x.kT + dim * columns, 0.0f);
  for (int64_t i = 0; i < nodes; ++i) {
    load_token(params.q, row.token_begin + i, head, x.q + i * dim);
    load_token(params.k, row.token_begin + i, head, x.k);
    load_token(params.v, row.token_begin + i, head, x.v + i * dim);
    const float decay = x.scaled[tree.inert(i) ? 0 : tree.depth(i)];
    for (int64_t d = 0; d < dim; ++d) {
      x.q_decay[i * dim + d] = x.q[i * dim + d] * decay;
      x.kT[d * columns + i] = x.k[d];
    }
  }
  const int64_t padded = round_up(nodes, kRowTile);
  std::fill(x.q + nodes * dim, x.q + padded * dim, 0.0f);
  std::fill(x.q_decay + nodes * dim, x.q_decay + padded * dim, 0.0f);
}

LINESTATE_INLINE void add_scaled_body(const float* __restrict v, float a, int64_t dim,
                                      float* __restrict o) {
  for (int64_t d = 0; d < dim; ++d) o[d] += a * v[d];
}

LINESTATE_AVX2 void add_scaled_avx2(const float* v, float a, int64_t dim, float* o) {
  add_scaled_body(v, a, dim, o);
}

void add_scaled(const float* v, float a, int64_t dim, float* o) {
  if (cpu_has_avx2()) return add_scaled_avx2(v, a, dim, o);
  add_scaled_body(v, a, dim, o);
}

// The part of S0, then the nodes of each path from the root down.
void node_outputs(const DraftTree& tree, int64_t dim, const float* S0, const Buffers& x) {
  const int64_t nodes = tree.nodes();
  const int64_t rows = round_up(nodes, kRowTile);
  const int64_t columns = round_up(nodes, kColumnTile);
  std::fill(x.o, x.o + rows * dim, 0.0f);
  if (S0 != nullptr) small_matmul({x.q_decay, S0, x.o, dim, dim, dim, rows, dim, dim});
  std::fill(x.A, x.A + rows * columns, 0.0f);
  small_matmul({x.q, x.kT, x.A, dim, columns, columns, rows, columns, dim});
  for (int64_t i = 0; i < nodes; ++i) {
    if (tree.inert(i)) continue;
    const DraftPath path = tree.path_to(i);
    for (int64_t step = 0; step < path.length; ++step) {
      const int64_t node = path.node[static_cast<size_t>(step)];
      const float a = x.A[i * columns + node] * x.scaled[path.length - 1 - step];
      add_scaled(x.v + node * dim, a, dim, x.o + i * dim);
    }
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
  const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, head));
  for (int64_t m = 0; m <= tree.nodes(); ++m) {
    x.scaled[m] = static_cast<float>(static_cast<double>(params.scale) * decay_f64(slope, m));
  }
  load_nodes(params, row, head, tree, x);
  const float* S0 = nullptr;
  if (!row.fresh) {
    S0 = direct_state(params.state, row.slot, head);
    if (S0 == nullptr) {
      load_state(params.state, row.slot, head, false, x.S);
      S0 = x.S;
    }
  }
  node_outputs(tree, dim, S0, x);
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    const int64_t t = row.token_begin + i;
    if (tree.inert(i)) {
      zero_tokens(params.out, head, t, t + 1);
    } else {
      store_token(params.out, t, head, x.o + i * dim);
    }
  }
}

}  // namespace

int64_t lightning_verify_cpu_workspace_bytes(const LightningVerifyParams& params,
                                             const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params.lightning);
}

Status lightning_verify_cpu(const LightningVerifyParams& verify, const ExecContext& context) {
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
