// Both backends as an engine uses them: mixed batches, padding, idle batches, split prompts,
// adopted memory. A row's result must be the same bits whatever shares its batch.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "backends/backend_engine_fixture.h"

namespace linestate {
namespace {

using testing::Engine;
using testing::expect_same;
using testing::HostTensor;
using testing::Piece;

Piece extend(int request, int32_t slot, int64_t start, int32_t tokens, int32_t valid = -1) {
  return {request, {slot, RowKind::kExtend, start, tokens, valid, -1}, {}};
}
Piece decode(int request, int32_t slot, int64_t start) {
  return {request, {slot, RowKind::kDecode, start, 1, -1, -1}, {}};
}
Piece pad(int32_t tokens) { return {0, {kPadSlot, RowKind::kPad, 0, tokens, -1, -1}, {}}; }

class BackendTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, BackendTest, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return info.param; });

// The batch of every test below: two resumed decodes, padding, a fresh and a resumed prompt.
std::vector<Piece> mixed_batch() {
  return {decode(0, 3, 40), decode(1, 1, 65), pad(2), extend(2, 6, 0, 70), extend(3, 0, 30, 5, 3)};
}

void bring_up(Engine& engine) {
  ASSERT_TRUE(engine.run({extend(0, 3, 0, 40), extend(1, 1, 0, 65), extend(3, 0, 0, 30)}).ok());
}

TEST_P(BackendTest, MixedBatchGivesEachRowTheBitsItHasAlone) {
  Engine batch(DType::kF32, DType::kBF16, GetParam(), 3);
  bring_up(batch);
  ASSERT_TRUE(batch.run(mixed_batch(), 96).ok());

  int64_t token = 0;
  for (const Piece& piece : mixed_batch()) {
    const int64_t end = token + piece.row.tokens;
    const int64_t begin = token;
    const auto outputs = batch.outputs(begin, end);
    token = end;
    if (piece.row.kind == RowKind::kPad) {
      for (const HostTensor& out : outputs) EXPECT_EQ(testing::nonzero(out), "");
      continue;
    }
    Engine alone(DType::kF32, DType::kBF16, GetParam(), 1);
    if (piece.row.start > 0) {
      ASSERT_TRUE(alone
                      .run({extend(piece.request, piece.row.slot, 0,
                                   static_cast<int32_t>(piece.row.start))})
                      .ok());
    }
    ASSERT_TRUE(alone.run({piece}).ok());
    const std::string what = "request " + std::to_string(piece.request);
    for (const HostTensor& out : outputs) {
      EXPECT_TRUE(testing::compare(out, out).finite) << what;
      if (piece.row.num_valid < 0) continue;
      const ConstTensorView placeholders = out.view().slice(0, piece.row.num_valid, end - begin);
      EXPECT_EQ(testing::nonzero(placeholders), "") << what;
    }
    expect_same(outputs, alone.outputs(0, piece.row.tokens), what);
    expect_same(batch.slot(piece.row.slot), alone.slot(piece.row.slot), what);
  }
  for (const HostTensor& out : batch.outputs(token, 96)) EXPECT_EQ(testing::nonzero(out), "");
}

TEST_P(BackendTest, KindsMayComeInAnyOrder) {
  Engine first(DType::kF32, DType::kBF16, GetParam());
  Engine second(DType::kF32, DType::kBF16, GetParam());
  bring_up(first);
  bring_up(second);
  const std::vector<Piece> m = mixed_batch();
  ASSERT_TRUE(first.run(m).ok());
  ASSERT_TRUE(second.run({m[4], m[3], m[2], m[1], m[0]}).ok());
  for (int64_t slot : {3, 1, 6, 0}) {
    expect_same(first.slot(slot), second.slot(slot), "slot " + std::to_string(slot));
  }
  expect_same(first.outputs(0, 1), second.outputs(78, 79), "request 0");
}

