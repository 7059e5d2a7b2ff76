// Speculation, snapshots and replay rings through both backends at once: whatever the engine does,
// a request's state is that of decoding its accepted tokens one by one.
#include <string>

#include "backends/backend_engine_fixture.h"

namespace linestate {
namespace {

using testing::Engine;
using testing::EngineOptions;
using testing::expect_same;
using testing::HostTensor;
using testing::Piece;
using testing::Random;
using testing::StepExtras;

Piece extend(int request, int32_t slot, int64_t start, int32_t tokens) {
  return {request, {slot, RowKind::kExtend, start, tokens, -1, -1}, {}};
}
Piece decode(int request, int32_t slot, int64_t start, int64_t token) {
  return {request, {slot, RowKind::kDecode, start, 1, -1, -1}, {token}};
}
Piece verify(int request, int32_t slot, int64_t start, int32_t nodes, int32_t valid = -1) {
  return {request, {slot, RowKind::kVerify, start, nodes, valid, -1}, {}};
}

class SpeculationTest : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions options(int64_t replay_length = 1) const {
    EngineOptions options;
    options.kernel = GetParam();
    options.replay_length = replay_length;
    return options;
  }
  bool exact() const { return GetParam() == "ref"; }

  void expect_near(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b, double limit,
                   const std::string& what) const {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (exact() || a[i].dtype() == DType::kBF16) {
        EXPECT_EQ(testing::bit_difference(a[i], b[i]), "") << what << ", tensor " << i;
      } else {
        EXPECT_LE(testing::compare(a[i], b[i]).rel, limit) << what << ", tensor " << i;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, SpeculationTest, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return info.param; });

std::vector<int64_t> path_to(const std::vector<int32_t>& parent, int32_t node) {
  std::vector<int64_t> path;
  for (int32_t at = node; at >= 0; at = parent[static_cast<size_t>(at)]) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

TEST_P(SpeculationTest, CommitOfARandomTreeIsDecodingItsPath) {
  Random random(11);
  for (int round = 0; round < 6; ++round) {
    const auto nodes = static_cast<int32_t>(random.integer(2, 16));
    std::vector<int32_t> parent = {-1};
    for (int32_t i = 1; i < nodes; ++i) {
      parent.push_back(static_cast<int32_t>(random.integer(0, i - 1)));
    }
    const auto accepted = static_cast<int32_t>(random.integer(0, nodes - 1));
    Engine tree(options());
    ASSERT_TRUE(tree.run({extend(1, 5, 0, 37)}).ok());
    const std::vector<HostTensor> before = tree.slot(5);
    StepExtras extras;
    extras.parent = parent;
    const Status status = tree.run({verify(1, 5, 37, nodes)}, extras);
    ASSERT_TRUE(status.ok()) << status.to_string();
    expect_same(tree.slot(5), before, "verify writes no state");
    const auto outputs = tree.outputs(0, nodes);
    ASSERT_TRUE(tree.commit({accepted}).ok());

    Engine steps(options());
    ASSERT_TRUE(steps.run({extend(1, 5, 0, 37)}).ok());
    int64_t position = 37;
    for (const int64_t node : path_to(parent, accepted)) {
      ASSERT_TRUE(steps.run({decode(1, 5, position++, 37 + node)}).ok());
      const auto out = steps.outputs(0, 1);
      for (size_t layer = 0; layer < out.size(); ++layer) {
        const ConstTensorView got = outputs[layer].view().slice(0, node, node + 1);
        EXPECT_LE(testing::compare(got, out[layer]).rel, exact() ? 0.0 : 4e-3)
            << "node " << node << ", layer " << layer;
      }
    }
    expect_near(tree.slot(5), steps.slot(5), 2e-6, "round " + std::to_string(round));
  }
}

TEST_P(SpeculationTest, VerifyDecodeAndExtendShareABatch) {
  Engine mixed(options());
  ASSERT_TRUE(mixed.run({extend(1, 5, 0, 20), extend(2, 2, 0, 9), extend(3, 7, 0, 64)}).ok());
  // Verify rows: a chain of 4 with one placeholder, and a request's very first call.
  ASSERT_TRUE(mixed
                  .run({decode(2, 2, 9, 9), verify(1, 5, 20, 4, 3), verify(4, 0, 0, 2),
                        extend(3, 7, 64, 11)})
                  .ok());
  for (const HostTensor& out : mixed.outputs(4, 5)) EXPECT_EQ(testing::nonzero(out), "");
  ASSERT_TRUE(mixed.commit({1, -1}).ok());  // two accepted; the other row keeps its dirty slot
  EXPECT_FALSE(testing::compare(mixed.slot(0)[0], mixed.slot(0)[0]).finite) << "still NaN";

  Engine alone(options());
  ASSERT_TRUE(alone.run({extend(1, 5, 0, 20), extend(2, 2, 0, 9), extend(3, 7, 0, 64)}).ok());
  ASSERT_TRUE(alone.run({decode(1, 5, 20, 20)}).ok());
  ASSERT_TRUE(alone.run({decode(1, 5, 21, 21)}).ok());
  ASSERT_TRUE(alone.run({decode(2, 2, 9, 9)}).ok());
  ASSERT_TRUE(alone.run({extend(3, 7, 64, 11)}).ok());
  expect_near(mixed.slot(5), alone.slot(5), 2e-6, "verified");
  expect_same(mixed.slot(2), alone.slot(2), "decoded");
  expect_same(mixed.slot(7), alone.slot(7), "extended");
}

TEST_P(SpeculationTest, WhatPlaceholdersHoldRaisesNoFlag) {
  Engine engine(options());
  ASSERT_TRUE(engine.run({extend(1, 5, 0, 20)}).ok());
  ASSERT_TRUE(engine.run({verify(1, 5, 20, 4, 3)}).ok());
  KdaLayerIo kda_io = engine.layers().kda_io();
  LightningLayerIo lightning_io = engine.layers().lightning_io();
  VerifyRecords records = *VerifyRecords::create(engine.layers().model(), DType::kBF16, 4);
  kda_io.record = records.kda(0);
  kda_io.record_x = records.kda_x(0);
  lightning_io.record = records.lightning(1);
  const auto poisoned = [](ConstTensorView& view, HostTensor& memory) {
    memory = testing::copy_of(view);
    testing::fill_nan(memory.view().slice(0, 3, 4));
    view = memory;
  };
  HostTensor z;
  HostTensor gate;
  poisoned(kda_io.z, z);
  poisoned(lightning_io.gate, gate);
  DeviceStatus status;
  ExecContext context = engine.context();
  context.status = &status;
  context.check_finite = true;
  KernelOptions names;
  names.base = GetParam();
  const testing::TwoLayers& layers = engine.layers();
  ASSERT_TRUE(
      KdaBackend::create(layers.model(), names)
          ->forward(0, layers.kda_weights(), engine.metadata(), engine.pool(), kda_io, context)
          .ok());
  ASSERT_TRUE(LightningBackend::create(layers.model(), names)
                  ->forward(1, layers.lightning_weights(), engine.metadata(), engine.pool(),
                            lightning_io, context)
                  .ok());
  EXPECT_EQ(status.describe(), "");
  for (const HostTensor& out : engine.outputs(3, 4)) EXPECT_EQ(testing::nonzero(out), "");
}

TEST_P(SpeculationTest, CommitRefusesANodeThatIsNotThereBeforeWriting) {
  Engine engine(options());
  ASSERT_TRUE(engine.run({extend(1, 5, 0, 20), extend(2, 2, 0, 9)}).ok());
  ASSERT_TRUE(engine.run({verify(2, 2, 9, 3), verify(1, 5, 20, 4, 3)}).ok());
  const auto before = engine.slot(2);
  for (const int32_t bad : {3, 4, -2}) {
    EXPECT_EQ(engine.commit({0, bad}).code(), StatusCode::kInvalidArgument) << bad;
    expect_same(engine.slot(2), before, "the good row waits too");
  }
}

TEST_P(SpeculationTest, SnapshotsOfEveryPhaseAreTheSplit) {
  Engine engine(options());
  StepExtras extras;
  extras.snapshots = {{0, 64, 1}, {0, 70, 2}};
  ASSERT_TRUE(engine.run({extend(1, 5, 0, 130)}, extras).ok());
  EXPECT_TRUE(engine.metadata().snapshot_taken(0));
  extras.snapshots = {{0, 131, 3}};
  ASSERT_TRUE(engine.run({decode(1, 5, 130, 130)}, extras).ok());
  extras.snapshots = {{0, 133, 4}, {0, 135, 6}};
  ASSERT_TRUE(engine.run({verify(1, 5, 131, 4)}, extras).ok());
  const auto untouched = engine.slot(6);
  ASSERT_TRUE(engine.commit({2}).ok());  // positions 132, 133, 134 are accepted
  EXPECT_TRUE(engine.metadata().snapshot_taken(0));
  EXPECT_FALSE(engine.metadata().snapshot_taken(1));
  expect_same(engine.slot(6), untouched, "135 was not reached");

  Engine split(options());
  ASSERT_TRUE(split.run({extend(1, 5, 0, 64)}).ok());
  expect_same(engine.slot(1), split.slot(5), "64, on the grid");
  ASSERT_TRUE(split.run({extend(1, 5, 64, 6)}).ok());
  expect_near(engine.slot(2), split.slot(5), 2e-6, "70, off the grid");
  ASSERT_TRUE(split.run({extend(1, 5, 70, 60)}).ok());
  ASSERT_TRUE(split.run({decode(1, 5, 130, 130)}).ok());
  expect_near(engine.slot(3), split.slot(5), 2e-6, "131, decode");
  for (int64_t t : {131, 132}) ASSERT_TRUE(split.run({decode(1, 5, t, t)}).ok());
  expect_near(engine.slot(4), split.slot(5), 2e-6, "133, commit");

  // A request that starts from the snapshot is the request that ran through.
  StepExtras resume;
  resume.pre.copy = {{1, 7}};
  ASSERT_TRUE(engine.run({extend(1, 7, 64, 66)}, resume).ok());
  Engine whole(options());
  ASSERT_TRUE(whole.run({extend(1, 5, 0, 130)}).ok());
  expect_same(engine.slot(7), whole.slot(5), "resumed at 64");
}

// R > 1: outputs and folded state of plain decode, with snapshots, a flush, verify and prefill in
// between; R = 1 is covered by plain decode, which it must equal bit for bit.
TEST_P(SpeculationTest, ReplayRingIsPlainDecode) {
  for (const int64_t length : {2, 4, 7}) {
    Engine ring(options(length));
    Engine plain(options());
    for (Engine* engine : {&ring, &plain}) {
      ASSERT_TRUE(engine->run({extend(1, 5, 0, 33), extend(2, 2, 0, 5)}).ok());
    }
    int64_t position = 33;
    for (int step = 0; step < 11; ++step, ++position) {
      StepExtras extras;
      if (step == 5) extras.snapshots = {{0, position + 1, 3}};
      Piece second = decode(2, 2, position - 28, position);
      second.row.force_flush = step == 3;
      for (Engine* engine : {&ring, &plain}) {
        ASSERT_TRUE(engine->run({decode(1, 5, position, position), second}, extras).ok());
      }
      const auto a = ring.outputs(0, 2);
      const auto b = plain.outputs(0, 2);
      for (size_t layer = 0; layer < a.size(); ++layer) {
        EXPECT_LE(testing::compare(a[layer], b[layer]).rel, 4e-3) << length << ", " << step;
      }
      if (step == 5) {
        const auto x = ring.slot(3);
        const auto y = plain.slot(3);
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_LE(testing::compare(x[i], y[i]).rel, 2e-6) << "snapshot, plane " << i;
        }
      }
    }
    for (Engine* engine : {&ring, &plain}) {  // reads the state: the ring folds by itself
      ASSERT_TRUE(engine->run({verify(1, 5, position, 3), extend(2, 2, 16, 20)}).ok());
      ASSERT_TRUE(engine->commit({1}).ok());
    }
    for (const int64_t slot : {5, 2}) {
      const auto x = ring.slot(slot);
      const auto y = plain.slot(slot);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_LE(testing::compare(x[i], y[i]).rel, 2e-6) << "slot " << slot << ", plane " << i;
      }
    }
  }
}

// The destination of a snapshot that commit does not reach may have records pending: they belong to
// the state it keeps.
TEST_P(SpeculationTest, AnUntakenSnapshotLeavesTheRingOfItsDestination) {
  Engine ring(options(4));
  Engine plain(options());
  for (Engine* engine : {&ring, &plain}) {
    ASSERT_TRUE(engine->run({extend(1, 5, 0, 8), extend(2, 3, 0, 6)}).ok());
    ASSERT_TRUE(engine->run({decode(2, 3, 6, 6)}).ok());
    StepExtras extras;
    extras.snapshots = {{0, 11, 3}};
    ASSERT_TRUE(engine->run({verify(1, 5, 8, 3)}, extras).ok());
    ASSERT_TRUE(engine->commit({1}).ok());
    EXPECT_FALSE(engine->metadata().snapshot_taken(0));
    ASSERT_TRUE(engine->run({extend(2, 3, 7, 2)}).ok());
  }
  const auto x = ring.slot(3);
  const auto y = plain.slot(3);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(testing::compare(x[i], y[i]).rel, 2e-6) << "plane " << i;
  }
}

