#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/lightning/lightning_draft_case.h"

namespace linestate::testing {
namespace {

class LightningVerify : public ::testing::TestWithParam<const char*> {
 protected:
  bool exact() const { return std::string(GetParam()) == "ref"; }
};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningVerify, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

LightningShape mixed_shape(int32_t nodes) {
  LightningShape shape;
  shape.rows = {
      {3, 64, nodes}, {-1, 5, nodes},  {0, 0, nodes}, {9, 4, 2}, {5, 7, nodes, std::min(nodes, 3)},
      {2, 31, 0},     {4, 1, nodes, 0}};
  shape.dim = 32;
  shape.capacity = 6 * nodes + 5;
  return shape;
}

// Outputs of every node against decode of its path; the rest zero; the pool untouched; the record
// holds the bits of k and v and nothing besides.
void expect_paths(LightningDraftCase& c, const HostTensor& before, bool exact) {
  const ConstTensorView out = c.base.out;
  HostTensor want(c.base.shape.out, c.base.out.shape());
  std::vector<bool> written(static_cast<size_t>(c.base.shape.capacity), false);
  for (size_t n = 0; n < c.base.shape.rows.size(); ++n) {
    for (int64_t i = 0; c.live(n) && i < c.valid(n); ++i) {
      const int64_t at = c.base.token_of(n) + i;
      written[static_cast<size_t>(at)] = true;
      const std::vector<int64_t> path = path_to(c.trees[n], i);
      if (path.empty()) continue;
      HostTensor pool = before.clone();
      const HostTensor outs = c.decode_path(n, path, pool, "ref");
      const auto last = static_cast<int64_t>(path.size()) - 1;
      const HostTensor row = copy_of(outs.view().slice(0, last, last + 1));
      std::memcpy(static_cast<char*>(want.data()) + at * row.bytes(), row.data(),
                  static_cast<size_t>(row.bytes()));
    }
  }
  if (exact) {
    EXPECT_EQ(bit_difference(out, want), "");
  } else {
    const Difference difference = compare(out, want);
    EXPECT_LE(difference.rel, 1e-6) << difference.text();
    for (int64_t t = 0; t < out.shape[0]; ++t) {
      const bool zero = nonzero(want.view().slice(0, t, t + 1)).empty();
      EXPECT_EQ(nonzero(out.slice(0, t, t + 1)).empty(), zero) << t;
    }
  }
  EXPECT_EQ(bit_difference(c.base.state, before), "");
  for (int64_t t = -LightningDraftCase::kGuard;
       t < c.base.shape.capacity + LightningDraftCase::kGuard; ++t) {
    const int64_t at = t + LightningDraftCase::kGuard;
    const ConstTensorView k = c.record_k.view().slice(0, at, at + 1);
    const ConstTensorView v = c.record_v.view().slice(0, at, at + 1);
    if (t >= 0 && t < c.base.shape.capacity && written[static_cast<size_t>(t)]) {
      EXPECT_EQ(bit_difference(k, c.base.k.view().slice(0, t, t + 1)), "") << t;
      EXPECT_EQ(bit_difference(v, c.base.v.view().slice(0, t, t + 1)), "") << t;
    } else {
      HostTensor canary = copy_of(k);
      fill_nan(canary);
      EXPECT_EQ(bit_difference(k, canary), "") << t;
      EXPECT_EQ(bit_difference(v, canary), "") << t;
    }
  }
}

TEST_P(LightningVerify, EveryNodeOfARandomTreeIsItsOwnPath) {
  for (int32_t nodes : {1, 2, 5, 9, 16}) {
    SCOPED_TRACE(nodes);
    const LightningShape shape = mixed_shape(nodes);
    LightningDraftCase c(
        shape, LightningDraftCase::random(shape, static_cast<uint64_t>(nodes), nodes != 9));
    const HostTensor before = c.base.state.clone();
    ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
    expect_paths(c, before, exact());
    EXPECT_EQ(c.base.status.row_of(DeviceFlag::kSlotOutOfRange), 3);
  }
}

TEST_P(LightningVerify, AChainGivesTheOutputsOfPrefill) {
  LightningShape shape = mixed_shape(7);
  for (DType io : {DType::kF32, DType::kBF16}) {
    shape.io = io;
    LightningDraftCase c(shape);
    LightningDraftCase unnamed(shape);
    LightningCase prefill(shape);
    ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
    LightningVerifyParams params = unnamed.verify_params();
    params.parent = {};
    ASSERT_EQ(run_sized(lightning_verify, lightning_verify_workspace_bytes, params, GetParam())
                  .to_string(),
              "ok");
    EXPECT_EQ(bit_difference(unnamed.base.out, c.base.out), "");
    ASSERT_EQ(run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, prefill, "ref")
                  .to_string(),
              "ok");
    if (exact()) {
      EXPECT_EQ(bit_difference(c.base.out, prefill.out), "");
    } else {
      EXPECT_LE(compare(c.base.out, prefill.out).rel, 1e-6);
    }
  }
}

TEST_P(LightningVerify, EveryDtypeAndHeadDim) {
  const DType all[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (DType io : all) {
    for (DType out : all) {
      for (DType state : all) {
        SCOPED_TRACE(std::string(dtype_name(io)) + " " + std::string(dtype_name(out)) + " " +
                     std::string(dtype_name(state)));
        LightningShape shape;
        shape.rows = {{1, 0, 6}, {2, 10, 5}};
        shape.dim = state == DType::kBF16 ? 16 : state == DType::kF16 ? 80 : 32;
        shape.slots = 3;
        shape.io = io;
        shape.out = out;
        shape.state = state;
        LightningDraftCase c(shape);
        const LightningExpected expected = expect_lightning(c.base);
        const HostTensor before = c.base.state.clone();
        ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
        EXPECT_EQ(bit_difference(c.base.state, before), "");
        ASSERT_EQ(c.commit({5, 4}, c.base.state, GetParam()).to_string(), "ok");
        EXPECT_EQ(disagreement(c.base, expected), "");
      }
    }
  }
}

// The record belongs to the batch row: a large pool with few rows, a small one with many (P07).
TEST_P(LightningVerify, RecordsAreAddressedByTokenNotBySlot) {
  for (bool large : {true, false}) {
    LightningShape shape;
    shape.dim = 16;
    shape.slots = large ? 64 : 2;
    if (large) {
      shape.rows = {{63, 8, 4}, {40, 8, 4}};
    } else {
      shape.rows = {{1, 8, 4}, {0, 8, 4}, {-1, 8, 4}, {-1, 8, 4}};
    }
    LightningDraftCase c(shape);
    const HostTensor before = c.base.state.clone();
    ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
    expect_paths(c, before, exact());
  }
}

// P27: slot s holds s + 1 everywhere and k is zero: o = scale * lambda^depth * (s + 1) * sum(q).
TEST_P(LightningVerify, RowsUseTheirOwnSlots) {
  LightningShape shape;
  shape.heads = 8;
  shape.dim = 128;
  shape.rows = {{2, 1, 2}, {0, 1, 2}, {5, 1, 2}, {1, 1, 2}};
  LightningDraftCase c(shape);
  fill_constant(c.base.k, 0.0);
  fill_uniform(c.base.q, 5, 0.5, 1.0);
  for (int64_t s = 0; s < 6; ++s) {
    fill_constant(c.base.state.view().slice(0, s, s + 1), static_cast<double>(s + 1));
  }
  ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
  for (size_t n = 0; n < 4; ++n) {
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t h = 0; h < 8; ++h) {
        const double lambda = std::exp(-c.base.slopes.at(h) * static_cast<double>(i + 1));
        const int64_t at = ((c.base.token_of(n) + i) * 8 + h) * 128;
        double sum = 0.0;
        for (int64_t d = 0; d < 128; ++d) sum += c.base.q.at(at + d);
        const double want = c.base.params.scale * lambda * (shape.rows[n].slot + 1) * sum;
        for (int64_t d = 0; d < 128; ++d) ASSERT_NEAR(c.base.out.at(at + d), want, 2e-6 * want);
      }
    }
  }
}

