// Both backends on a GPU against the CPU, and captured graphs against eager calls.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linestate/state/slot_pack.h"
#include "tests/gpu/device_engine_fixture.h"

namespace linestate {
namespace {

using testing::DeviceEngine;
using testing::Engine;
using testing::EngineOptions;
using testing::expect_same;
using testing::HostTensor;
using testing::Piece;
using testing::StepExtras;

Piece extend(int request, int32_t slot, int64_t start, int32_t tokens, int32_t valid = -1) {
  return {request, {slot, RowKind::kExtend, start, tokens, valid, -1}, {}};
}
Piece decode(int request, int32_t slot, int64_t start) {
  return {request, {slot, RowKind::kDecode, start, 1, -1, -1}, {}};
}
Piece verify(int request, int32_t slot, int64_t start, int32_t tokens, int32_t valid = -1) {
  return {request, {slot, RowKind::kVerify, start, tokens, valid, -1}, {}};
}
Piece pad(int32_t tokens) { return {0, {kPadSlot, RowKind::kPad, 0, tokens, -1, -1}, {}}; }

// OPS "Tolerances", floors: f32 outputs; bf16 outputs at 1.05 times their rounding; f32 states.
double output_limit(DType io) { return io == DType::kF32 ? 1e-6 : 1.74e-3; }
constexpr double kStateLimit = 5e-7;

void expect_close(const std::vector<HostTensor>& got, const std::vector<HostTensor>& want,
                  double limit, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i].num_elements() == 0) continue;
    const testing::Difference difference = testing::compare(got[i], want[i]);
    EXPECT_TRUE(difference.finite) << what << ", tensor " << i;
    EXPECT_LE(difference.rel, limit) << what << ", tensor " << i << ": " << difference.text();
  }
}

// The same batches on both devices.
struct Pair {
  Engine host;
  DeviceEngine device;
  DType io;

  explicit Pair(EngineOptions options) : host(on_ref(options)), device(options), io(options.io) {}
  static EngineOptions on_ref(EngineOptions options) {
    options.kernel = "ref";  // the suite's main sends "cpu" to the GPU
    return options;
  }

  void run(const std::vector<Piece>& pieces, const StepExtras& extras, const std::string& what) {
    const Status on_host = host.run(pieces, extras);
    ASSERT_TRUE(on_host.ok()) << what << ": " << on_host.to_string();
    const Status on_device = device.run(pieces, extras);
    ASSERT_TRUE(on_device.ok()) << what << ": " << on_device.to_string();
    const int64_t tokens = host.metadata().token_capacity();
    expect_close(device.outputs(0, tokens), host.outputs(0, tokens), output_limit(io), what);
  }
  void run(const std::vector<Piece>& pieces, const std::string& what, int64_t capacity = 0) {
    StepExtras extras;
    extras.capacity = capacity;
    run(pieces, extras, what);
  }
  void commit(const std::vector<int32_t>& nodes) {
    ASSERT_TRUE(host.commit(nodes).ok());
    device.accept(nodes);
    const Status status = device.commit();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void expect_slots(std::vector<int64_t> slots, const std::string& what) {
    for (const int64_t s : slots) {
      expect_close(device.slot(s), host.slot(s), kStateLimit, what + ", slot " + std::to_string(s));
    }
  }
};

class BackendGpu : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Io, BackendGpu, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

EngineOptions options_of(DType io, int64_t ring = 1) {
  EngineOptions options;
  options.io = io;
  options.replay_length = ring;
  return options;
}

TEST_P(BackendGpu, MixedBatchesMatchTheHost) {
  Pair pair(options_of(GetParam()));
  pair.run({extend(0, 3, 0, 40), extend(1, 1, 0, 65), extend(3, 0, 0, 30)}, "bring up");
  pair.run(
      {decode(0, 3, 40), decode(1, 1, 65), pad(2), extend(2, 6, 0, 70), extend(3, 0, 30, 5, 3)},
      "mixed", 96);
  Piece padding = decode(9, kPadSlot, 4);
  padding.row.num_valid = 0;
  pair.run({decode(0, 3, 41), padding}, "padded decode", 7);
  pair.run({}, "idle", 5);
  pair.run({extend(5, 4, 0, 0), extend(1, 1, 66, 0), extend(6, 5, 0, 2, 0)}, "no tokens");
  pair.expect_slots({3, 0, 1, 6, 4, 5}, "after mixed batches");
  EXPECT_EQ(pair.device.flags(), "");
}

TEST_P(BackendGpu, VerifyAndCommitMatchTheHost) {
  Pair pair(options_of(GetParam()));
  pair.run({extend(0, 3, 0, 40), extend(1, 1, 0, 65)}, "bring up");
  StepExtras tree;
  tree.parent = {-1, 0, 0, 2, -1, 0, 1};
  Piece wide = verify(0, 3, 40, 4);
  wide.tokens = {40, 41, 41, 42};
  tree.snapshots = {{0, 42, 7}, {1, 67, 2}};
  const std::vector<HostTensor> before = pair.device.slot(3);
  pair.run({wide, verify(1, 1, 65, 3, 2)}, tree, "tree");
  expect_same(pair.device.slot(3), before, "verify writes no state");
  pair.commit({2, 0});  // row 1 comes to 66 tokens, not to its snapshot
  ASSERT_TRUE(pair.device.metadata().read_taken(pair.device.context()).ok());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(pair.device.metadata().snapshot_taken(i), pair.host.metadata().snapshot_taken(i));
  }
  pair.expect_slots({3, 1, 7}, "after commit");
  pair.run({decode(0, 3, 42), decode(1, 1, 66)}, "decode behind it");
}

