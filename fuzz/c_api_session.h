// A session of handles through the C interface: one model, its pool, batches through both backends,
// drafts and their commits, snapshots, packs and restores, a prefix cache, kernels of its own; in
// whatever order the input says. What is refused has changed nothing; slots, outputs of padding and
// texts of errors keep their rules; the sanitizer watches over every buffer, each of exact size.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "fuzz/c_api_session_parts.h"

namespace linestate::fuzzing {

class Session {
 public:
  explicit Session(Source& in) : in_(in) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ~Session() {
    ls_prefix_lease_destroy(lease_);
    ls_prefix_cache_destroy(cache_);
    ls_lightning_backend_destroy(lightning_);
    ls_kda_backend_destroy(kda_);
    ls_records_destroy(records_);
    ls_metadata_destroy(metadata_);
    ls_pool_destroy(pool_);
    ls_model_destroy(model_);
    if (registered_) must(ls_unregister_kernel("kda_decode", "fuzzed") == LS_OK);
  }

  void run() {
    LS_INIT(&context_);
    context_.num_threads = 1;
    if (!make()) return;
    for (int step = 0; step < 40 && !in_.ended(); ++step) {
      switch (in_.below(12)) {
        case 0:
        case 1:
          change_slots();
          break;
        case 2:
        case 3:
        case 4:
        case 5:
          forward();
          break;
        case 6:
          commit();
          break;
        case 7:
          move_pack();
          break;
        case 8:
          use_cache();
          break;
        case 9:
          ask();
          break;
        case 10:
          use_kernel();
          break;
        default:
          change_memory();
      }
      check_slots();
    }
  }

 private:
  static constexpr int64_t kDim = 16;

  bool make() {
    ls_layer_spec layers[2];
    for (ls_layer_spec& layer : layers) LS_INIT(&layer);
    heads_ = 1 + in_.below(2);
    groups_ = 1 + in_.below(2);
    layers[0].num_heads = in_.rarely() ? in_.hostile() : heads_;
    layers[0].num_value_heads = heads_ * groups_;
    layers[0].k_dim = kDim;
    layers[0].gate_form = static_cast<int32_t>(in_.below(3));
    layers[0].lower_bound = layers[0].gate_form == LS_GATE_BOUNDED ? -5.0f : 0.0f;
    layers[0].conv_width = 2 + in_.below(3);
    layers[1].kind = LS_LAYER_LIGHTNING;
    layers[1].layer_id = 1;
    layers[1].num_heads = heads_;
    layers[1].k_dim = kDim;
    if (!ok(ls_model_from_layers(layers, 2, 2, 0, 1, &model_))) return false;
    width_ = layers[0].conv_width;
    return make_pool() && make_rest();
  }

  bool make_pool() {
    const float slopes[2] = {0.5f, 0.25f};
    const float* slopes_of[2] = {nullptr, slopes};
    LS_INIT(&spec_);
    spec_.model = model_;
    spec_.state_dtype = static_cast<int32_t>(in_.below(3));
    spec_.replay_length = in_.rarely() ? in_.hostile() : 1 + in_.below(4);
    spec_.replay_dtype = in_.byte() % 2 == 0 ? LS_F32 : LS_F16;
    spec_.replay_slopes = slopes_of;
    num_slots_ = in_.rarely() ? in_.hostile() % 100 : 1 + in_.below(5);
    const bool made = ok(ls_pool_create(&spec_, num_slots_, LS_CPU, 0, &pool_));
    spec_.replay_slopes = nullptr;
    spec_.replay_length = 1;  // of sizes asked for later; a pack does not depend on it
    return made;
  }