// NaN where nobody may look: fresh and unused slots, padding, placeholders, inert nodes.
TEST_P(LightningVerify, PoisonStaysWhereItIs) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{3, 64, 5}, {0, 0, 5, 4}, {-1, 0, 2}, {6, 3, 2}};
  shape.capacity = 16;
  const std::vector<std::vector<int32_t>> trees = {
      {-1, 0, -1, 1, 2}, {-1, 0, 0, 2, 3}, {-1, 0}, {-1, 0}};
  LightningDraftCase clean(shape, trees);
  LightningDraftCase dirty(shape, trees);
  for (int64_t slot : {0, 1, 2, 4, 5}) fill_nan(dirty.base.state.view().slice(0, slot, slot + 1));
  for (int64_t t : {2, 4, 9, 10, 11, 12, 13, 14, 15}) {
    for (HostTensor* tensor : {&dirty.base.q, &dirty.base.k, &dirty.base.v}) {
      fill_nan(tensor->view().slice(0, t, t + 1));
    }
  }
  const HostTensor before = dirty.base.state.clone();
  ASSERT_EQ(clean.verify(GetParam()).to_string(), "ok");
  ASSERT_EQ(dirty.verify(GetParam()).to_string(), "ok");
  EXPECT_EQ(bit_difference(dirty.base.out, clean.base.out), "");
  EXPECT_EQ(bit_difference(dirty.base.state, before), "");
  for (int64_t t : {2, 4, 9, 10, 11, 12, 13, 14, 15}) {
    EXPECT_EQ(nonzero(dirty.base.out.view().slice(0, t, t + 1)), "") << t;
  }
}

