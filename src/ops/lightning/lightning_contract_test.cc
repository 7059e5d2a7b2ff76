// What both Lightning operators promise apart from numbers: tensor parallel slices, strides, flags,
// refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include "testing/half.h"
#include "testing/lightning_case.h"

namespace linestate::testing {
namespace {

struct Phase {
  const char* name;
  LightningOp op;
  LightningSizer sizer;
  KernelChoice (*explain)(const LightningParams&, const ExecContext&, std::string_view);
  std::vector<LightningRow> rows;
};

const Phase kPhases[] = {
    {"prefill",
     lightning_prefill,
     lightning_prefill_workspace_bytes,
     explain_lightning_prefill,
     {{3, 0, 37}, {1, 64, 5}}},
    {"decode",
     lightning_decode,
     lightning_decode_workspace_bytes,
     explain_lightning_decode,
     {{3, 0, 1}, {1, 64, 1}}},
};

using Kind = std::tuple<int, const char*>;

class LightningContract : public ::testing::TestWithParam<Kind> {
 protected:
  const Phase& phase() const { return kPhases[std::get<0>(GetParam())]; }
  const char* kernel() const { return std::get<1>(GetParam()); }
  Status run(LightningCase& test, int threads = 1) const {
    return run_lightning(phase().op, phase().sizer, test, kernel(), threads);
  }
  LightningShape shape() const {
    LightningShape shape;
    shape.rows = phase().rows;
    return shape;
  }
};
INSTANTIATE_TEST_SUITE_P(All, LightningContract,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values("cpu", "ref")),
                         [](const auto& info) {
                           return std::string(kPhases[std::get<0>(info.param)].name) + "_" +
                                  std::get<1>(info.param);
                         });

TEST_P(LightningContract, RanksConcatenateToTheWholeExactly) {
  LightningShape all = shape();
  all.heads = 8;
  all.dim = 32;
  LightningCase whole(all);
  const HostTensor before = whole.state.clone();
  ASSERT_EQ(run(whole).to_string(), "ok");
  for (int32_t size : {1, 2, 4, 8}) {
    LightningCase joined(all);
    for (int32_t rank = 0; rank < size; ++rank) {
      const HeadRange heads = *TpShard{rank, size}.heads(8);
      LightningCase part(all);
      part.slopes = f32_tensor(*lightning_slopes(8, 1, 24, {rank, size}));
      part.params.slopes = part.slopes;
      part.params.q = joined.q.view().slice(1, heads.begin, heads.end);
      part.params.k = joined.k.view().slice(1, heads.begin, heads.end);
      part.params.v = joined.v.view().slice(1, heads.begin, heads.end);
      part.params.out = joined.out.view().slice(1, heads.begin, heads.end);
      part.params.state = joined.state.view().slice(1, heads.begin, heads.end);
      ASSERT_EQ(run(part).to_string(), "ok");
    }
    EXPECT_EQ(bit_difference(joined.out.view(), whole.out.view()), "") << size;
    EXPECT_EQ(bit_difference(joined.state.view(), whole.state.view()), "") << size;
  }
}

// q, k, v as MiniMax packs them [T, H, 3D]; output, state and slopes inside larger buffers, state
// columns first.
TEST_P(LightningContract, AnyStridesGiveTheSameBits) {
  LightningCase dense(shape());
  LightningCase strided(shape());
  const int64_t T = dense.shape.capacity, H = 2, D = 64, P = 6;
  HostTensor packed(DType::kF32, {T, H, 3 * D});
  HostTensor out(DType::kF32, {T, H, 2 * D});
  HostTensor state(DType::kF32, {P, 3, D, H, D + 8});
  HostTensor slopes(DType::kF32, {2, 3});
  fill_constant(out, 7.0);
  fill_constant(state, 7.0);
  int part = 0;
  for (HostTensor* from : {&dense.q, &dense.k, &dense.v}) {
    for (int64_t th = 0; th < T * H; ++th) {
      for (int64_t d = 0; d < D; ++d) {
        packed.set((th * 3 + part) * D + d, from->at(th * D + d));
      }
    }
    ++part;
  }
  // [P, H, V, K] with K innermost, read as [P, H, K, V].
  TensorView pool = state.view().select(1, 1).transpose(1, 2).slice(3, 0, D).transpose(2, 3);
  for (int64_t p = 0; p < P; ++p) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < D * D; ++i) {
        const int64_t at = p * pool.stride[0] + h * pool.stride[1] + (i / D) * pool.stride[2] +
                           (i % D) * pool.stride[3];
        store_f64(pool.data, DType::kF32, at, dense.state.at((p * H + h) * D * D + i));
      }
    }
  }
  for (int64_t h = 0; h < H; ++h) slopes.set(h * 3 + 1, dense.slopes.at(h));
  strided.params.q = packed.view().slice(2, 0, D);
  strided.params.k = packed.view().slice(2, D, 2 * D);
  strided.params.v = packed.view().slice(2, 2 * D, 3 * D);
  strided.params.out = out.view().slice(2, D, 2 * D);
  strided.params.state = pool;
  strided.params.slopes = slopes.view().select(1, 1);
  ASSERT_EQ(run(dense).to_string(), "ok");
  ASSERT_EQ(run(strided).to_string(), "ok");
  EXPECT_EQ(bit_difference(strided.params.out, dense.out.view()), "");
  EXPECT_EQ(bit_difference(strided.params.state, dense.state.view()), "");
  for (int64_t th = 0; th < T * H; ++th) {
    for (int64_t d = 0; d < D; ++d) ASSERT_EQ(out.at(th * 2 * D + d), 7.0);
  }
  for (int64_t plane : {0, 2}) {
    const HostTensor canary = copy_of(state.view().select(1, plane));
    for (int64_t i = 0; i < canary.num_elements(); ++i) ASSERT_EQ(canary.at(i), 7.0);
  }
}