TEST_P(BackendTest, UnnamedSlotsKeepTheirBytes) {
  Engine engine(DType::kBF16, DType::kBF16, GetParam());
  bring_up(engine);
  std::map<int64_t, std::vector<HostTensor>> before;
  for (int64_t slot : {2, 4, 5, 7}) before[slot] = engine.slot(slot);
  ASSERT_TRUE(engine.run(mixed_batch()).ok());
  for (const auto& [slot, bytes] : before) {
    expect_same(engine.slot(slot), bytes, "slot " + std::to_string(slot));
  }
}

// A captured decode batch with fewer live rows: surplus rows keep their kind, their slot is -1 and
// their inputs are garbage.
TEST_P(BackendTest, DecodeRowsWithPaddingSlotsGiveZeros) {
  Engine engine(DType::kF32, DType::kBF16, GetParam());
  bring_up(engine);
  Piece padded = decode(9, kPadSlot, 4);
  padded.row.num_valid = 0;
  ASSERT_TRUE(engine.run({decode(0, 3, 40), padded, padded}).ok());
  for (const HostTensor& out : engine.outputs(1, 3)) EXPECT_EQ(testing::nonzero(out), "");
  for (const HostTensor& out : engine.outputs(0, 1)) EXPECT_NE(testing::nonzero(out), "");
}

TEST_P(BackendTest, IdleBatchWritesZeros) {
  Engine engine(DType::kF32, DType::kBF16, GetParam());
  ASSERT_TRUE(engine.run({}, 5).ok());
  for (const HostTensor& out : engine.outputs(0, 5)) EXPECT_EQ(testing::nonzero(out), "");
}

TEST_P(BackendTest, FreshRowWithoutTokensLeavesZerosAndResumedOneLeavesBits) {
  Engine engine(DType::kF32, DType::kBF16, GetParam());
  bring_up(engine);
  const std::vector<HostTensor> before = engine.slot(1);
  ASSERT_TRUE(engine.run({extend(5, 4, 0, 0), extend(1, 1, 65, 0), extend(6, 5, 0, 2, 0)}).ok());
  expect_same(engine.slot(1), before, "resumed, no tokens");
  for (int64_t slot : {4, 5}) {
    for (const HostTensor& plane : engine.slot(slot)) EXPECT_EQ(testing::nonzero(plane), "");
  }
}

// Split rule through a whole layer: prompt in one call, in pieces, and token by token.
TEST_P(BackendTest, SplitPromptGivesTheSameLayer) {
  constexpr int32_t kTokens = 150;
  Engine whole(DType::kF32, DType::kBF16, GetParam());
  ASSERT_TRUE(whole.run({extend(0, 2, 0, kTokens)}).ok());

  Engine pieces(DType::kF32, DType::kBF16, GetParam());
  for (const auto& [begin, end] : {std::pair{0, 64}, {64, 128}, {128, kTokens}}) {
    ASSERT_TRUE(pieces.run({extend(0, 2, begin, end - begin)}).ok());
    expect_same(pieces.outputs(0, end - begin), whole.outputs(begin, end),
                "piece from " + std::to_string(begin));
  }
  expect_same(pieces.slot(2), whole.slot(2), "pieces on the grid");

  Engine steps(DType::kF32, DType::kBF16, GetParam());
  ASSERT_TRUE(steps.run({extend(0, 2, 0, 37)}).ok());
  for (int64_t t = 37; t < kTokens; ++t) {
    ASSERT_TRUE(steps.run({decode(0, 2, t)}).ok());
    const auto out = steps.outputs(0, 1);
    const auto expected = whole.outputs(t, t + 1);
    for (size_t layer = 0; layer < out.size(); ++layer) {
      if (GetParam() == "ref") {
        EXPECT_EQ(testing::bit_difference(out[layer], expected[layer]), "") << t;
      } else {
        // One bf16 ulp apart at most, where the f32 results straddle a rounding border.
        EXPECT_LE(testing::compare(out[layer], expected[layer]).rel, 4e-3) << t;
      }
    }
  }
  const auto a = steps.slot(2);
  const auto b = whole.slot(2);
  for (size_t i = 0; i < a.size(); ++i) {
    if (GetParam() == "ref" || a[i].dtype() == DType::kBF16) {
      EXPECT_EQ(testing::bit_difference(a[i], b[i]), "") << "plane " << i;
    } else {
      EXPECT_LE(testing::compare(a[i], b[i]).rel, 5e-6) << "plane " << i;
    }
  }
}