TEST_P(LightningVerify, ThreadsAndBatchMatesDoNotMatter) {
  const LightningShape shape = mixed_shape(6);
  const auto trees = LightningDraftCase::random(shape, 4, true);
  LightningDraftCase one(shape, trees);
  ASSERT_EQ(one.verify(GetParam(), 1).to_string(), "ok");
  for (int threads : {2, 3}) {
    LightningDraftCase more(shape, trees);
    ASSERT_EQ(more.verify(GetParam(), threads).to_string(), "ok");
    EXPECT_EQ(bit_difference(more.base.out, one.base.out), "");
    EXPECT_EQ(bit_difference(more.record_k, one.record_k), "");
  }
  for (size_t n : {0, 2}) {
    LightningShape alone_shape = shape;
    alone_shape.rows = {shape.rows[n]};
    alone_shape.capacity = 0;
    LightningDraftCase alone(alone_shape, {trees[n]});
    const int64_t first = one.base.token_of(n);
    alone.base.params.q = one.base.q.view().slice(0, first, first + 6);
    alone.base.params.k = one.base.k.view().slice(0, first, first + 6);
    alone.base.params.v = one.base.v.view().slice(0, first, first + 6);
    alone.base.params.state = one.base.state;
    ASSERT_EQ(alone.verify(GetParam()).to_string(), "ok");
    EXPECT_EQ(bit_difference(alone.base.out, one.base.out.view().slice(0, first, first + 6)), "");
  }
}

