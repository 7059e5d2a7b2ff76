// Views: padded pitches, column slices, slot columns, packed q|k|v, grouped value heads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

struct Case {
  KdaPhase phase;
  const char* kernel;
};

class KdaViews : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, KdaViews,
    ::testing::Values(Case{KdaPhase::kPrefill, "cpu"}, Case{KdaPhase::kPrefill, "ref"},
                      Case{KdaPhase::kDecode, "cpu"}, Case{KdaPhase::kDecode, "ref"}),
    [](const auto& info) {
      return std::string(info.param.phase == KdaPhase::kPrefill ? "prefill_" : "decode_") +
             info.param.kernel;
    });

// Prefill: rows of 33 and 7 tokens; decode: 40 rows. Fresh, resumed and padding rows.
KdaProblem problem_for(KdaPhase phase, const KdaShape& shape) {
  KdaProblem problem = make_kda_problem(shape, 40, 91);
  std::vector<KdaRow> rows = {{5, 3, 33}, {2, 0, 7}};
  if (phase == KdaPhase::kDecode) {
    rows.assign(40, KdaRow{-1, 4, 1});
    for (int32_t n = 0; n < 8; ++n) rows[5 * static_cast<size_t>(n)] = {7 - n, n % 3, 1};
  }
  problem.set_rows(rows);
  return problem;
}

void copy_into(const ConstTensorView& from, const TensorView& to) {
  const HostTensor dense = copy_of(from);
  const auto* bytes = static_cast<const char*>(dense.data());
  const int64_t size = dtype_bytes(to.dtype);
  for_each_offset(to, [&](int64_t offset) {
    std::memcpy(static_cast<char*>(to.data) + offset * size, bytes, static_cast<size_t>(size));
    bytes += size;
  });
}

// A NaN-filled buffer whose middle holds `view`: every dimension but the first twice as wide as
// needed and off its start by one (so that nothing but the element size is aligned).
struct Padded {
  HostTensor memory;
  TensorView view;
};

Padded pad(const ConstTensorView& from) {
  std::vector<int64_t> shape;
  for (int d = 0; d < from.rank; ++d) shape.push_back(from.shape[d] * (d == 0 ? 1 : 2) + 1);
  Padded out{HostTensor(from.dtype, shape), {}};
  fill_nan(out.memory);
  out.view = out.memory.view();
  for (int d = 0; d < from.rank; ++d) out.view = out.view.slice(d, 1, 1 + from.shape[d]);
  copy_into(from, out.view);
  return out;
}

// P22: every tensor with padded pitches and NaN in the padding.
TEST_P(KdaViews, PaddedPitches) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    KdaShape shape;
    shape.HV = 4;
    shape.K = 48;
    shape.V = 32;
    shape.io = shape.gate_dtype = shape.state = shape.out = dtype;
    KdaProblem problem = problem_for(GetParam().phase, shape);
    KdaParams params = problem.params();
    Padded q = pad(params.q), k = pad(params.k), v = pad(params.v), gate = pad(params.gate),
           beta = pad(params.beta), A_log = pad(params.A_log), dt_bias = pad(params.dt_bias),
           state = pad(params.state), out = pad(params.out);
    KdaParams padded = params;
    padded.q = q.view;
    padded.k = k.view;
    padded.v = v.view;
    padded.gate = gate.view;
    padded.beta = beta.view;
    padded.A_log = A_log.view;
    padded.dt_bias = dt_bias.view;
    padded.state = state.view;
    padded.out = out.view;
    ASSERT_EQ(run_kda(GetParam().phase, params, GetParam().kernel), "");
    ASSERT_EQ(run_kda(GetParam().phase, padded, GetParam().kernel, 2), "");
    EXPECT_EQ(bit_difference(padded.out, params.out), "");
    EXPECT_EQ(bit_difference(padded.state, params.state), "");
    // Padding lanes kept their NaN: writing the dense result into a fresh buffer gives the same.
    EXPECT_EQ(bit_difference(out.memory, pad(params.out).memory), "");
    EXPECT_EQ(bit_difference(state.memory, pad(params.state).memory), "");
  }
}

// Elements of a head far apart: K or V is not the fastest dimension, and runs go backwards.
TEST_P(KdaViews, TransposedAndReversed) {
  KdaShape shape;
  shape.K = 48;
  shape.V = 32;
  KdaProblem problem = problem_for(GetParam().phase, shape);
  KdaParams params = problem.params();
  HostTensor q(DType::kF32, {40, 48, 2}), v(DType::kF32, {40, 32, 2}),
      out(DType::kF32, {32, 2, 40}), state(DType::kF32, {8, 2, 48, 32}),
      k(DType::kF32, {40, 2, 48});
  KdaParams turned = params;
  turned.q = q.view().transpose(1, 2);
  turned.v = v.view().transpose(1, 2);
  turned.out = out.view().transpose(0, 2);
  turned.state = state.view().transpose(2, 3);
  TensorView reversed = k.view();
  reversed.data = static_cast<float*>(k.data()) + 47;
  reversed.stride[2] = -1;
  turned.k = reversed;
  copy_into(params.q, q.view().transpose(1, 2));
  copy_into(params.v, v.view().transpose(1, 2));
  copy_into(params.state, turned.state);
  copy_into(params.k, reversed);
  ASSERT_EQ(run_kda(GetParam().phase, params, GetParam().kernel), "");
  ASSERT_EQ(run_kda(GetParam().phase, turned, GetParam().kernel), "");
  EXPECT_EQ(bit_difference(turned.out, params.out), "");
  EXPECT_EQ(bit_difference(turned.state, params.state), "");
}