TEST_P(BackendTest, AdoptedPageMajorMemoryGivesTheSameBits) {
  Engine created(DType::kF16, DType::kF16, GetParam());
  Engine adopted(DType::kF16, DType::kF16, GetParam());
  const PoolSpec spec = make_pool_spec(created.layers().model(), DType::kF16, DType::kF16);
  const int64_t page = bytes_per_slot(spec) / 2 + 64;  // elements, all planes are 16-bit
  HostTensor pages(DType::kF16, {8, page});
  testing::fill_nan(pages);
  char* base = static_cast<char*>(pages.data());
  std::vector<AdoptedLayer> layers(2);
  int64_t offset = 0;
  auto plane = [&](std::initializer_list<int64_t> shape) {
    TensorView view(base + 2 * offset, DType::kF16, shape);
    offset += view.stride[0];
    view.stride[0] = page;
    return view;
  };
  const LayerState& kda = spec.layers[0];
  const LayerState& lightning = spec.layers[1];
  layers[0].recurrent = plane({8, kda.heads, kda.v_dim, kda.k_dim});
  layers[0].conv_window = plane({8, kda.conv_channels, kda.conv_tail});
  layers[1].recurrent = plane({8, lightning.heads, lightning.k_dim, lightning.v_dim});
  Result<StatePool> pool = StatePool::adopt(spec, layers);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  adopted.replace_pool(*std::move(pool));
  for (Engine* engine : {&created, &adopted}) {
    bring_up(*engine);
    ASSERT_TRUE(engine->run(mixed_batch()).ok());
  }
  expect_same(adopted.outputs(0, 79), created.outputs(0, 79), "outputs");
  for (int64_t slot : {3, 1, 6, 0}) expect_same(adopted.slot(slot), created.slot(slot), "slot");
  for (int64_t s = 0; s < 8; ++s) {  // the spare bytes of every page
    const ConstTensorView spare = pages.view().select(0, s).slice(0, offset, page);
    HostTensor nan(DType::kF16, {page - offset});
    testing::fill_nan(nan);
    EXPECT_EQ(testing::bit_difference(spare, nan), "") << "page " << s;
  }
}

TEST(Backend, ThreadCountChangesNoBit) {
  std::optional<std::vector<HostTensor>> first;
  for (int threads : {1, 2, 3, 5}) {
    Engine engine(DType::kF32, DType::kBF16, "cpu", threads);
    bring_up(engine);
    ASSERT_TRUE(engine.run(mixed_batch()).ok());
    auto out = engine.outputs(0, 79);
    if (first) expect_same(out, *first, std::to_string(threads) + " threads");
    if (!first) first = std::move(out);
  }
}

TEST(Backend, CpuAgreesWithRef) {
  for (DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    Engine cpu(DType::kF32, io, "cpu");
    Engine ref(DType::kF32, io, "ref");
    for (Engine* engine : {&cpu, &ref}) {
      bring_up(*engine);
      ASSERT_TRUE(engine->run(mixed_batch()).ok());
    }
    const auto a = cpu.outputs(0, 79);
    const auto b = ref.outputs(0, 79);
    for (size_t layer = 0; layer < a.size(); ++layer) {
      // 16-bit outputs round nearly equal f32 values: they differ by one ulp where a rounding
      // border lies between the two, which is rare.
      const double limit = io == DType::kF32 ? 1e-6 : 3e-4;
      EXPECT_LE(testing::compare(a[layer], b[layer]).rel, limit) << layer;
    }
    for (int64_t slot : {3, 1, 6, 0}) {
      const auto x = cpu.slot(slot);
      const auto y = ref.slot(slot);
      EXPECT_LE(testing::compare(x[0], y[0]).rel, 5e-5);
      EXPECT_EQ(testing::bit_difference(x[1], y[1]), "") << "windows keep inputs exactly";
      EXPECT_LE(testing::compare(x[2], y[2]).rel, 5e-7);
    }
  }
}

}  // namespace
}  // namespace linestate
