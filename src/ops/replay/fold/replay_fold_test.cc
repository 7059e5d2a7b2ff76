// Folds of KDA and Lightning layers that share a cursor, against the formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "linestate/ops/replay_ring.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

constexpr int64_t kSlots = 5;
constexpr int64_t kRecords = 6;
constexpr int64_t kKeyDim = 32;

struct Layer {
  bool lightning = false;
  int64_t heads, rows, columns;  // of the state
  HostTensor state, keys, values, gamma, slopes;

  ReplayFoldLayer view() {
    ReplayFoldLayer layer{state, {keys, values, {}}, {}, 0};
    if (lightning) layer.slopes = slopes;
    if (!lightning) layer.ring.gamma = gamma;
    return layer;
  }
};

Layer make_layer(bool lightning, DType state, DType ring, uint64_t seed) {
  Layer layer;
  layer.lightning = lightning;
  layer.heads = lightning ? 2 : 3;
  layer.rows = lightning ? kKeyDim : 16;
  layer.columns = kKeyDim;
  const int64_t value_dim = lightning ? layer.columns : layer.rows;
  layer.state = HostTensor(state, {kSlots, layer.heads, layer.rows, layer.columns});
  layer.keys = HostTensor(ring, {kSlots, layer.heads, kRecords, kKeyDim});
  layer.values = HostTensor(ring, {kSlots, layer.heads, kRecords, value_dim});
  layer.gamma = HostTensor(DType::kF32, {kSlots, layer.heads, kKeyDim});
  layer.slopes = f32_tensor({0.5f, 0.004f});
  fill_normal(layer.state, seed);
  fill_normal(layer.keys, seed + 1);
  fill_normal(layer.values, seed + 2);
  fill_uniform(layer.gamma, seed + 3, 0.0, 1.0);
  return layer;
}

double folded(const Layer& x, int64_t slot, int64_t h, int64_t a, int64_t b, int64_t c) {
  const int64_t head = slot * x.heads + h;
  const double before = x.state.at((head * x.rows + a) * x.columns + b);
  const auto record = [&](const HostTensor& part, int64_t j, int64_t i) {
    return part.at((head * kRecords + j) * part.shape()[3] + i);
  };
  if (!x.lightning) {
    double S = before * x.gamma.at(head * kKeyDim + b);
    for (int64_t j = 0; j < c; ++j) S += record(x.values, j, a) * record(x.keys, j, b);
    return S;
  }
  double S = before;  // token by token
  for (int64_t j = 0; j < c; ++j) {
    S = std::exp(-x.slopes.at(h)) * S + record(x.keys, j, a) * record(x.values, j, b);
  }
  return S;
}