TEST_P(BackendGpu, DeferredWorkSnapshotsAndRingsMatchTheHost) {
  Pair pair(options_of(GetParam(), 4));
  StepExtras first;
  first.snapshots = {{0, 33, 5}};
  first.pre.clear = {2};
  pair.run({extend(0, 3, 0, 40), extend(1, 1, 0, 65)}, first, "bring up");
  for (int64_t t = 0; t < 6; ++t) {
    pair.run({decode(0, 3, 40 + t), decode(1, 1, 65 + t)}, "ring step " + std::to_string(t));
  }
  StepExtras copies;
  copies.pre.copy = {{3, 6}};
  copies.snapshots = {{1, 72, 4}};
  pair.run({extend(0, 6, 46, 3), decode(1, 1, 71)}, copies, "copy on write");
  pair.expect_slots({3, 6, 4, 5, 2}, "after the rings");
  EXPECT_EQ(pair.device.flags(), "");
}

// One captured forward pass, replayed for batches that it has not seen.
struct GraphStep {
  std::vector<Piece> pieces;
  std::vector<int32_t> parent;
  std::vector<int32_t> accepted;
};

void expect_graph_equals_eager(const BatchShape& shape, const std::vector<GraphStep>& steps,
                               int64_t ring = 1) {
  DeviceEngine eager(options_of(DType::kBF16, ring));
  DeviceEngine replayed(options_of(DType::kBF16, ring));
  const std::vector<Piece> start = {extend(0, 3, 0, 40), extend(1, 1, 0, 65), extend(2, 0, 0, 30)};
  for (DeviceEngine* engine : {&eager, &replayed}) ASSERT_TRUE(engine->run(start).ok());
  DeviceGraph graph;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string what = "step " + std::to_string(i);
    const GraphStep& step = steps[i];
    StepExtras extras;
    extras.parent = step.parent;
    const Status done = eager.run(step.pieces, extras, shape);
    ASSERT_TRUE(done.ok()) << what << ": " << done.to_string();
    ASSERT_TRUE(replayed.prepare(step.pieces, extras, shape).ok()) << what;
    const bool commits = shape.verify.rows > 0;
    if (commits) {
      eager.accept(step.accepted);
      ASSERT_TRUE(eager.commit().ok()) << what;
      replayed.accept(step.accepted);
    }
    if (i == 0) {
      ASSERT_TRUE(DeviceGraph::begin_capture(DeviceEngine::device(), replayed.stream()).ok());
      const Status forward = replayed.forward();
      const Status commit = commits && forward.ok() ? replayed.commit() : Status();
      Result<DeviceGraph> made =
          DeviceGraph::end_capture(DeviceEngine::device(), replayed.stream());
      ASSERT_TRUE(forward.ok()) << forward.to_string();
      ASSERT_TRUE(commit.ok()) << commit.to_string();
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      graph = std::move(made).value();
      EXPECT_GT(graph.num_nodes(), 0);
    }
    ASSERT_TRUE(graph.launch(replayed.stream()).ok()) << what;
    expect_same(replayed.outputs(0, shape.num_tokens()), eager.outputs(0, shape.num_tokens()),
                what);
    for (int64_t s = 0; s < DeviceEngine::kSlots; ++s) {
      expect_same(replayed.slot(s), eager.slot(s), what + ", slot " + std::to_string(s));
    }
  }
  EXPECT_EQ(replayed.flags(), "");
}