  bool make_rest() {
    ls_forward_capacity room;
    LS_INIT(&room);
    room.rows = in_.rarely() ? in_.hostile() % 1000 : 5;
    room.verify_tokens = in_.below(20);
    room.snapshots = in_.below(4);
    ls_prefix_cache_options cache;
    LS_INIT(&cache);
    cache.byte_budget = in_.below(4);
    cache.bytes_per_snapshot = 1;
    taken_.assign(static_cast<size_t>(num_slots_), false);
    return ok(ls_metadata_create(&room, LS_CPU, 0, &metadata_)) &&
           ok(ls_records_create(model_, LS_F32, 32, LS_CPU, 0, &records_)) &&
           ok(ls_kda_backend_create(model_, nullptr, &kda_)) &&
           ok(ls_lightning_backend_create(model_, nullptr, &lightning_)) &&
           ok(ls_prefix_cache_create(&cache, &cache_));
  }

  int32_t slot() {
    return in_.rarely() ? static_cast<int32_t>(in_.hostile())
                        : static_cast<int32_t>(in_.below(num_slots_ + 1)) - 1;
  }

  static bool done(void* flag) { return *static_cast<bool*>(flag); }

  void change_slots() {
    const int64_t what = in_.below(4);
    int32_t id = slot();
    const bool mine = id >= 0 && id < num_slots_ && taken_[static_cast<size_t>(id)];
    if (what == 0) {
      if (!ok(ls_pool_allocate(pool_, &id))) return;
      must(id >= 0 && id < num_slots_ && !taken_[static_cast<size_t>(id)]);
      taken_[static_cast<size_t>(id)] = true;
    } else if (what == 1) {
      event_ = in_.byte() % 2 == 0;
      const bool gone = ok(in_.byte() % 2 == 0 ? ls_pool_free(pool_, id)
                                               : ls_pool_retire(pool_, id, done, &event_));
      must(gone == mine);
      if (gone) taken_[static_cast<size_t>(id)] = false;
    } else if (what == 2) {
      const int64_t position = in_.hostile();
      must(ok(ls_pool_mark_snapshot(pool_, id, position)) == (mine && position >= 1));
      int64_t got = 0;
      if (mine && position >= 1) {
        must(ok(ls_pool_snapshot_position(pool_, id, &got)) && got == position);
      }
    } else {
      must(ok(ls_pool_clear_snapshot(pool_, id)) == mine);
    }
  }

  void check_slots() {
    int64_t free = 0, waiting = 0, taken = 0;
    must(ok(ls_pool_in_flight_slots(pool_, &waiting)) && ok(ls_pool_free_slots(pool_, &free)));
    for (const bool slot : taken_) taken += slot ? 1 : 0;
    must(free + waiting + taken == num_slots_);
  }

  /// Every byte of the pool's planes, cursors too.
  std::string bits() const {
    std::string all;
    int32_t bound = 0;
    must(ok(ls_pool_memory_bound(pool_, &bound)));
    for (int64_t layer = 0; bound != 0 && layer < 2; ++layer) {
      ls_tensor view;
      must(ok(ls_pool_recurrent(pool_, layer, &view)));
      add_bits(view, all);
      must(ok(ls_pool_conv_window(pool_, layer, &view)));
      if (view.rank > 0) add_bits(view, all);
    }
    ls_tensor cursor;
    if (bound != 0 && ls_pool_replay_cursor(pool_, &cursor) == LS_OK) add_bits(cursor, all);
    return all;
  }

  static void add_bits(const ls_tensor& view, std::string& all) {
    int64_t count = 1;
    for (int32_t dim = 0; dim < view.rank; ++dim) count *= view.shape[dim];
    all.append(static_cast<const char*>(view.data),
               static_cast<size_t>(count * bytes_of(view.dtype)));
  }

  std::vector<ls_row> rows() {
    std::vector<ls_row> made(static_cast<size_t>(in_.below(5)));
    int64_t kind = in_.below(4);
    for (ls_row& row : made) {
      LS_INIT(&row);
      if (in_.byte() % 3 == 0) kind = in_.below(4);
      row.slot = slot();
      row.kind = static_cast<int32_t>(in_.rarely() ? in_.hostile() : kind);
      row.start = in_.rarely() ? in_.hostile() : in_.below(4);
      row.tokens = kind == LS_ROW_DECODE ? 1 : static_cast<int32_t>(in_.below(5));
      row.num_valid = static_cast<int32_t>(in_.rarely() ? in_.hostile() : in_.below(4) - 1);
      row.num_valid = std::min(row.num_valid, row.tokens);
      row.force_flush = in_.byte() % 4 == 0;
    }
    return made;
  }

