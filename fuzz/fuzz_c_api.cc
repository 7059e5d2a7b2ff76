// Operator calls through the C interface with arguments from the input: shapes, strides, dtypes,
// ids and offsets, sensible or hostile, over memory that is NaN wherever nothing was written. The
// library refuses, or stays within the tensors it was given: whatever strides it accepts, every
// tensor lies in its own arena, and the bytes around and between its elements keep their values.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "linestate/c_api.h"

namespace {

constexpr int64_t kArenaBytes = 1 << 15;
constexpr unsigned char kCanary = 0xff;  // NaN in every floating dtype, -1 in every integer one

/// Numbers from the input; zeros behind its end.
class Source {
 public:
  Source(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }
  int64_t below(int64_t bound) { return byte() % bound; }
  bool rarely() { return byte() > 250; }
  /// Any 64-bit value, mostly near zero or near the ends.
  int64_t hostile() {
    constexpr int64_t kEnds[] = {-1, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, 1 << 20, 0, 257};
    const uint8_t pick = byte();
    return pick < 8 ? kEnds[pick] : static_cast<int8_t>(byte());
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

int64_t bytes_of(int32_t dtype) {
  constexpr int64_t kBytes[] = {4, 2, 2, 8, 4, 8, 1, 1};
  return dtype >= 0 && dtype < 8 ? kBytes[dtype] : 8;
}

/// One tensor's memory. `owned` marks the bytes of its elements.
struct Arena {
  std::vector<unsigned char> bytes = std::vector<unsigned char>(kArenaBytes, kCanary);
  std::vector<unsigned char> before;
  std::vector<bool> owned = std::vector<bool>(kArenaBytes, false);
  bool writable = false;
};

class Fuzz {
 public:
  explicit Fuzz(Source& source) : in_(source) { arenas_.reserve(32); }

  /// A tensor near the wanted shape whose every element lies in an arena of its own, or one that
  /// the conversion or the operator must refuse before it touches memory.
  ls_tensor tensor(bool writable, int32_t dtype, std::initializer_list<int64_t> shape) {
    Arena& arena = arenas_.emplace_back();
    arena.writable = writable;
    ls_tensor view{};
    view.dtype = in_.rarely() ? static_cast<int32_t>(in_.below(10)) : dtype;
    view.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape);
    if (in_.rarely()) view.shape[in_.below(view.rank)] = in_.below(20);
    set_strides(view);
    place(view, arena);
    if (in_.rarely()) spoil(view);
    return view;
  }

  ls_tensor floats(bool writable, std::initializer_list<int64_t> shape) {
    const int32_t dtype = static_cast<int32_t>(in_.below(3));
    ls_tensor view = tensor(writable, in_.rarely() ? dtype : float_dtype_, shape);
    if (!writable) fill(view, [this](int32_t) { return in_.byte() % 16 * 0x08; });
    return view;
  }

  /// Ids that are mostly what `value(i)` says.
  template <typename Value>
  ls_tensor ids(int64_t count, const Value& value) {
    const int32_t dtype = in_.byte() % 2 == 0 ? LS_I32 : LS_I64;
    ls_tensor view = tensor(false, dtype, {count});
    const bool sound = view.rank == 1 && view.dtype == dtype && view.data != nullptr &&
                       view.shape[0] <= 64 && view.stride[0] > -64 && view.stride[0] < 64;
    for (int64_t i = 0; sound && i < view.shape[0]; ++i) {
      const int64_t id = in_.rarely() ? in_.hostile() : value(i);
      const auto narrow = static_cast<int32_t>(id);
      char* at = static_cast<char*>(view.data) + i * view.stride[0] * bytes_of(dtype);
      std::memcpy(at, dtype == LS_I32 ? static_cast<const void*>(&narrow) : &id,
                  static_cast<size_t>(bytes_of(dtype)));
    }
    return view;
  }

  void use_dtype(int32_t dtype) { float_dtype_ = dtype; }

  void snapshot_arenas() {
    for (Arena& arena : arenas_) arena.before = arena.bytes;
  }

  /// Inputs keep every byte; outputs keep those between and around their elements.
  void check_arenas() const {
    for (const Arena& arena : arenas_) {
      for (size_t i = 0; i < arena.bytes.size(); ++i) {
        const bool may_change = arena.writable && arena.owned[i];
        if (!may_change && arena.bytes[i] != arena.before[i]) std::abort();
      }
    }
  }

 private:
  void set_strides(ls_tensor& view) {
    int64_t stride = 1 + (in_.byte() > 200 ? in_.below(3) : 0);
    for (int32_t dim = view.rank - 1; dim >= 0; --dim) {
      view.stride[dim] = stride;
      stride =
          stride * std::max<int64_t>(view.shape[dim], 1) + (in_.byte() > 200 ? in_.below(5) : 0);
      if (in_.rarely()) view.stride[dim] = in_.hostile() % 4096;  // 0, negative, overlapping
    }
  }

  // First and last element inside the arena, with canaries on both sides; elements marked.
  void place(ls_tensor& view, Arena& arena) {
    int64_t low = 0, high = 0, count = 1;
    for (int32_t dim = 0; dim < view.rank; ++dim) {
      count *= view.shape[dim];
      const int64_t reach = (view.shape[dim] - 1) * view.stride[dim];
      (reach < 0 ? low : high) += view.shape[dim] > 0 ? reach : 0;
    }
    const int64_t size = bytes_of(view.dtype);
    constexpr int64_t kMargin = 64;
    if ((high - low + 1) * size > kArenaBytes - 2 * kMargin) {
      view.shape[0] = 0;  // does not fit: an empty tensor, whose memory must not be touched
      count = 0;
      low = 0;
    }
    view.data = arena.bytes.data() + kMargin - low * size;
    for (int64_t i = 0; i < count; ++i) mark(view, arena, i, size);
  }

  void mark(const ls_tensor& view, Arena& arena, int64_t element, int64_t size) {
    int64_t offset = 0;
    for (int32_t dim = view.rank - 1; dim >= 0; --dim) {
      offset += element % view.shape[dim] * view.stride[dim];
      element /= view.shape[dim];
    }
    const int64_t at = static_cast<unsigned char*>(view.data) - arena.bytes.data() + offset * size;
    for (int64_t i = 0; i < size; ++i) arena.owned[static_cast<size_t>(at + i)] = true;
  }

  template <typename Value>
  void fill(const ls_tensor& view, const Value& value) {
    if (view.data == nullptr || view.rank < 1 || view.rank > LS_MAX_RANK) return;
    Arena& arena = arenas_.back();
    const auto high = static_cast<unsigned char>(value(0));
    for (size_t i = 0; i < arena.bytes.size(); ++i) {
      // Small finite numbers in every floating dtype: exponents stay low.
      if (arena.owned[i]) arena.bytes[i] = static_cast<unsigned char>((i % 2 == 1) ? 0x3c : high);
    }
  }

  // Must be refused whatever the operator: nothing here may be followed to memory.
  void spoil(ls_tensor& view) {
    switch (in_.below(6)) {
      case 0:
        view.rank = static_cast<int32_t>(in_.hostile() | 8);
        break;
      case 1:
        view.dtype = static_cast<int32_t>(in_.hostile() | 8);
        break;
      case 2:
        view.device_type = 1 + static_cast<int32_t>(in_.below(9));
        break;
      case 3:
        view.shape[0] = -1 - in_.below(100);
        break;
      case 4:
        view.stride[0] = INT64_MIN + in_.below(100);
        break;
      default:
        view = ls_tensor{};
        break;  // not given
    }
  }

  Source& in_;
  std::vector<Arena> arenas_;
  int32_t float_dtype_ = LS_F32;
};

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

void call_conv(Fuzz& fuzz, Source& in, const Sizes& s, int64_t op) {
  ls_rows rows = make_rows(fuzz, in, s);
  ls_causal_conv1d_params p;
  LS_INIT(&p);
  const int64_t width = 2 + in.below(3);
  const int64_t tokens = op == 1 ? s.rows : s.tokens();
  p.rows = &rows;
  p.x = fuzz.floats(false, {tokens, s.dim});
  p.weight = fuzz.floats(false, {s.dim, width});
  p.window = fuzz.floats(true, {s.slots, s.dim, width - 1});
  p.out = fuzz.floats(true, {tokens, s.dim});
  p.activation = static_cast<int32_t>(in.below(2));
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Source in(data, size);
  const int64_t op = in.below(14);
  const Sizes sizes(in);
  Fuzz fuzz(in);
  fuzz.use_dtype(static_cast<int32_t>(in.below(3)));
  if (op < 4) {
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
