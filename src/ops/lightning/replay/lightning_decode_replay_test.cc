#include <gtest/gtest.h>

#include <cmath>

#include "linestate/ops/replay_ring.h"
#include "ops/lightning/lightning_draft_case.h"

namespace linestate::testing {
namespace {

/// A replayed decode of rows whose tokens are drawn step by step, beside the plain one.
class ReplayRun {
 public:
  LightningShape shape;
  HostTensor state, plain;
  HostTensor keys, values;
  std::vector<int32_t> cursor;
  DeviceStatus status;
  HostTensor out, plain_out;

  ReplayRun(LightningShape shape_in, int64_t length, DType ring)
      : shape(std::move(shape_in)), length_(length) {
    LightningCase first(shape);
    state = first.state.clone();
    plain = first.state.clone();
    keys = HostTensor(ring, {shape.slots, shape.heads, length - 1, shape.dim});
    values = HostTensor(ring, {shape.slots, shape.heads, length - 1, shape.dim});
    if (length > 1) {
      fill_nan(keys);  // records above the cursor are stale
      fill_nan(values);
    }
    cursor.assign(static_cast<size_t>(shape.slots), 0);
  }

  bool live(const LightningRow& row) const {
    return row.slot >= 0 && row.slot < shape.slots && row.num_valid != 0;
  }

  /// One token of every row; rows in `forced` flush. Moves cursors and starts.
  void step(uint64_t seed, const std::vector<int>& forced, const char* kernel, int threads = 1) {
    shape.seed = seed;
    std::vector<int32_t> pending;
    HostTensor flush(DType::kU8, {static_cast<int64_t>(shape.rows.size())});
    for (size_t n = 0; n < shape.rows.size(); ++n) {
      LightningRow& row = shape.rows[n];
      const bool alive = live(row);
      int32_t& at = cursor[static_cast<size_t>(alive ? row.slot : 0)];
      if (alive && row.start == 0) at = 0;
      pending.push_back(alive ? at : 12345);  // nobody looks at it
      const bool full = alive && at == length_ - 1;
      const bool now = full || (alive && !forced.empty() && forced[n] != 0);
      flush.set(static_cast<int64_t>(n), now ? 1 : 0);
      if (alive) at = now ? 0 : at + 1;
    }
    LightningCase replayed(shape);
    LightningCase decoded(shape);
    replayed.params.state = state;
    decoded.params.state = plain;
    const HostTensor pending_tensor = i32_tensor(pending);
    LightningReplayParams params{replayed.params, {keys, values, {}}, pending_tensor, flush};
    ASSERT_EQ(run_sized(lightning_decode_replay, lightning_decode_replay_workspace_bytes, params,
                        kernel, threads, &status)
                  .to_string(),
              "ok");
    ASSERT_EQ(run_lightning(lightning_decode, lightning_decode_workspace_bytes, decoded, kernel)
                  .to_string(),
              "ok");
    out = replayed.out.clone();
    plain_out = decoded.out.clone();
    for (LightningRow& row : shape.rows) {
      if (live(row)) ++row.start;
    }
  }