TEST_P(SpeculationTest, AFreshRequestDropsTheRingOfItsSlotsLastTenant) {
  Engine ring(options(4));
  ASSERT_TRUE(ring.run({extend(1, 5, 0, 8)}).ok());
  for (int64_t t = 8; t < 11; ++t) ASSERT_TRUE(ring.run({decode(1, 5, t, t)}).ok());
  Engine plain(options());
  for (Engine* engine : {&ring, &plain}) {
    ASSERT_TRUE(engine->run({extend(2, 5, 0, 6)}).ok());
    ASSERT_TRUE(engine->run({decode(2, 5, 6, 6)}).ok());
    ASSERT_TRUE(engine->run({extend(2, 5, 7, 3)}).ok());
  }
  const auto x = ring.slot(5);
  const auto y = plain.slot(5);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(testing::compare(x[i], y[i]).rel, 2e-6) << "plane " << i;
  }
}

// workspace_bytes() promises room for every batch of that many tokens; drafts need the most.
TEST_P(SpeculationTest, WorkspaceOfTheBackendsHoldsLongDrafts) {
  Engine engine(DType::kF32, DType::kBF16, GetParam(), 1);
  Piece piece;
  piece.row = {3, RowKind::kVerify, 0, 100, -1, -1};
  const Status status = engine.run({piece});
  EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace
}  // namespace linestate
