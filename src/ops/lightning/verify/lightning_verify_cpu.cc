// All nodes of a row from one pass over the state. Node i at depth d_i (the root's is 1) sees the
// committed state S0 and the nodes a on its path, itself included:
//   o_i = scale * (lambda^d_i S0^T q_i + sum_a lambda^(d_i - d_a) (q_i . k_a) v_a)
// Every power of lambda is exp(-slope * m) with m >= 0, computed in double and rounded once.
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_block.h"
#include "ops/lightning/lightning_decay.h"
#include "ops/lightning/lightning_record.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lightning/verify/lightning_verify_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_panel_inl.h"
#include "cpu/simd_run_inl.h"

#ifndef LINESTATE_LIGHTNING_VERIFY_ONCE
#define LINESTATE_LIGHTNING_VERIFY_ONCE
namespace linestate {

// Nodes of one row and head. Rows and columns are whole tiles: what lies behind the nodes is zero.
struct LightningNodes {
  int64_t dim;
  int64_t count;
  int64_t columns;  // pitch of kT and A
  float* q;         // [rows, D]
  float* q_decay;   // [rows, D], q_i * scale * lambda^d_i
  float* k;         // [rows, D]
  float* kT;        // [D, columns]
  float* v;         // [rows, D]
  float* A;         // [rows, columns], q_i . k_a
  float* o;         // [rows, D]
};

}  // namespace linestate
#endif

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

HWY_INLINE void load_node(const ConstTensorView& tensor, int64_t token, int64_t head, float* out) {
  simd_load_run(tensor.data, tensor.dtype, offset_of(tensor, token, head), tensor.stride[2],
                tensor.shape[2], out);
}

void load_nodes(const LightningNodes& x, const LightningParams& params, int64_t begin, int64_t head,
                const float* decay) {
  for (int64_t i = 0; i < x.count; ++i) {
    load_node(params.q, begin + i, head, x.q + i * x.dim);
    load_node(params.k, begin + i, head, x.k + i * x.dim);
    load_node(params.v, begin + i, head, x.v + i * x.dim);
    const Group factor = group_of(decay[i]);
    for (int64_t d = 0; d < x.dim; d += kGroup) {
      group_store(x.q_decay + i * x.dim + d, group_load(x.q + i * x.dim + d) * factor);
    }
  }
  const int64_t used = x.count * x.dim;
  std::fill(x.q + used, x.q + round_up(x.count, kPanelRows) * x.dim, 0.0f);
  std::fill(x.q_decay + used, x.q_decay + round_up(x.count, kPanelRows) * x.dim, 0.0f);
  std::fill(x.k + used, x.k + x.columns * x.dim, 0.0f);
  transpose(x.k, x.dim, x.columns, x.dim, x.kT, x.columns);
}

// C = rows of a [rows, D] times b, 16 columns.
HWY_INLINE void product_panel(const float* a, const LightningNodes& x, const float* b,
                              int64_t b_pitch, float* c, int64_t c_pitch) {
  for (int64_t i = 0; i < x.count; i += kPanelRows) {
    PanelTile sum = panel_zero();
    panel_multiply({a + i * x.dim, x.dim, 1}, b, b_pitch, x.dim, sum);
    for (int r = 0; r < kPanelRows; ++r) group_store(c + (i + r) * c_pitch, sum.at[r][0]);
  }
}

// A, and the part of o that comes from the committed state S0 in panels; null = zero.
void node_products(const LightningNodes& x, const float* S0) {
  for (int64_t j = 0; j < x.columns; j += kGroup) {
    product_panel(x.q, x, x.kT + j, x.columns, x.A + j, x.columns);
  }
  for (int64_t e = 0; e < x.dim; e += kGroup) {
    if (S0 != nullptr) {
      product_panel(x.q_decay, x, S0 + e * x.dim, kGroup, x.o + e, x.dim);
    } else {
      for (int64_t i = 0; i < x.count; ++i) group_store(x.o + i * x.dim + e, group_of(0.0f));
    }
  }
}

void add_scaled(const float* v, float a, int64_t dim, float* o) {
  const Group factor = group_of(a);
  for (int64_t d = 0; d < dim; d += kGroup) {
    group_store(o + d, mul_add(factor, group_load(v + d), group_load(o + d)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(load_nodes);
HWY_EXPORT(node_products);
HWY_EXPORT(add_scaled);

namespace {

constexpr int64_t kLaneColumns = 16;  // of a Group

struct Buffers {
  LightningNodes nodes;
  float* S;       // [K, V] in panels
  float* scaled;  // [nodes + 1], scale * lambda^m
  float* decay;   // [nodes], scale * lambda^d_i
};

Buffers cut(Scratch& scratch, const LightningParams& params) {
  const int64_t dim = params.q.shape[2];
  const int64_t most = kMaxVerifyNodes;  // not the batch: scratch must not grow with it
  Buffers x;
  x.nodes.dim = dim;
  for (float** rows :
       {&x.nodes.q, &x.nodes.q_decay, &x.nodes.k, &x.nodes.kT, &x.nodes.v, &x.nodes.o}) {
    *rows = scratch.take<float>(most * dim);
  }
  x.nodes.A = scratch.take<float>(most * most);
  x.S = scratch.take<float>(dim * dim);
  x.scaled = scratch.take<float>(most + 1);
  x.decay = scratch.take<float>(most);
  return x;
}

int64_t scratch_bytes(const LightningParams& params) {
  Scratch counter;
  cut(counter, params);
  return counter.bytes();
}

// The nodes of each path from the root down, behind the part of S0.
void add_paths(const DraftTree& tree, const Buffers& x) {
  const LightningNodes& nodes = x.nodes;
  for (int64_t i = 0; i < nodes.count; ++i) {
    if (tree.inert(i)) continue;
    const DraftPath path = tree.path_to(i);
    for (int64_t step = 0; step < path.length; ++step) {
      const int64_t node = path.node[static_cast<size_t>(step)];
      const float a = nodes.A[i * nodes.columns + node] * x.scaled[path.length - 1 - step];
      HWY_DYNAMIC_DISPATCH(add_scaled)
      (nodes.v + node * nodes.dim, a, nodes.dim, nodes.o + i * nodes.dim);
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
  Buffers x = cut(scratch, params);
  x.nodes.count = tree.nodes();
  x.nodes.columns = round_up(tree.nodes(), kLaneColumns);
  const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, head));
  for (int64_t m = 0; m <= tree.nodes(); ++m) {
    x.scaled[m] = static_cast<float>(static_cast<double>(params.scale) * decay_f64(slope, m));
  }
  // Inert nodes get rows too, which nobody reads.
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    x.decay[i] = x.scaled[tree.inert(i) ? 0 : tree.depth(i)];
  }
  HWY_DYNAMIC_DISPATCH(load_nodes)(x.nodes, params, row.token_begin, head, x.decay);
  if (!row.fresh) load_panels(params.state, row.slot, head, false, 0, x.nodes.dim, x.S);
  HWY_DYNAMIC_DISPATCH(node_products)(x.nodes, row.fresh ? nullptr : x.S);
  add_paths(tree, x);
  for (int64_t i = 0; i < tree.nodes(); ++i) {
    const int64_t t = row.token_begin + i;
    if (tree.inert(i)) {
      zero_tokens(params.out, head, t, t + 1);
    } else {
      store_token(params.out, t, head, x.nodes.o + i * x.nodes.dim);
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
#endif