TEST_P(LightningVerify, StridedInputsOutputsStatesAndParents) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{1, 8, 5}, {4, 0, 3}};
  const auto trees = LightningDraftCase::random(shape, 8, false);
  LightningDraftCase plain(shape, trees);
  ASSERT_EQ(plain.verify(GetParam()).to_string(), "ok");
  LightningDraftCase c(shape, trees);
  HostTensor packed(DType::kF32, {8, 3, 2, 32});  // q | k | v, every other element
  fill_nan(packed);
  HostTensor out(DType::kF32, {2, 8, 16});
  HostTensor state(DType::kF32, {6, 2, 16, 16});
  HostTensor parents(DType::kI64, {8, 2});
  const auto view = [&](int64_t part) {
    return packed.view().select(1, part).split(2, 2).select(3, 1);
  };
  for (int64_t i = 0; i < 8; ++i) {
    parents.set(2 * i, plain.parent.at(i));
    for (int64_t e = 0; e < 32; ++e) {
      const int64_t at = i * 192 + e * 2 + 1;
      packed.set(at, c.base.q.at(i * 32 + e));
      packed.set(at + 64, c.base.k.at(i * 32 + e));
      packed.set(at + 128, c.base.v.at(i * 32 + e));
    }
  }
  for (int64_t s = 0; s < 12; ++s) {
    for (int64_t i = 0; i < 256; ++i) {
      state.set(s * 256 + (i % 16) * 16 + i / 16, c.base.state.at(s * 256 + i));
    }
  }
  c.base.params.q = view(0);
  c.base.params.k = view(1);
  c.base.params.v = view(2);
  c.base.params.out = out.view().transpose(0, 1);
  c.base.params.state = state.view().transpose(2, 3);
  LightningVerifyParams params = c.verify_params();
  params.parent = parents.view().select(1, 0);
  ASSERT_EQ(
      run_sized(lightning_verify, lightning_verify_workspace_bytes, params, GetParam()).to_string(),
      "ok");
  EXPECT_EQ(bit_difference(out.view().transpose(0, 1), plain.base.out), "");
  EXPECT_EQ(bit_difference(c.record_k, plain.record_k), "");
  EXPECT_EQ(bit_difference(c.record_v, plain.record_v), "");
}

TEST_P(LightningVerify, TheLargestTree) {
  LightningShape shape;
  shape.dim = 16;
  shape.heads = 1;
  shape.rows = {{1, 5, 256}};
  LightningDraftCase c(shape);
  const LightningExpected expected = expect_lightning(c.base);
  ASSERT_EQ(c.verify(GetParam()).to_string(), "ok");
  EXPECT_LE(compare(c.base.out, expected.out).rel, 1e-6);
  HostTensor state = c.base.state.clone();
  ASSERT_EQ(c.commit({255}, state, GetParam()).to_string(), "ok");
  EXPECT_LE(compare(state, expected.state).rel, 5e-7);
}

TEST_P(LightningVerify, RefusesByName) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{1, 5, 3}, {2, 5, 2}};
  const auto refusal = [&](auto change) {
    LightningDraftCase c(shape);
    const HostTensor canary = c.record_k.clone();
    LightningVerifyParams params = c.verify_params();
    change(c, params);
    const Status status =
        run_sized(lightning_verify, lightning_verify_workspace_bytes, params, GetParam());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bit_difference(c.record_k, canary), "");
    EXPECT_TRUE(std::isnan(c.base.out.at(0)));
    return status.message().substr(0, status.message().find(':'));
  };
  const HostTensor bad = i32_tensor({-1, 0, 2, -1, 0});
  const SnapshotTensors plan({{0, 6, 5}});
  using Case = LightningDraftCase;
  using Params = LightningVerifyParams;
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.parent = bad; }), "parent");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.parent = p.parent.slice(0, 0, 4); }), "parent");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.lightning.snapshots = plan.view(); }), "snapshots");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.record.k = p.record.k.slice(0, 0, 4); }), "record.k");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.record.v = {}; }), "record.v");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.record.v = p.record.v.transpose(0, 1); }),
            "record.v");
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.record.k = p.record.v; }), "record.k");
  EXPECT_EQ(refusal([&](Case& c, Params& p) { p.record.k = c.base.q; }), "record.k");
  EXPECT_EQ(refusal([&](Case& c, Params& p) { p.record.v = c.base.out; }), "record.v");
  HostTensor half(DType::kBF16, {5, 2, 16});
  EXPECT_EQ(refusal([&](Case&, Params& p) { p.record.k = half; }), "record.v");
  shape.rows = {{1, 5, 257}};
  EXPECT_EQ(refusal([&](Case&, Params&) {}), "rows.query_start_loc");
}

}  // namespace
}  // namespace linestate::testing