// P21: slot ids as a column of a table whose other columns are live slots, i32 and i64.
TEST_P(KdaViews, SlotColumn) {
  KdaProblem problem = problem_for(GetParam().phase, KdaShape{});
  const int64_t rows = problem.slot.num_elements();
  for (DType dtype : {DType::kI32, DType::kI64}) {
    KdaProblem dense = problem.clone();
    KdaProblem column = problem.clone();
    HostTensor table(dtype, {rows, 5});
    for (int64_t i = 0; i < rows * 5; ++i) table.set(i, static_cast<double>(i % 8));
    for (int64_t n = 0; n < rows; ++n) table.set(n * 5 + 2, problem.slot.at(n));
    KdaParams params = column.params();
    params.rows.slot = table.view().select(1, 2);
    ASSERT_EQ(run_kda(GetParam().phase, dense.params(), GetParam().kernel), "");
    ASSERT_EQ(run_kda(GetParam().phase, params, GetParam().kernel), "");
    EXPECT_EQ(bit_difference(column.out, dense.out), "");
    EXPECT_EQ(bit_difference(column.state, dense.state), "");
  }
}

// q, k and v as columns of the convolution's packed output; beta as a column slice.
TEST_P(KdaViews, PackedQkv) {
  KdaShape shape;
  shape.HV = 4;
  shape.K = 32;
  shape.V = 48;
  shape.io = DType::kBF16;
  KdaProblem problem = problem_for(GetParam().phase, shape);
  KdaParams params = problem.params();
  HostTensor buffer(DType::kBF16, {40, 400});
  fill_nan(buffer);
  const TensorView packed = buffer.view().slice(1, 8, 8 + 2 * 2 * 32 + 4 * 48);
  const Result<PackedQkv> parts = split_packed_qkv(packed, 2, 4, 32, 48);
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  copy_into(params.q, packed.slice(1, 0, 64).split(1, 32));
  copy_into(params.k, packed.slice(1, 64, 128).split(1, 32));
  copy_into(params.v, packed.slice(1, 128, 320).split(1, 48));
  EXPECT_EQ(bit_difference(parts->q, params.q), "");
  EXPECT_EQ(bit_difference(parts->k, params.k), "");
  EXPECT_EQ(bit_difference(parts->v, params.v), "");
  HostTensor wide(DType::kF32, {40, 40});
  fill_nan(wide);
  KdaProblem columns = problem.clone();
  KdaParams view = columns.params();
  view.q = parts->q;
  view.k = parts->k;
  view.v = parts->v;
  view.beta = wide.view().slice(1, 12, 16);
  copy_into(params.beta, wide.view().slice(1, 12, 16));
  const HostTensor before = buffer.clone();
  ASSERT_EQ(run_kda(GetParam().phase, params, GetParam().kernel), "");
  ASSERT_EQ(run_kda(GetParam().phase, view, GetParam().kernel), "");
  EXPECT_EQ(bit_difference(columns.out, problem.out), "");
  EXPECT_EQ(bit_difference(columns.state, problem.state), "");
  EXPECT_EQ(bit_difference(buffer, before), "");  // inputs are never written
}

// P29: value head j reads key head j / (HV / H): the same as repeating q and k.
TEST_P(KdaViews, GroupedValueHeads) {
  struct Heads {
    int64_t H, HV;
  };
  for (const Heads heads : {Heads{2, 6}, Heads{1, 12}, Heads{4, 8}, Heads{3, 3}}) {
    KdaShape shape;
    shape.H = heads.H;
    shape.HV = heads.HV;
    shape.K = shape.V = 32;
    KdaProblem grouped = problem_for(GetParam().phase, shape);
    KdaProblem repeated = grouped.clone();
    repeated.q = HostTensor(DType::kF32, {40, heads.HV, 32});
    repeated.k = HostTensor(DType::kF32, {40, heads.HV, 32});
    for (int64_t j = 0; j < heads.HV; ++j) {
      const int64_t h = j / (heads.HV / heads.H);
      copy_into(grouped.q.view().slice(1, h, h + 1), repeated.q.view().slice(1, j, j + 1));
      copy_into(grouped.k.view().slice(1, h, h + 1), repeated.k.view().slice(1, j, j + 1));
    }
    ASSERT_EQ(run_kda(GetParam().phase, grouped.params(), GetParam().kernel), "");
    ASSERT_EQ(run_kda(GetParam().phase, repeated.params(), GetParam().kernel), "");
    EXPECT_EQ(bit_difference(grouped.out, repeated.out), "") << heads.H << ' ' << heads.HV;
    EXPECT_EQ(bit_difference(grouped.state, repeated.state), "");
  }
}

}  // namespace
}  // namespace linestate::testing