  struct BatchMemory {
    std::vector<ls_row> rows;
    std::vector<int32_t> clear, from, to, parent, table;
    std::vector<ls_snapshot_request> snapshots;
    ls_slot_restore restore{};
    ls_forward_batch batch{};
  };

  void add_slot_work(BatchMemory& memory) {
    for (int64_t n = in_.below(6) - 3; n > 0; --n) memory.clear.push_back(slot());
    for (int64_t n = in_.below(6) - 3; n > 0; --n) {
      memory.from.push_back(slot());
      memory.to.push_back(slot());
    }
    memory.batch.clear = memory.clear.data();
    memory.batch.num_clears = memory.clear.size();
    memory.batch.copy_src = memory.from.data();
    memory.batch.copy_dst = memory.to.data();
    memory.batch.num_copies = memory.from.size();
    if (pack_.empty() || in_.byte() % 4 != 0) return;
    LS_INIT(&memory.restore);
    memory.restore.pack = pack_.data();
    memory.restore.pack_size = pack_.size();
    memory.restore.slot = slot();
    memory.batch.restores = &memory.restore;
    memory.batch.num_restores = 1;
  }

  void make_batch(BatchMemory& memory) {
    LS_INIT(&memory.batch);
    memory.rows = rows();
    int64_t tokens = 0;
    bool extends = false;
    for (const ls_row& row : memory.rows) {
      tokens += row.tokens;
      extends = extends || row.kind == LS_ROW_EXTEND;
      const bool parents = row.kind == LS_ROW_VERIFY && trees_;
      for (int32_t i = 0; parents && i < row.tokens; ++i) {
        memory.parent.push_back(static_cast<int32_t>(in_.below(i + 1)) - 1);
      }
    }
    memory.batch.rows = memory.rows.data();
    memory.batch.num_rows = memory.rows.size();
    memory.batch.token_capacity = in_.rarely() ? in_.hostile() % 64 : tokens + in_.below(3);
    memory.batch.parent = memory.parent.data();
    memory.batch.num_parents = memory.parent.size();
    for (int64_t n = in_.below(6) - 3; n > 0; --n) {
      ls_snapshot_request& request = memory.snapshots.emplace_back();
      LS_INIT(&request);
      request.row = static_cast<int32_t>(in_.below(4));
      request.position = 1 + in_.below(6);
      request.slot = slot();
    }
    memory.batch.snapshots = memory.snapshots.data();
    memory.batch.num_snapshots = memory.snapshots.size();
    if (extends || in_.rarely()) add_slot_work(memory);
    if (in_.byte() % 4 != 0) return;
    for (int64_t n = 0; n < num_slots_; ++n) memory.table.push_back(slot());
    const int64_t size = num_slots_;
    memory.batch.slot_table = ls_dense(memory.table.data(), LS_I32, 1, &size);
  }

  void forward() {
    trees_ = in_.byte() % 2 == 0;
    BatchMemory memory;
    make_batch(memory);
    const std::string before = bits();
    if (!ok(ls_metadata_prepare(metadata_, &memory.batch, pool_, &context_))) {
      must(bits() == before);
      return;
    }
    verified_ = false;
    ls_batch_counts counts;
    LS_INIT(&counts);
    must(ok(ls_metadata_counts(metadata_, &counts)));
    const bool ran = run_kda(counts) && run_lightning(counts);
    ls_segment segment;
    LS_INIT(&segment);
    const ls_status found = ls_metadata_segment(metadata_, LS_ROW_VERIFY, &segment);
    verified_ = ran && found == LS_OK;
    verify_rows_ = verified_ ? segment.row_end - segment.row_begin : 0;
  }