TEST(GraphGpu, DecodeReplaysWithOtherSlotsAndFewerRows) {
  BatchShape shape;
  shape.decode.rows = 4;
  const std::vector<GraphStep> steps = {
      {{decode(0, 3, 40), decode(1, 1, 65), decode(2, 0, 30)}, {}, {}},
      {{decode(1, 1, 66)}, {}, {}},
      {{decode(2, 0, 31), decode(0, 3, 41), decode(5, 6, 0)}, {}, {}},
      {{}, {}, {}}};
  expect_graph_equals_eager(shape, steps);
  expect_graph_equals_eager(shape, steps, 3);
}

TEST(GraphGpu, ExtendReplaysWithOtherLengths) {
  BatchShape shape;
  shape.extend = {3, 160, 0};
  expect_graph_equals_eager(shape, {{{extend(0, 3, 40, 100)}, {}, {}},
                                    {{extend(1, 1, 65, 3), extend(4, 6, 0, 150)}, {}, {}},
                                    {{extend(0, 3, 140, 64), extend(2, 0, 30, 1, 0)}, {}, {}}});
}

TEST(GraphGpu, VerifyReplaysWithTreesChainsAndOtherAcceptedNodes) {
  BatchShape shape;
  shape.verify = {3, 12, 0};
  Piece tree = verify(0, 3, 40, 4);
  tree.tokens = {40, 41, 41, 42};
  expect_graph_equals_eager(
      shape, {{{tree, verify(1, 1, 65, 3)}, {-1, 0, 0, 2, -1, 0, 1}, {3, -1}},
              {{verify(1, 1, 65, 4, 3), verify(2, 0, 30, 4), verify(0, 3, 43, 2)}, {}, {1, 3, 0}},
              {{verify(2, 0, 34, 1)}, {}, {0}}});
}

TEST(GraphGpu, MixedReplays) {
  BatchShape shape;
  shape.extend = {2, 80, 0};
  shape.decode.rows = 2;
  shape.verify = {2, 8, 0};
  expect_graph_equals_eager(
      shape, {{{extend(4, 6, 0, 70), decode(0, 3, 40), verify(1, 1, 65, 3)}, {}, {2}},
              {{decode(2, 0, 30), decode(0, 3, 41)}, {}, {}},
              {{verify(1, 1, 68, 4), extend(4, 6, 70, 20), extend(7, 5, 0, 60)}, {}, {0}}});
}

TEST(PoolGpu, PacksTheBytesOfTheHost) {
  Pair pair(options_of(DType::kF32));
  pair.run({extend(0, 3, 0, 40)}, "bring up");
  const StatePool& pool = pair.device.pool();
  std::vector<std::byte> staging(static_cast<size_t>(slot_staging_bytes(pool)));
  const SlotStaging through{pair.device.stream(), staging};
  std::vector<std::byte> pack(
      static_cast<size_t>(*slot_pack_bytes(pool.spec(), PackScheme::kExact)));
  const std::vector<HostTensor> before = pair.device.slot(3);
  EXPECT_EQ(pack_slot(pool, 3, 40, PackScheme::kExact, pack).status().code(),
            StatusCode::kInvalidArgument);  // no staging
  ASSERT_TRUE(pack_slot(pool, 3, 40, PackScheme::kExact, pack, through).ok());
  ASSERT_TRUE(unpack_slot(pack, pool, 5, {}, through).ok());
  expect_same(pair.device.slot(5), before, "another slot of the device pool");
  ASSERT_TRUE(unpack_slot(pack, pair.host.pool(), 5).ok());
  expect_same(pair.host.slot(5), before, "a slot of a host pool");
}