 private:
  int64_t length_;
};

class LightningDecodeReplay : public ::testing::TestWithParam<const char*> {
 protected:
  bool exact() const { return std::string(GetParam()) == "ref"; }
};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningDecodeReplay, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LightningDecodeReplay, FollowsPlainDecode) {
  for (int64_t length : {2, 3, 8, 64}) {
    SCOPED_TRACE(length);
    LightningShape shape;
    shape.dim = 32;
    shape.rows = {{3, 17, 1}, {0, 0, 1}, {5, 1, 1}, {-1, 4, 1}, {2, 4, 1, 0}};
    ReplayRun run(shape, length, DType::kF32);
    fill_nan(run.state.view().slice(0, 0, 1));  // the fresh row's slot
    for (uint64_t t = 0; t < static_cast<uint64_t>(length) + 6; ++t) {
      const std::vector<int> forced = {0, t == 4, t == 0, 1, 1};
      const HostTensor before = run.state.clone();
      run.step(300 + t, forced, GetParam());
      if (exact()) {
        EXPECT_EQ(bit_difference(run.out, run.plain_out), "") << t;
      } else {
        EXPECT_LE(compare(run.out, run.plain_out).rel, 1e-6) << t;
      }
      EXPECT_EQ(nonzero(run.out.view().slice(0, 3, 5)), "");
      for (int32_t slot : {3, 0, 5}) {
        const bool empty = run.cursor[static_cast<size_t>(slot)] == 0;
        if (empty && exact()) {
          EXPECT_EQ(bit_difference(slot_of(run.state, slot), slot_of(run.plain, slot)), "");
        } else if (empty) {
          EXPECT_LE(compare(slot_of(run.state, slot), slot_of(run.plain, slot)).rel, 5e-7);
        } else if (slot == 0 && t == 0) {
          EXPECT_EQ(nonzero(slot_of(run.state, slot)), "");  // a fresh row's checkpoint is zero
        } else {
          EXPECT_EQ(bit_difference(slot_of(run.state, slot), slot_of(before, slot)), "");
        }
      }
      for (int64_t slot : {1, 2, 4}) {
        EXPECT_EQ(bit_difference(slot_of(run.state, slot), slot_of(before, slot)), "");
      }
    }
    for (int64_t slot : {1, 2, 4}) {  // rings of slots without a row hold their canary
      HostTensor canary = copy_of(slot_of(run.keys, slot));
      fill_nan(canary);
      EXPECT_EQ(bit_difference(slot_of(run.keys, slot), canary), "");
      EXPECT_EQ(bit_difference(slot_of(run.values, slot), canary), "");
    }
    EXPECT_EQ(run.status.describe(), "");
  }
}

TEST_P(LightningDecodeReplay, LengthOneIsPlainDecodeBitForBit) {
  const DType all[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (DType io : all) {
    for (DType pool : all) {
      LightningShape shape;
      shape.dim = 48;
      shape.io = io;
      shape.out = io;
      shape.state = pool;
      shape.rows = {{3, 17, 1}, {0, 0, 1}, {-1, 1, 1}, {2, 0, 1, 0}};
      ReplayRun run(shape, 1, io == DType::kF16 ? DType::kF16 : DType::kF32);
      for (uint64_t t = 0; t < 3; ++t) {
        run.step(t, {}, GetParam());
        EXPECT_EQ(bit_difference(run.out, run.plain_out), "");
        EXPECT_EQ(bit_difference(run.state, run.plain), "");
      }
    }
  }
}

TEST_P(LightningDecodeReplay, NarrowRingsAndPoolsStayWithinTheirRounding) {
  LightningShape shape;
  shape.dim = 64;
  shape.rows = {{3, 17, 1}, {1, 0, 1}};
  ReplayRun half(shape, 4, DType::kF16);
  for (uint64_t t = 0; t < 12; ++t) {
    half.step(t, {}, GetParam());
    EXPECT_LE(compare(half.out, half.plain_out).rel, 1e-3) << t;
  }
  EXPECT_LE(compare(half.state, half.plain).rel, 1e-3);

  shape.io = DType::kBF16;
  shape.out = DType::kBF16;
  shape.state = DType::kBF16;
  ReplayRun narrow(shape, 4, DType::kF32);  // rounds the pool once in four tokens
  for (uint64_t t = 0; t < 8; ++t) {
    narrow.step(t, {}, GetParam());
    EXPECT_LE(compare(narrow.out, narrow.plain_out).rel, 1e-2) << t;
  }
  EXPECT_LE(compare(narrow.state, narrow.plain).rel, 1e-2);
}

TEST_P(LightningDecodeReplay, ThreadsDoNotMatter) {
  LightningShape shape;
  shape.dim = 32;
  shape.rows = {{3, 17, 1}, {0, 0, 1}, {5, 1, 1}};
  ReplayRun one(shape, 3, DType::kF32);
  ReplayRun three(shape, 3, DType::kF32);
  for (uint64_t t = 0; t < 5; ++t) {
    one.step(t, {}, GetParam(), 1);
    three.step(t, {}, GetParam(), 3);
    EXPECT_EQ(bit_difference(one.out, three.out), "");
    EXPECT_EQ(bit_difference(one.state, three.state), "");
  }
}

// The public protocol: cursors from replay_step_begin, a fold before the ring is full, and on.
TEST_P(LightningDecodeReplay, FoldsLeaveTheStateOfPlainDecode) {
  LightningShape shape;
  shape.dim = 32;
  shape.rows = {{3, 17, 1}, {0, 0, 1}, {-1, 4, 1}};
  LightningCase first(shape);
  HostTensor state = first.state.clone();
  HostTensor plain = first.state.clone();
  HostTensor keys(DType::kF32, {6, 2, 7, 32}), values(DType::kF32, {6, 2, 7, 32});
  fill_nan(keys);
  fill_nan(values);
  HostTensor cursor(DType::kI32, {6});
  HostTensor pending(DType::kI32, {3});
  HostTensor flush(DType::kU8, {3});
  const HostTensor slots = i32_tensor({0, -1, 3});
  for (uint64_t t = 0; t < 20; ++t) {
    shape.seed = 50 + t;
    LightningCase replayed(shape), decoded(shape);
    replayed.params.state = state;
    decoded.params.state = plain;
    ReplayStepParams begin;
    begin.rows = replayed.params.rows;
    begin.ring_length = 8;
    begin.cursor = cursor;
    begin.pending = pending;
    begin.flush = flush;
    ASSERT_EQ(replay_step_begin(begin, {}, GetParam()).to_string(), "ok");
    const LightningReplayParams params{replayed.params, {keys, values, {}}, pending, flush};
    ASSERT_EQ(run_sized(lightning_decode_replay, lightning_decode_replay_workspace_bytes, params,
                        GetParam())
                  .to_string(),
              "ok");
    ASSERT_EQ(run_lightning(lightning_decode, lightning_decode_workspace_bytes, decoded, GetParam())
                  .to_string(),
              "ok");
    EXPECT_LE(compare(replayed.out, decoded.out).rel, 1e-6) << t;
    for (size_t n = 0; n < 2; ++n) ++shape.rows[n].start;
    if (t % 5 != 2) continue;
    const ReplayFoldLayer layer{state, {keys, values, {}}, replayed.slopes, 0};
    ASSERT_EQ(replay_fold({{&layer, 1}, slots, cursor}, {}, GetParam()).to_string(), "ok");
    EXPECT_EQ(nonzero(cast_of(cursor, DType::kF32)), "");
    EXPECT_LE(compare(state, plain).rel, 5e-7) << t;
  }
}

TEST_P(LightningDecodeReplay, StridedRingsAndPools) {
  LightningShape shape;
  shape.dim = 16;
  shape.slots = 4;
  shape.rows = {{3, 17, 1}, {0, 5, 1}};
  LightningCase plain(shape);
  LightningCase strided(shape);
  HostTensor keys(DType::kF32, {4, 2, 3, 16}), values(DType::kF32, {4, 2, 3, 16});
  fill_normal(keys, 31);
  fill_normal(values, 32);
  HostTensor wide_k(DType::kF32, {3, 2, 4, 16, 2});  // records first, every other element
  HostTensor wide_v(DType::kF32, {3, 2, 4, 16, 2});
  HostTensor turned(DType::kF32, {4, 2, 16, 16});
  fill_nan(wide_k);
  fill_nan(wide_v);
  for (int64_t i = 0; i < keys.num_elements(); ++i) {
    const int64_t d = i % 16, j = i / 16 % 3, h = i / 48 % 2, slot = i / 96;
    const int64_t at = ((j * 2 + h) * 4 + slot) * 32 + 2 * d;
    wide_k.set(at, keys.at(i));
    wide_v.set(at, values.at(i));
  }
  for (int64_t i = 0; i < turned.num_elements(); ++i) {
    turned.set(i / 256 * 256 + i % 16 * 16 + i / 16 % 16, strided.state.at(i));
  }
  const ReplayRing ring{
      wide_k.view().select(4, 0).transpose(0, 2), wide_v.view().select(4, 0).transpose(0, 2), {}};
  const HostTensor pending = i32_tensor({2, 3});
  HostTensor flush(DType::kU8, {2, 5});
  flush.set(5, 1);
  const ConstTensorView flags = flush.view().select(1, 0);
  LightningReplayParams a{plain.params, {keys, values, {}}, pending, flags};
  LightningReplayParams b{strided.params, ring, pending, flags};
  b.lightning.state = turned.view().transpose(2, 3);
  for (const LightningReplayParams* params : {&a, &b}) {
    ASSERT_EQ(run_sized(lightning_decode_replay, lightning_decode_replay_workspace_bytes, *params,
                        GetParam())
                  .to_string(),
              "ok");
  }
  EXPECT_EQ(bit_difference(plain.out, strided.out), "");
  EXPECT_EQ(bit_difference(b.lightning.state, plain.state), "");
  EXPECT_EQ(bit_difference(b.ring.keys, keys), "");
  EXPECT_EQ(bit_difference(b.ring.values, values), "");
}

TEST_P(LightningDecodeReplay, OverflowOfANarrowRingIsReported) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{3, 17, 1}, {4, 2, 1}};
  LightningCase test(shape);
  fill_constant(test.v.view().slice(0, 1, 2), 1e6);
  HostTensor keys(DType::kF16, {6, 2, 3, 16});
  HostTensor values(DType::kF16, {6, 2, 3, 16});
  const HostTensor pending = i32_tensor({0, 0});
  const HostTensor flush(DType::kU8, {2});
  LightningReplayParams params{test.params, {keys, values, {}}, pending, flush};
  params.lightning.layer = 2;
  ASSERT_EQ(run_sized(lightning_decode_replay, lightning_decode_replay_workspace_bytes, params,
                      GetParam(), 1, &test.status)
                .to_string(),
            "ok");
  EXPECT_EQ(test.status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(test.status.overflow_slot.load(), 4);
  EXPECT_EQ(test.status.overflow_layer.load(), 2);
}

TEST_P(LightningDecodeReplay, RefusesByNameBeforeAnythingIsWritten) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{3, 17, 1}, {1, 0, 1}};
  const auto refusal = [&](auto change) {
    LightningCase test(shape);
    HostTensor keys(DType::kF32, {6, 2, 3, 16});
    HostTensor values(DType::kF32, {6, 2, 3, 16});
    HostTensor pending = i32_tensor({2, 0});
    HostTensor flush(DType::kU8, {2});
    const HostTensor before = test.state.clone();
    LightningReplayParams params{test.params, {keys, values, {}}, pending, flush};
    change(params, pending, flush);
    const Status status = run_sized(lightning_decode_replay,
                                    lightning_decode_replay_workspace_bytes, params, GetParam());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bit_difference(test.state, before), "");
    EXPECT_EQ(nonzero(keys), "");
    EXPECT_TRUE(std::isnan(test.out.at(0)));
    return status.message().substr(0, status.message().find(':'));
  };
  using Params = LightningReplayParams;
  using T = HostTensor;
  HostTensor other(DType::kF32, {6, 2, 64, 16});
  HostTensor half(DType::kF16, {6, 2, 3, 16});
  HostTensor narrow(DType::kBF16, {6, 2, 3, 16});
  const SnapshotTensors plan({{0, 18, 5}});
  EXPECT_EQ(refusal([](Params&, T& pending, T&) { pending.set(0, 4); }), "pending");
  EXPECT_EQ(refusal([](Params&, T& pending, T&) { pending.set(0, -1); }), "pending");
  EXPECT_EQ(refusal([](Params&, T& pending, T&) { pending.set(1, 1); }), "pending");
  EXPECT_EQ(refusal([](Params&, T& pending, T&) { pending.set(0, 3); }), "flush");
  EXPECT_EQ(refusal([](Params& p, T&, T&) { p.pending = {}; }), "pending");
  EXPECT_EQ(refusal([](Params& p, T&, T&) { p.flush = p.pending; }), "flush");
  EXPECT_EQ(refusal([&](Params& p, T&, T&) { p.ring.keys = other; }), "ring.keys");
  EXPECT_EQ(refusal([&](Params& p, T&, T&) { p.ring.keys = narrow; }), "ring.keys");
  EXPECT_EQ(refusal([&](Params& p, T&, T&) { p.ring.values = half; }), "ring.values");
  EXPECT_EQ(refusal([](Params& p, T&, T&) { p.ring.values = {}; }), "ring.values");
  EXPECT_EQ(refusal([](Params& p, T&, T&) { p.ring.values = p.ring.keys; }), "ring.keys");
  EXPECT_EQ(refusal([&](Params& p, T&, T&) { p.ring.gamma = other; }), "ring.gamma");
  EXPECT_EQ(refusal([&](Params& p, T&, T&) { p.lightning.snapshots = plan.view(); }), "snapshots");
}

}  // namespace
}  // namespace linestate::testing