  // NaN behind the batch's tokens, small numbers before.
  Block tokens(const ls_batch_counts& counts, int64_t a, int64_t b, int64_t c = 0) {
    Block made = c > 0 ? Block({counts.token_capacity, a, b, c}, 0.0f)
                       : Block({counts.token_capacity, a, b}, 0.0f);
    const auto row = static_cast<size_t>(a * b * std::max<int64_t>(c, 1));
    const size_t real = row * static_cast<size_t>(counts.num_tokens);
    for (size_t i = 0; i < made.values.size(); ++i) {
      made.values[i] = i < real ? static_cast<float>(i % 13) * 0.1f - 0.6f
                                : std::numeric_limits<float>::quiet_NaN();
    }
    return made;
  }

  static void check_tail(const Block& out, const ls_batch_counts& counts, int64_t row) {
    for (size_t i = static_cast<size_t>(counts.num_tokens * row); i < out.values.size(); ++i) {
      must(out.values[i] == 0.0f);
    }
  }

  void make_workspace(int64_t bytes) {
    memory_.reset(static_cast<char*>(
        std::aligned_alloc(64, static_cast<size_t>(std::max<int64_t>((bytes + 63) / 64, 1) * 64))));
    context_.workspace = memory_.get();
    context_.workspace_bytes = bytes;
  }

  bool run_kda(const ls_batch_counts& counts) {
    const int64_t value_heads = heads_ * groups_;
    const int64_t channels = (2 * heads_ + value_heads) * kDim;
    const Block conv({channels, width_}, 0.25f), A_log({value_heads}, 0.5f);
    const Block dt_bias({value_heads, kDim}, 0.1f);
    ls_kda_weights weights;
    LS_INIT(&weights);
    weights.conv_weight = conv.view;
    weights.A_log = A_log.view;
    weights.dt_bias = dt_bias.view;
    const Block qkv = tokens(counts, 1, channels), gate = tokens(counts, value_heads, kDim);
    const Block beta = tokens(counts, 1, value_heads);
    Block out({counts.token_capacity, value_heads, kDim}, 9.0f);
    ls_kda_io io;
    ls_kda_record record;
    LS_INIT(&io);
    LS_INIT(&record);
    const auto flat = [&](const Block& block, int64_t width) {
      const int64_t shape[] = {counts.token_capacity, width};
      return ls_dense(block.view.data, LS_F32, 2, shape);
    };
    io.qkv = flat(qkv, channels);
    io.gate = gate.view;
    io.beta = flat(beta, value_heads);
    io.out = out.view;
    must(ok(ls_records_kda(records_, 0, &record, &io.record_x)));
    io.record = &record;
    int64_t bytes = 0;
    if (!ok(ls_kda_backend_workspace_bytes(kda_, counts.token_capacity, pool_, &context_, nullptr,
                                           &bytes))) {
      return false;
    }
    make_workspace(bytes);
    if (!ok(ls_kda_backend_forward(kda_, 0, &weights, metadata_, pool_, &io, &context_, nullptr))) {
      return false;
    }
    check_tail(out, counts, value_heads * kDim);
    return true;
  }

  bool run_lightning(const ls_batch_counts& counts) {
    const Block slopes({heads_}, 0.25f);
    ls_lightning_weights weights;
    LS_INIT(&weights);
    weights.slopes = slopes.view;
    const Block q = tokens(counts, heads_, kDim), k = tokens(counts, heads_, kDim);
    const Block v = tokens(counts, heads_, kDim);
    Block out({counts.token_capacity, heads_, kDim}, 9.0f);
    ls_lightning_io io;
    ls_lightning_record record;
    LS_INIT(&io);
    LS_INIT(&record);
    io.q = q.view;
    io.k = k.view;
    io.v = v.view;
    io.out = out.view;
    must(ok(ls_records_lightning(records_, 1, &record)));
    io.record = &record;
    int64_t bytes = 0;
    if (!ok(ls_lightning_backend_workspace_bytes(lightning_, counts.token_capacity, pool_,
                                                 &context_, nullptr, &bytes))) {
      return false;
    }
    make_workspace(bytes);
    if (!ok(ls_lightning_backend_forward(lightning_, 1, &weights, metadata_, pool_, &io, &context_,
                                         nullptr))) {
      return false;
    }
    check_tail(out, counts, heads_ * kDim);
    return true;
  }