TEST(PoolGpu, RestoresOfABatchComeBeforeItsRows) {
  Pair pair(options_of(DType::kF32));
  pair.run({extend(0, 3, 0, 40), extend(1, 2, 0, 33)}, "bring up");
  const StatePool& pool = pair.host.pool();
  const auto room = static_cast<size_t>(*slot_pack_bytes(pool.spec(), PackScheme::kExact));
  std::vector<std::byte> first(room), second(room);
  ASSERT_TRUE(pack_slot(pool, 3, 40, PackScheme::kExact, first).ok());
  ASSERT_TRUE(pack_slot(pool, 2, 33, PackScheme::kExact, second).ok());
  StepExtras extras;
  extras.pre.clear = {6};
  extras.pre.restore.push_back({first, 5, {}});
  extras.pre.restore.push_back({second, 4, {}});  // through the same staging
  pair.run({extend(0, 5, 40, 3), extend(1, 4, 33, 2)}, extras, "behind restores");
  pair.expect_slots({5, 4, 6}, "behind restores");
  EXPECT_EQ(pair.device.flags(), "");

  extras.pre.restore[1].pack = std::span(second).first(room / 2);
  const std::vector<HostTensor> before = pair.device.slot(5);
  const Status damaged = pair.device.run({extend(0, 5, 40, 3), extend(1, 4, 33, 2)}, extras);
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss);
  EXPECT_NE(damaged.message().find("pre.restore[1]"), std::string::npos) << damaged.message();
  expect_same(pair.device.slot(5), before, "a refused batch");
}

TEST(PoolGpu, RetiredSlotsWaitForTheirEvent) {
  const Device device = DeviceEngine::device();
  DeviceEngine engine;
  StatePool& pool = engine.pool();
  Result<DeviceEvent> event = DeviceEvent::create(device);
  ASSERT_TRUE(event.ok());
  const int32_t slot = *pool.allocate();
  ASSERT_TRUE(engine.run({extend(0, slot, 0, 300)}).ok());
  ASSERT_TRUE(event->record(engine.stream()).ok());
  ASSERT_TRUE(pool.retire(slot, {DeviceEvent::passed, event->handle()}).ok());
  ASSERT_TRUE(synchronize(device, engine.stream()).ok());
  EXPECT_EQ(pool.in_flight_slots(), 0);
  EXPECT_EQ(*pool.allocate(), slot);
}

TEST(PoolGpu, AdoptsDeviceMemoryAndRefusesTheHosts) {
  DeviceEngine engine;
  const PoolSpec& spec = engine.pool().spec();
  std::vector<AdoptedLayer> layers;
  for (int64_t i = 0; i < engine.pool().num_layers(); ++i) {
    layers.push_back({engine.pool().recurrent(i), engine.pool().conv_window(i)});
  }
  EXPECT_TRUE(StatePool::adopt(spec, layers).ok());
  std::vector<char> host(static_cast<size_t>(layers[0].recurrent.num_elements()) * 4);
  layers[0].recurrent.data = host.data();
  const Status refused = StatePool::adopt(spec, layers).status();
  EXPECT_NE(refused.message().find("layers[0].recurrent: expected memory of cuda:0"),
            std::string::npos)
      << refused.message();
}

TEST(StatusGpu, PollNeverBlocksAndSeesFlags) {
  DeviceEngine engine;
  Result<StatusPoll> poll = StatusPoll::create(DeviceEngine::device());
  ASSERT_TRUE(poll.ok());
  DeviceStatus seen;
  EXPECT_FALSE(poll->ready(seen));
  ASSERT_TRUE(engine.run({extend(0, 3, 0, 40)}).ok());
  ASSERT_TRUE(engine.run({decode(0, 99, 40)}).ok());  // a slot past the pool
  ASSERT_TRUE(poll->start(engine.context().status, engine.stream()).ok());
  ASSERT_TRUE(synchronize(DeviceEngine::device(), engine.stream()).ok());
  ASSERT_TRUE(poll->ready(seen));
  EXPECT_TRUE(seen.raised(DeviceFlag::kSlotOutOfRange));
  EXPECT_FALSE(poll->ready(seen));
}

TEST(MetadataGpu, SecondPrepareDoesNotDisturbTheFirst) {
  DeviceEngine engine;
  DeviceEngine waiting;
  for (DeviceEngine* e : {&engine, &waiting}) ASSERT_TRUE(e->run({extend(0, 3, 0, 40)}).ok());
  for (int64_t t = 40; t < 60; ++t) {
    ASSERT_TRUE(engine.run({decode(0, 3, t)}).ok());
    ASSERT_TRUE(waiting.run({decode(0, 3, t)}).ok());
    ASSERT_TRUE(synchronize(DeviceEngine::device(), waiting.stream()).ok());
  }
  expect_same(engine.slot(3), waiting.slot(3), "queued and waited for");
}

}  // namespace
}  // namespace linestate