class ReplayFold : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ReplayFold, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ReplayFold, AllLayersTakeTheirRecords) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (DType ring : {DType::kF32, DType::kF16}) {
      std::vector<Layer> layers;
      layers.push_back(make_layer(false, dtype, ring, 11));
      layers.push_back(make_layer(true, dtype, ring, 21));
      std::vector<HostTensor> want;
      const std::vector<int64_t> pending = {6, 0, 3, 1, 2};
      const std::vector<bool> wanted = {true, true, true, false, true};
      for (Layer& layer : layers) {
        HostTensor exact = cast_of(layer.state.view(), DType::kF32);
        const int64_t size = layer.rows * layer.columns;
        for (int64_t i = 0; i < exact.num_elements(); ++i) {
          const int64_t head = i / size;
          const auto slot = static_cast<size_t>(head / layer.heads);
          if (!wanted[slot] || pending[slot] == 0) continue;
          exact.set(i, folded(layer, head / layer.heads, head % layer.heads,
                              i % size / layer.columns, i % layer.columns, pending[slot]));
        }
        want.push_back(std::move(exact));
      }
      // Nothing that is not pending is looked at.
      for (Layer& layer : layers) {
        fill_nan(layer.keys.view().select(0, 2).slice(1, 3, kRecords));
        fill_nan(layer.values.view().select(0, 1));
        fill_nan(layer.gamma.view().select(0, 1));
      }
      HostTensor cursor = i32_tensor({6, 0, 3, 1, 2});
      const HostTensor slots = i64_tensor({4, -1, 0, 1, 9, 2});
      std::vector<HostTensor> before;
      std::vector<ReplayFoldLayer> views;
      for (Layer& layer : layers) {
        before.push_back(layer.state.clone());
        views.push_back(layer.view());
      }
      for (int threads : {2, 1}) {
        ExecContext context;
        context.num_threads = threads;
        for (size_t l = 0; l < layers.size() && threads == 1; ++l) {
          // The second fold finds empty rings: not a bit changes.
          before[l] = layers[l].state.clone();
        }
        ASSERT_EQ(replay_fold({views, slots, cursor}, context, GetParam()).to_string(), "ok");
        for (size_t l = 0; l < layers.size(); ++l) {
          const double limit = dtype == DType::kF32 ? 5e-7 : 1.05 * rounding_error(want[l], dtype);
          EXPECT_LE(compare(layers[l].state, want[l]).rel, limit) << l;
          for (int64_t slot : {1, 3}) {
            EXPECT_EQ(bit_difference(layers[l].state.view().slice(0, slot, slot + 1),
                                     before[l].view().slice(0, slot, slot + 1)),
                      "");
          }
          if (threads == 1) {
            EXPECT_EQ(bit_difference(layers[l].state, before[l]), "");
          }
        }
        const std::vector<double> left = {0, 0, 0, 1, 0};
        for (int64_t s = 0; s < kSlots; ++s) {
          EXPECT_EQ(cursor.at(s), left[static_cast<size_t>(s)]);
        }
      }
    }
  }
}

TEST_P(ReplayFold, OverflowIsReported) {
  Layer layer = make_layer(false, DType::kF16, DType::kF32, 31);
  layer.keys.set(3 * kRecords * kKeyDim, 1e6);  // slot 1, head 0
  ReplayFoldLayer view = layer.view();
  view.layer = 7;
  HostTensor cursor = i32_tensor({1, 1, 0, 0, 0});
  const HostTensor slots = i32_tensor({0, 1});
  DeviceStatus status;
  ExecContext context;
  context.status = &status;
  ASSERT_TRUE(replay_fold({{&view, 1}, slots, cursor}, context, GetParam()).ok());
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(status.overflow_slot.load(), 1);
  EXPECT_EQ(status.overflow_layer.load(), 7);
}

TEST_P(ReplayFold, RefusalsLeaveEverything) {
  Layer first = make_layer(false, DType::kF32, DType::kF32, 41);
  Layer second = make_layer(true, DType::kF32, DType::kF32, 51);
  const HostTensor before = first.state.clone();
  HostTensor cursor = i32_tensor({1, 1, 0, 0, 0});
  const HostTensor slots = i32_tensor({0, 1});
  std::vector<ReplayFoldLayer> views = {first.view(), second.view()};
  const auto refused = [&](const ConstTensorView& ids) {
    return replay_fold({views, ids, cursor}, {}, GetParam()).message();
  };
  views[1].ring.keys = views[1].ring.keys.slice(2, 0, 5);
  EXPECT_NE(refused(slots).find("layers[1].ring.keys: expected shape"), std::string::npos);
  views[1] = second.view();
  views[0].ring.gamma = {};
  EXPECT_NE(refused(slots).find("layers[0].ring.gamma"), std::string::npos);
  views[0] = first.view();
  EXPECT_NE(refused(i32_tensor({1, 1})).find("slots: expected distinct"), std::string::npos);
  cursor.set(1, 7);
  EXPECT_NE(refused(slots).find("cursor: expected 0 to 6 for slot 1, got 7"), std::string::npos);
  EXPECT_EQ(bit_difference(first.state, before), "");
}

}  // namespace
}  // namespace linestate::testing