  void commit() {
    const int64_t count = verified_ ? verify_rows_ : in_.below(3);
    std::vector<int32_t> accepted;
    for (int64_t n = 0; n < count; ++n) {
      accepted.push_back(static_cast<int32_t>(in_.rarely() ? in_.hostile() : in_.below(4) - 1));
    }
    ls_kda_commit_io kda;
    ls_lightning_commit_io lightning;
    ls_kda_record kda_record;
    ls_lightning_record lightning_record;
    LS_INIT(&kda);
    LS_INIT(&lightning);
    LS_INIT(&kda_record);
    LS_INIT(&lightning_record);
    must(ok(ls_records_kda(records_, 0, &kda_record, &kda.record_x)));
    must(ok(ls_records_lightning(records_, 1, &lightning_record)));
    kda.record = &kda_record;
    lightning.record = &lightning_record;
    kda.accepted_node = lightning.accepted_node = ls_dense(accepted.data(), LS_I32, 1, &count);
    const Block slopes({heads_}, 0.25f);
    ls_lightning_weights weights;
    LS_INIT(&weights);
    weights.slopes = slopes.view;
    make_workspace(1 << 20);
    const std::string before = bits();
    const bool first =
        ok(ls_kda_backend_commit(kda_, 0, metadata_, pool_, &kda, &context_, nullptr));
    if (!first) must(bits() == before);
    const bool second = ok(ls_lightning_backend_commit(lightning_, 1, &weights, metadata_, pool_,
                                                       &lightning, &context_, nullptr));
    must(first || !second || !verified_);  // whatever is wrong shows at the first
    verified_ = false;
  }

  void move_pack() {
    const auto scheme = static_cast<int32_t>(in_.rarely() ? in_.hostile() : in_.below(3));
    int64_t bytes = 0, written = 0, position = 0;
    if (!ok(ls_slot_pack_bytes(&spec_, scheme, &bytes))) return;
    std::vector<char> pack(static_cast<size_t>(in_.rarely() ? in_.below(100) : bytes));
    if (ok(ls_pack_slot(pool_, slot(), in_.below(5), scheme, pack.data(), pack.size(), &written))) {
      must(written == bytes);
      pack_ = pack;
    }
    if (pack_.empty()) return;
    if (in_.rarely()) pack_[static_cast<size_t>(in_.byte()) % pack_.size()] ^= 1;
    ls_slot_pack_info info;
    ls_layer_state layers[2];
    size_t count = 0;
    LS_INIT(&info);
    LS_INIT(&layers[0]);
    const bool sound = ok(ls_read_slot_pack(pack_.data(), pack_.size(), &info, layers, 2, &count));
    const std::string before = bits();
    const bool restored =
        ok(ls_unpack_slot(pack_.data(), pack_.size(), pool_, slot(), nullptr, &position));
    if (restored) must(sound && position == info.position);
    if (!restored) must(bits() == before);
  }

