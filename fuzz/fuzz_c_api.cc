// Operator calls through the C interface with arguments from the input: shapes, strides, dtypes,
// ids and offsets, sensible or hostile, over memory that is NaN wherever nothing was written. The
// library refuses, or stays within the tensors it was given: whatever strides it accepts, every
// tensor lies in its own arena, and the bytes around and between its elements keep their values.
// Then sessions of handles: c_api_session.h.
#include "fuzz/c_api_arena.h"
#include "fuzz/c_api_session.h"

namespace linestate::fuzzing {
namespace {

/// The shape of one call.
struct Sizes {
  explicit Sizes(Source& in)
      : rows(1 + in.below(3)),
        slots(1 + in.below(4)),
        heads(1 + in.below(2)),
        groups(1 + in.below(2)),
        dim(in.rarely() ? in.below(40) : 16) {
    begin.push_back(0);
    for (int64_t n = 0; n < rows; ++n) begin.push_back(begin.back() + in.below(5));
  }
  int64_t rows, slots, heads, groups, dim;
  std::vector<int64_t> begin;
  int64_t tokens() const { return begin.back(); }
  int64_t value_heads() const { return heads * groups; }
};

ls_rows make_rows(Fuzz& fuzz, Source& in, const Sizes& s) {
  ls_rows rows;
  LS_INIT(&rows);
  rows.slot = fuzz.ids(s.rows, [&](int64_t n) { return n < s.slots ? n : -1; });
  rows.query_start_loc = fuzz.ids(
      s.rows + 1, [&](int64_t n) { return s.begin[static_cast<size_t>(std::min(n, s.rows))]; });
  rows.start = fuzz.ids(s.rows, [&](int64_t) { return in.below(3); });
  if (in.byte() % 4 == 0) rows.num_valid = fuzz.ids(s.rows, [&](int64_t) { return in.below(3); });
  return rows;
}

/// Mostly what the rows reach; destinations mostly behind their slots.
ls_snapshot_plan make_plan(Fuzz& fuzz, Source& in, const Sizes& s) {
  ls_snapshot_plan plan;
  LS_INIT(&plan);
  const int64_t count = in.below(4);
  plan.row = fuzz.ids(count, [&](int64_t) { return in.below(s.rows); });
  plan.position = fuzz.ids(count, [&](int64_t) { return 1 + in.below(6); });
  plan.slot = fuzz.ids(count, [&](int64_t m) { return s.slots - 1 - m; });
  return plan;
}

ls_kda_params make_kda(Fuzz& fuzz, Source& in, const Sizes& s, int64_t tokens) {
  ls_kda_params p;
  LS_INIT(&p);
  p.q = fuzz.floats(false, {tokens, s.heads, s.dim});
  p.k = fuzz.floats(false, {tokens, s.heads, s.dim});
  p.v = fuzz.floats(false, {tokens, s.value_heads(), s.dim});
  p.gate = fuzz.floats(false, {tokens, s.value_heads(), s.dim});
  p.beta = fuzz.floats(false, {tokens, s.value_heads()});
  p.out = fuzz.floats(true, {tokens, s.value_heads(), s.dim});
  p.state = fuzz.floats(true, {s.slots, s.value_heads(), s.dim, s.dim});
  fuzz.use_dtype(LS_F32);
  p.A_log = fuzz.floats(false, {s.value_heads()});
  p.dt_bias = fuzz.floats(false, {s.value_heads(), s.dim});
  p.gate_form = static_cast<int32_t>(in.below(3));
  p.beta_form = static_cast<int32_t>(in.below(2));
  p.lower_bound = p.gate_form == LS_GATE_BOUNDED ? -5.0f : 0.0f;
  return p;
}

ls_lightning_params make_lightning(Fuzz& fuzz, const Sizes& s, int64_t tokens) {
  ls_lightning_params p;
  LS_INIT(&p);
  p.q = fuzz.floats(false, {tokens, s.heads, s.dim});
  p.k = fuzz.floats(false, {tokens, s.heads, s.dim});
  p.v = fuzz.floats(false, {tokens, s.heads, s.dim});
  p.out = fuzz.floats(true, {tokens, s.heads, s.dim});
  p.state = fuzz.floats(true, {s.slots, s.heads, s.dim, s.dim});
  fuzz.use_dtype(LS_F32);
  p.slopes = fuzz.floats(false, {s.heads});
  return p;
}

template <typename Params>
using Run = ls_status (*)(const Params*, const ls_context*, const char*);
template <typename Params>
using Workspace = ls_status (*)(const Params*, const ls_context*, const char*, int64_t*);

/// Sizes the workspace by asking, exactly, and runs; then nothing but outputs has changed.
template <typename Params>
void call(Fuzz& fuzz, Source& in, const Params& params, Workspace<Params> size, Run<Params> run) {
  const char* kernel = in.byte() % 2 == 0 ? nullptr : "ref";
  ls_context context;
  LS_INIT(&context);
  context.num_threads = 1;
  context.check_finite = in.byte() % 2;
  alignas(64) ls_device_status status;
  ls_device_status_reset(&status);
  context.status = &status;
  if (size(&params, &context, kernel, &context.workspace_bytes) != LS_OK) return;
  const auto bytes = static_cast<size_t>((context.workspace_bytes + 127) / 64 * 64);
  context.workspace = std::aligned_alloc(64, bytes);
  fuzz.snapshot_arenas();
  const ls_status result = run(&params, &context, kernel);
  fuzz.check_arenas();
  std::free(context.workspace);
  if (result == LS_INTERNAL) std::abort();
  if (result != LS_OK && ls_last_error()[0] == '\0') std::abort();
}

void call_kda(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  ls_rows rows = make_rows(fuzz, in, s);
  ls_kda_params kda = make_kda(fuzz, in, s, op == 1 ? s.rows : s.tokens());
  kda.rows = &rows;
  if (op == 0) return call(fuzz, in, kda, ls_kda_prefill_workspace_bytes, ls_kda_prefill);
  if (op == 1) return call(fuzz, in, kda, ls_kda_decode_workspace_bytes, ls_kda_decode);
  ls_kda_record record;
  LS_INIT(&record);
  const int64_t tokens = s.tokens();
  record.u = fuzz.tensor(true, LS_F32, {tokens, s.value_heads(), s.dim});
  record.k = fuzz.tensor(true, kda.k.dtype, {tokens, s.heads, s.dim});
  record.k_inverse_norm = fuzz.tensor(true, LS_F32, {tokens, s.heads});
  record.alpha = fuzz.tensor(true, LS_F32, {tokens, s.value_heads(), s.dim});
  ls_tensor parent{};
  if (in.byte() % 2 == 0) parent = fuzz.ids(tokens, [&](int64_t i) { return in.below(i + 1) - 1; });
  if (op == 2) {
    const ls_kda_verify_params p{sizeof(p), &kda, &record, parent};
    return call(fuzz, in, p, ls_kda_verify_workspace_bytes, ls_kda_verify);
  }
  ls_kda_commit_params p;
  LS_INIT(&p);
  p.rows = &rows;
  p.record = &record;
  p.parent = parent;
  p.state = kda.state;
  p.accepted_node = fuzz.ids(s.rows, [&](int64_t) { return in.below(4) - 1; });
  call(fuzz, in, p, ls_kda_commit_workspace_bytes, ls_kda_commit);
}

void call_lightning(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  ls_rows rows = make_rows(fuzz, in, s);
  ls_lightning_params p = make_lightning(fuzz, s, op == 1 ? s.rows : s.tokens());
  p.rows = &rows;
  if (op == 0) return call(fuzz, in, p, ls_lightning_prefill_workspace_bytes, ls_lightning_prefill);
  if (op == 1) return call(fuzz, in, p, ls_lightning_decode_workspace_bytes, ls_lightning_decode);
  ls_lightning_record record;
  LS_INIT(&record);
  record.k = fuzz.tensor(true, p.k.dtype, {s.tokens(), s.heads, s.dim});
  record.v = fuzz.tensor(true, p.v.dtype, {s.tokens(), s.heads, s.dim});
  const ls_lightning_verify_params verify{sizeof(verify), &p, &record, ls_tensor{}};
  call(fuzz, in, verify, ls_lightning_verify_workspace_bytes, ls_lightning_verify);
}

ls_causal_conv1d_params make_conv(Fuzz& fuzz, Source& in, const Sizes& s, int64_t tokens,
                                  const ls_rows& rows) {
  ls_causal_conv1d_params p;
  LS_INIT(&p);
  const int64_t width = 2 + in.below(3);
  p.rows = &rows;
  p.x = fuzz.floats(false, {tokens, s.dim});
  p.weight = fuzz.floats(false, {s.dim, width});
  p.window = fuzz.floats(true, {s.slots, s.dim, width - 1});
  p.out = fuzz.floats(true, {tokens, s.dim});
  p.activation = static_cast<int32_t>(in.below(2));
  return p;
}

void call_conv(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_causal_conv1d_params p = make_conv(fuzz, in, s, op == 1 ? s.rows : s.tokens(), rows);
  if (op == 1) {
    return call(fuzz, in, p, ls_causal_conv1d_update_workspace_bytes, ls_causal_conv1d_update);
  }
  call(fuzz, in, p, ls_causal_conv1d_prefill_workspace_bytes, ls_causal_conv1d_prefill);
}

void call_state(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  const ls_tensor dst = fuzz.floats(true, {s.slots, s.heads, s.dim});
  const auto slot = [&](int64_t i) { return i + in.below(2); };
  if (op == 0) {
    const ls_state_clear_params p{sizeof(p), &dst, 1, fuzz.ids(s.rows, slot)};
    return call(fuzz, in, p, ls_state_clear_workspace_bytes, ls_state_clear);
  }
  const ls_tensor src = fuzz.floats(false, {s.slots, s.heads, s.dim});
  const ls_state_copy_params p{
      sizeof(p), &src, 1, &dst, 1, fuzz.ids(s.rows, slot), fuzz.ids(s.rows, slot)};
  call(fuzz, in, p, ls_state_copy_workspace_bytes, ls_state_copy);
}

void call_norm(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  if (op == 0) {
    ls_gated_rms_norm_params p;
    LS_INIT(&p);
    p.x = fuzz.floats(false, {s.rows, s.heads, s.dim});
    p.z = fuzz.floats(false, {s.rows, s.heads, s.dim});
    p.weight = fuzz.floats(false, {s.dim});
    p.out = fuzz.floats(true, {s.rows, s.heads, s.dim});
    return call(fuzz, in, p, ls_gated_rms_norm_workspace_bytes, ls_gated_rms_norm);
  }
  ls_group_rms_norm_params p;
  LS_INIT(&p);
  p.x = fuzz.floats(false, {s.rows, s.dim});
  p.weight = fuzz.floats(false, {s.dim});
  p.out = fuzz.floats(true, {s.rows, s.dim});
  p.num_groups = in.hostile();
  p.group_channels = in.rarely() ? in.hostile() : 0;
  call(fuzz, in, p, ls_group_rms_norm_workspace_bytes, ls_group_rms_norm);
}

void call_tree(Fuzz& fuzz, Source& in, const Sizes& s) {
  ls_tree_from_links_params p;
  LS_INIT(&p);
  p.first_child = fuzz.ids(4, [&](int64_t i) { return in.below(2) == 0 ? -1 : i + 1; });
  p.next_sibling = fuzz.ids(4, [&](int64_t i) { return in.below(2) == 0 ? -1 : i + 1; });
  for (ls_tensor* links : {&p.first_child, &p.next_sibling}) {
    if (links->rank != 1) continue;
    links->rank = 2;
    links->shape[1] = links->shape[0];
    links->stride[1] = links->stride[0];
    links->shape[0] = 1;
  }
  p.parent = fuzz.tensor(true, LS_I32, {1, 4});
  (void)s;
  call(fuzz, in, p, ls_tree_from_links_workspace_bytes, ls_tree_from_links);
}

void call_lightning_commit(Fuzz& fuzz, Source& in, const Sizes& s) {
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_snapshot_plan plan = make_plan(fuzz, in, s);
  const ls_lightning_params base = make_lightning(fuzz, s, s.tokens());
  ls_lightning_record record;
  LS_INIT(&record);
  record.k = fuzz.tensor(false, base.k.dtype, {s.tokens(), s.heads, s.dim});
  record.v = fuzz.tensor(false, base.v.dtype, {s.tokens(), s.heads, s.dim});
  ls_lightning_commit_params p;
  LS_INIT(&p);
  p.rows = &rows;
  p.record = &record;
  if (in.byte() % 2 == 0) {
    p.snapshots = &plan;
    p.taken = fuzz.tensor(true, LS_U8, {plan.row.shape[0]});
  }
  if (in.byte() % 2 == 0) {
    p.parent = fuzz.ids(s.tokens(), [&](int64_t i) { return in.below(i + 1) - 1; });
  }
  p.accepted_node = fuzz.ids(s.rows, [&](int64_t) { return in.below(4) - 1; });
  p.slopes = base.slopes;
  p.state = base.state;
  call(fuzz, in, p, ls_lightning_commit_workspace_bytes, ls_lightning_commit);
}

void call_conv_verify(Fuzz& fuzz, Source& in, const Sizes& s) {
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_causal_conv1d_params conv = make_conv(fuzz, in, s, s.tokens(), rows);
  ls_causal_conv1d_verify_params p;
  LS_INIT(&p);
  p.conv = &conv;
  if (in.byte() % 2 == 0) {
    p.parent = fuzz.ids(s.tokens(), [&](int64_t i) { return in.below(i + 1) - 1; });
  }
  call(fuzz, in, p, ls_causal_conv1d_verify_workspace_bytes, ls_causal_conv1d_verify);
}

void call_sum_sq(Fuzz& fuzz, Source& in, const Sizes& s) {
  ls_rms_sum_sq_params p;
  LS_INIT(&p);
  p.x = fuzz.floats(false, {s.rows, s.dim});
  p.sum_sq = fuzz.tensor(true, LS_F32, {s.rows, in.rarely() ? in.hostile() & 31 : 1 + in.below(2)});
  call(fuzz, in, p, ls_rms_sum_sq_workspace_bytes, ls_rms_sum_sq);
}

ls_replay_ring make_ring(Fuzz& fuzz, Source& in, const Sizes& s, int64_t entries, bool gamma) {
  const int32_t dtype = in.byte() % 2 == 0 ? LS_F32 : LS_F16;
  ls_replay_ring ring;
  LS_INIT(&ring);
  ring.keys = fuzz.tensor(true, dtype, {s.slots, s.value_heads(), entries, s.dim});
  ring.values = fuzz.tensor(true, dtype, {s.slots, s.value_heads(), entries, s.dim});
  if (gamma) ring.gamma = fuzz.tensor(true, LS_F32, {s.slots, s.value_heads(), s.dim});
  return ring;
}

void call_step_begin(Fuzz& fuzz, Source& in, const Sizes& s) {
  const ls_rows rows = make_rows(fuzz, in, s);
  ls_replay_step_params p;
  LS_INIT(&p);
  p.rows = &rows;
  p.ring_length = in.rarely() ? in.hostile() : 1 + in.below(5);
  const int64_t ring = std::max<int64_t>(p.ring_length, 1);
  p.cursor = fuzz.ids_of(LS_I32, true, s.slots, [&](int64_t) { return in.byte() % ring; });
  p.pending = fuzz.tensor(true, LS_I32, {s.rows});
  p.flush = fuzz.tensor(true, LS_U8, {s.rows});
  if (in.byte() % 2 == 0) {
    p.force_flush = fuzz.ids_of(LS_U8, false, s.rows, [&](int64_t) { return in.below(2); });
  }
  call(fuzz, in, p, ls_replay_step_begin_workspace_bytes, ls_replay_step_begin);
}

void call_replay(Fuzz& fuzz, Source& in, Sizes s, bool kda) {
  if (!kda) s.groups = 1;
  const int64_t entries = in.below(4);
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_replay_ring ring = make_ring(fuzz, in, s, entries, kda);
  const ls_tensor pending =
      fuzz.ids_of(LS_I32, false, s.rows, [&](int64_t) { return in.below(entries + 1); });
  const ls_tensor flush =
      fuzz.ids_of(LS_U8, false, s.rows, [&](int64_t) { return in.below(2) + (entries == 0); });
  if (kda) {
    ls_kda_params base = make_kda(fuzz, in, s, s.rows);
    base.rows = &rows;
    const ls_kda_replay_params p{sizeof(p), &base, &ring, pending, flush};
    return call(fuzz, in, p, ls_kda_decode_replay_workspace_bytes, ls_kda_decode_replay);
  }
  ls_lightning_params base = make_lightning(fuzz, s, s.rows);
  base.rows = &rows;
  const ls_lightning_replay_params p{sizeof(p), &base, &ring, pending, flush};
  call(fuzz, in, p, ls_lightning_decode_replay_workspace_bytes, ls_lightning_decode_replay);
}

void call_fold(Fuzz& fuzz, Source& in, const Sizes& s) {
  const int64_t entries = in.below(4);
  Sizes square = s;
  square.groups = 1;
  const ls_replay_ring rings[] = {make_ring(fuzz, in, s, entries, true),
                                  make_ring(fuzz, in, square, entries, false)};
  ls_replay_fold_layer layers[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t heads = i == 0 ? s.value_heads() : s.heads;
    LS_INIT(&layers[i]);
    layers[i].ring = &rings[i];
    layers[i].state = fuzz.floats(true, {s.slots, heads, s.dim, s.dim});
    if (i == 1) layers[i].slopes = fuzz.tensor(false, LS_F32, {s.heads});
  }
  ls_replay_fold_params p;
  LS_INIT(&p);
  p.layers = layers;
  p.num_layers = static_cast<size_t>(1 + in.below(2));
  p.slots = fuzz.ids(s.rows, [&](int64_t i) { return i + in.below(2) - 1; });
  p.cursor = fuzz.ids_of(LS_I32, true, s.slots, [&](int64_t) { return in.below(entries + 1); });
  call(fuzz, in, p, ls_replay_fold_workspace_bytes, ls_replay_fold);
}

void call_with_snapshots(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  const bool decode = in.byte() % 2 == 0;
  const int64_t tokens = decode ? s.rows : s.tokens();
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_snapshot_plan plan = make_plan(fuzz, in, s);
  if (op == 0) {
    ls_kda_params p = make_kda(fuzz, in, s, tokens);
    p.rows = &rows;
    p.snapshots = &plan;
    if (decode) return call(fuzz, in, p, ls_kda_decode_workspace_bytes, ls_kda_decode);
    return call(fuzz, in, p, ls_kda_prefill_workspace_bytes, ls_kda_prefill);
  }
  if (op == 1) {
    ls_lightning_params p = make_lightning(fuzz, s, tokens);
    p.rows = &rows;
    p.snapshots = &plan;
    if (decode) return call(fuzz, in, p, ls_lightning_decode_workspace_bytes, ls_lightning_decode);
    return call(fuzz, in, p, ls_lightning_prefill_workspace_bytes, ls_lightning_prefill);
  }
  ls_causal_conv1d_params p = make_conv(fuzz, in, s, tokens, rows);
  p.snapshots = &plan;
  if (decode) {
    return call(fuzz, in, p, ls_causal_conv1d_update_workspace_bytes, ls_causal_conv1d_update);
  }
  call(fuzz, in, p, ls_causal_conv1d_prefill_workspace_bytes, ls_causal_conv1d_prefill);
}

void call_whole_kda_commit(Fuzz& fuzz, Source& in, const Sizes& s) {
  const ls_rows rows = make_rows(fuzz, in, s);
  const ls_snapshot_plan plan = make_plan(fuzz, in, s);
  const int64_t tokens = s.tokens();
  ls_kda_record record;
  LS_INIT(&record);
  record.u = fuzz.tensor(false, LS_F32, {tokens, s.value_heads(), s.dim});
  record.k = fuzz.floats(false, {tokens, s.heads, s.dim});
  record.k_inverse_norm = fuzz.tensor(false, LS_F32, {tokens, s.heads});
  record.alpha = fuzz.tensor(false, LS_F32, {tokens, s.value_heads(), s.dim});
  ls_kda_commit_params p;
  LS_INIT(&p);
  p.rows = &rows;
  p.record = &record;
  p.snapshots = &plan;
  p.taken = fuzz.tensor(true, LS_U8, {plan.row.shape[0]});
  const int64_t channels = 1 + in.below(40);
  p.conv_x = fuzz.floats(false, {tokens, channels});
  p.window = fuzz.floats(true, {s.slots, channels, 1 + in.below(3)});
  p.state = fuzz.floats(true, {s.slots, s.value_heads(), s.dim, s.dim});
  p.accepted_node = fuzz.ids(s.rows, [&](int64_t) { return in.below(4) - 1; });
  if (in.byte() % 2 == 0) {
    p.parent = fuzz.ids(tokens, [&](int64_t i) { return in.below(i + 1) - 1; });
  }
  call(fuzz, in, p, ls_kda_commit_workspace_bytes, ls_kda_commit);
}

/// What first bytes from 240 on stand for; all below are the operators above.
void call_more(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  switch (op) {
    case 0:
      return call_conv_verify(fuzz, in, s);
    case 1:
      return call_lightning_commit(fuzz, in, s);
    case 2:
      return call_sum_sq(fuzz, in, s);
    case 3:
      return call_step_begin(fuzz, in, s);
    case 4:
    case 5:
      return call_replay(fuzz, in, s, op == 4);
    case 6:
      return call_fold(fuzz, in, s);
    case 7:
    case 8:
    case 9:
      return call_with_snapshots(fuzz, in, s, op - 7);
    default:
      return call_whole_kda_commit(fuzz, in, s);
  }
}

constexpr int64_t kFirstMore = 240;
constexpr int64_t kFirstSession = kFirstMore + 11;

}  // namespace
}  // namespace linestate::fuzzing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linestate::fuzzing;  // NOLINT
  Source in(data, size);
  const int64_t pick = in.byte();
  if (pick >= kFirstSession) {
    run_session(in);
    return 0;
  }
  const int64_t op = pick % 14;
  const Sizes sizes(in);
  Fuzz fuzz(in);
  fuzz.use_dtype(static_cast<int32_t>(in.below(3)));
  if (pick >= kFirstMore) {
    call_more(fuzz, in, sizes, pick - kFirstMore);
  } else if (op < 4) {
    call_kda(fuzz, in, sizes, op);
  } else if (op < 7) {
    call_lightning(fuzz, in, sizes, op - 4);
  } else if (op < 9) {
    call_conv(fuzz, in, sizes, op - 7);
  } else if (op < 11) {
    call_state(fuzz, in, sizes, op - 9);
  } else if (op < 13) {
    call_norm(fuzz, in, sizes, op - 11);
  } else {
    call_tree(fuzz, in, sizes);
  }
  return 0;
}