TEST_P(LightningContract, InputsAreNotWritten) {
  LightningCase test(shape());
  const LightningCase same(shape());
  ASSERT_EQ(run(test, 2).to_string(), "ok");
  EXPECT_EQ(bit_difference(test.q.view(), same.q.view()), "");
  EXPECT_EQ(bit_difference(test.k.view(), same.k.view()), "");
  EXPECT_EQ(bit_difference(test.v.view(), same.v.view()), "");
  EXPECT_EQ(bit_difference(test.slopes.view(), same.slopes.view()), "");
  EXPECT_TRUE(test.status.describe().empty()) << test.status.describe();
}

TEST_P(LightningContract, ReportsOverflowOfTheStateAndNonFiniteOutput) {
  LightningShape half = shape();
  half.state = DType::kF16;
  LightningCase test(half);
  const int64_t token = test.token_of(1);
  fill_constant(test.k.view().slice(0, token, token + 1), 300.0);
  fill_constant(test.v.view().slice(0, token, token + 1), 300.0);
  test.params.layer = 17;
  ASSERT_EQ(run(test).to_string(), "ok");
  EXPECT_TRUE(test.status.raised(DeviceFlag::kStateOverflow));
  EXPECT_EQ(test.status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(test.status.overflow_slot.load(), 1);
  EXPECT_EQ(test.status.overflow_layer.load(), 17);
  EXPECT_FALSE(test.status.raised(DeviceFlag::kNonFinite));

  LightningCase nan(shape());
  fill_nan(nan.q.view().slice(0, token, token + 1));
  ExecContext context;
  context.num_threads = 1;
  context.status = &nan.status;
  context.check_finite = true;
  HostTensor workspace(DType::kF32, {*phase().sizer(nan.params, context, kernel()) / 4});
  context.workspace = {workspace.data(), workspace.bytes()};
  ASSERT_EQ(phase().op(nan.params, context, kernel()).to_string(), "ok");
  EXPECT_TRUE(nan.status.raised(DeviceFlag::kNonFinite));
  EXPECT_EQ(nan.status.row_of(DeviceFlag::kNonFinite), token);
}

TEST_P(LightningContract, RefusesByName) {
  struct Refusal {
    const char* begins;
    std::function<void(LightningCase&)> spoil;
  };
  HostTensor other(DType::kF32, {64, 3, 64});
  HostTensor i32(DType::kI32, {64, 2, 64});
  const std::vector<Refusal> refusals = {
      {"q: expected shape", [](auto& c) { c.params.q = {}; }},
      {"q: expected dtype", [&](auto& c) { c.params.q = i32; }},
      {"q: head dimension D: expected", [](auto& c) { c.params.q = c.q.view().slice(2, 0, 24); }},
      {"k: expected shape", [&](auto& c) { c.params.k = other; }},
      {"k: expected dtype f32", [](auto& c) { c.params.k.dtype = DType::kBF16; }},
      {"v: expected shape", [](auto& c) { c.params.v = c.v.view().slice(1, 0, 1); }},
      {"v: expected memory", [](auto& c) { c.params.v.data = nullptr; }},
      {"v: expected device", [](auto& c) { c.params.v.device.type = DeviceType::kCuda; }},
      {"out: expected shape", [&](auto& c) { c.params.out = other; }},
      {"out: expected memory apart from v", [](auto& c) { c.params.out = c.v; }},
      {"out: expected strides", [](auto& c) { c.params.out.stride[1] = 0; }},
      {"state: expected shape", [](auto& c) { c.params.state = c.state.view().slice(3, 0, 32); }},
      {"state: expected dtype", [](auto& c) { c.params.state.dtype = DType::kI32; }},
      {"slopes: expected shape [2]",
       [](auto& c) {
         c.slopes = f32_tensor({0.1f, 0.1f, 0.1f, 0.1f}), c.params.slopes = c.slopes;
       }},
      {"slopes: expected finite values >= 0", [](auto& c) { c.slopes.set(1, -0.5); }},
      {"slopes: expected finite values >= 0",
       [](auto& c) { c.slopes.set(1, std::numeric_limits<double>::quiet_NaN()); }},
      {"slopes: expected dtype f32", [](auto& c) { c.params.slopes.dtype = DType::kBF16; }},
      {"scale: expected a finite value", [](auto& c) { c.params.scale = INFINITY; }},
      {"rows.slot: expected", [](auto& c) { c.params.rows.slot = {}; }},
      {"rows.slot: expected distinct live slots", [](auto& c) { c.slot.set(0, 1); }},
      {"rows.start: expected >= 0", [](auto& c) { c.start.set(1, -1); }},
      {"rows.num_valid: expected", [](auto& c) { c.num_valid.set(0, 100); }},
  };
  for (const Refusal& refusal : refusals) {
    LightningCase test(shape());
    refusal.spoil(test);
    const HostTensor before = test.state.clone();
    const Status status = run(test);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << refusal.begins;
    EXPECT_EQ(status.message().rfind(refusal.begins, 0), 0u) << status.message();
    EXPECT_EQ(bit_difference(test.state.view(), before.view()), "");
    EXPECT_EQ(phase().explain(test.params, {}, kernel()).problem, status.message());
  }
}

TEST_P(LightningContract, WorkspaceAndNames) {
  LightningCase test(shape());
  ExecContext context;
  context.num_threads = 1;
  const int64_t bytes = *phase().sizer(test.params, context, kernel());
  HostTensor workspace(DType::kF32, {bytes / 4});
  context.workspace = {workspace.data(), bytes - 64};
  EXPECT_EQ(phase().op(test.params, context, kernel()).message(),
            "workspace: expected at least " + std::to_string(bytes) + " bytes, got " +
                std::to_string(bytes - 64));
  context.num_threads = 3;
  EXPECT_EQ(*phase().sizer(test.params, context, kernel()), 3 * bytes);
  EXPECT_EQ(phase().explain(test.params, context, kernel()).kernel, kernel());
  EXPECT_EQ(phase().explain(test.params, context, "auto").kernel, "cpu");
  EXPECT_EQ(phase().op(test.params, context, "fast").code(), StatusCode::kNotFound);
}

TEST_P(LightningContract, NoRowsAtAll) {
  LightningShape empty;
  empty.capacity = std::string(phase().name) == "prefill" ? 9 : 0;
  LightningCase test(empty);
  const HostTensor before = test.state.clone();
  ASSERT_EQ(run(test).to_string(), "ok");
  EXPECT_EQ(nonzero(test.out.view()), "");
  EXPECT_EQ(bit_difference(test.state.view(), before.view()), "");
}

}  // namespace
}  // namespace linestate::testing