  void use_cache() {
    std::vector<int64_t> tokens(static_cast<size_t>(64 * in_.below(4) + in_.below(2)));
    int64_t name = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i % 64 == 0) name = in_.below(2);
      tokens[i] = name;
    }
    const int64_t position = in_.rarely() ? in_.hostile() : 64 * in_.below(4);
    int32_t got = 0, outcome = 0, freed[3];
    int64_t at = 0;
    size_t count = 0;
    switch (in_.below(6)) {
      case 0:
        ls_prefix_lease_destroy(lease_);
        ok(ls_prefix_cache_match(cache_, tokens.data(), tokens.size(), &lease_, &got, &at));
        must(lease_ == nullptr ? got == LS_PAD_SLOT && at == 0
                               : at > 0 && at < static_cast<int64_t>(tokens.size()));
        break;
      case 1:
      case 2:
        ok(ls_prefix_cache_insert(cache_, tokens.data(), tokens.size(), position, slot(),
                                  &outcome));
        break;
      case 3:
        ok(ls_prefix_cache_erase(cache_, tokens.data(), tokens.size(), position, &got));
        break;
      case 4:
        ok(in_.byte() % 2 == 0 ? ls_prefix_cache_evict(cache_, in_.hostile())
                               : ls_prefix_cache_clear(cache_));
        break;
      default:
        if (lease_ != nullptr) ok(ls_prefix_cache_take(cache_, lease_, &got));
    }
    must(ok(ls_prefix_cache_take_freed(cache_, freed, 3, &count)) && count <= 3);
  }

  void ask() {
    ls_transfer_descriptor descriptors[6];
    ls_replay_ring ring;
    ls_tensor cursor;
    ls_rows rows;
    size_t count = 0;
    LS_INIT(&descriptors[0]);
    LS_INIT(&ring);
    LS_INIT(&rows);
    const auto room = static_cast<size_t>(in_.below(7));
    if (ok(ls_transfer_descriptors(pool_, descriptors, room, &count))) must(count == 5);
    ok(ls_pool_replay_ring(pool_, in_.hostile() % 3, &ring));
    ok(ls_pool_replay_cursor(pool_, &cursor));
    must(ok(ls_metadata_rows(metadata_, &rows)));
    int32_t taken = 0;
    ok(ls_metadata_snapshot_taken(metadata_, static_cast<size_t>(in_.below(5)), &taken));
    char text[40];
    size_t needed = 0;
    must(ok(ls_kernel_uses(text, static_cast<size_t>(in_.below(40)), &needed)));
    must(ok(ls_list_kernels(text, static_cast<size_t>(in_.below(40)), &needed)) && needed > 40);
    const int32_t id = slot();
    const int64_t one = 1;
    const ls_tensor slots = ls_dense(const_cast<int32_t*>(&id), LS_I32, 1, &one);
    ok(ls_pool_fold(pool_, &slots, &context_));
  }

  // From now on decode rows may be answered by a kernel that answers what the input says.
  void use_kernel() {
    how_ = in_.byte();
    if (in_.byte() % 2 == 0 || registered_) {
      const bool gone = ls_unregister_kernel("kda_decode", "fuzzed") == LS_OK;
      must(gone == registered_);
      registered_ = false;
      return;
    }
    ls_kernel kernel;
    LS_INIT(&kernel);
    kernel.name = "fuzzed";
    kernel.run = run_decode;
    kernel.refuse = refuse_decode;
    kernel.workspace_bytes = decode_bytes;
    kernel.user = &how_;
    kernel.device_type = in_.rarely() ? static_cast<int32_t>(in_.hostile()) : LS_CPU;
    registered_ = ok(ls_register_kernel("kda_decode", &kernel));
  }

  void change_memory() {
    int32_t bound = 0;
    must(ok(ls_pool_memory_bound(pool_, &bound)));
    if (bound == 0 || in_.byte() % 4 == 0) {
      const bool changed =
          ok(bound != 0 ? ls_pool_release_memory(pool_) : ls_pool_rebind_memory(pool_));
      must(changed);
    }
  }

  Source& in_;
  ls_model* model_ = nullptr;
  ls_pool* pool_ = nullptr;
  ls_metadata* metadata_ = nullptr;
  ls_records* records_ = nullptr;
  ls_kda_backend* kda_ = nullptr;
  ls_lightning_backend* lightning_ = nullptr;
  ls_prefix_cache* cache_ = nullptr;
  ls_prefix_lease* lease_ = nullptr;
  ls_pool_spec spec_{};
  ls_context context_{};
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  std::vector<char> pack_;
  std::vector<bool> taken_;
  int64_t num_slots_ = 0, heads_ = 1, groups_ = 1, width_ = 4, verify_rows_ = 0;
  bool event_ = true, trees_ = false, verified_ = false, registered_ = false;
  uint8_t how_ = 0;
};

inline void run_session(Source& in) {
  Session session(in);
  session.run();
}

}  // namespace linestate::fuzzing
