// Decode against the oracle, against prefill, and under the row contract.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/message.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

constexpr KdaPhase kDecode = KdaPhase::kDecode;

HostTensor slot_of(const KdaProblem& problem, int64_t slot) {
  return copy_of(problem.state.view().select(0, slot));
}

HostTensor out_of(const KdaProblem& problem, int64_t begin, int64_t end) {
  return copy_of(problem.out.view().slice(0, begin, end));
}

// The call for tokens [begin, end) of a problem.
KdaParams slice_tokens(KdaProblem& problem, int64_t begin, int64_t end) {
  KdaParams p = problem.params();
  p.q = p.q.slice(0, begin, end);
  p.k = p.k.slice(0, begin, end);
  p.v = p.v.slice(0, begin, end);
  p.gate = p.gate.slice(0, begin, end);
  p.beta = p.beta.slice(0, begin, end);
  p.out = p.out.slice(0, begin, end);
  return p;
}

struct Mode {
  std::string name;
  KdaShape shape;
};

std::vector<Mode> modes() {
  std::vector<Mode> out;
  for (DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType state : {DType::kF32, DType::kBF16, DType::kF16}) {
      KdaShape shape;
      shape.HV = 4;
      shape.K = io == DType::kF32 ? 128 : 64;
      shape.V = io == DType::kF16 ? 32 : 128;
      shape.io = io;
      shape.gate_dtype = state == DType::kBF16 ? io : DType::kF32;
      shape.state = state;
      shape.out = io;
      shape.gate_form = state == DType::kF16 ? KdaGate::kBounded : KdaGate::kSoftplus;
      shape.lower_bound = state == DType::kF16 ? -5.0f : 0.0f;
      out.push_back({concat(dtype_name(io), "_state_", dtype_name(state)), shape});
    }
  }
  for (KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    KdaShape shape;
    shape.H = shape.HV = 3;
    shape.K = 48;
    shape.V = 80;
    shape.gate_form = gate;
    shape.lower_bound = gate == KdaGate::kBounded ? -2.0f : 0.0f;
    shape.beta_form = KdaBeta::kProbability;
    shape.qk_normalized = true;
    out.push_back({concat("probability_gate", static_cast<int>(gate)), shape});
  }
  return out;
}

class KdaDecodeModes : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, KdaDecodeModes, ::testing::ValuesIn(modes()),
                         [](const auto& info) { return info.param.name; });

TEST_P(KdaDecodeModes, CpuMatchesRef) {
  KdaProblem problem = make_kda_problem(GetParam().shape, 6, 71);
  problem.set_rows({{3, 5, 1}, {0, 0, 1}, {7, 1, 1}, {-1, 9, 1}, {2, 64, 1}, {1, 0, 1, 0}});
  EXPECT_EQ(check_kda_against_ref(kDecode, problem, "cpu"), "");
}

TEST_P(KdaDecodeModes, RefRoundsOnlyAtTheStores) {
  KdaProblem problem = make_kda_problem(GetParam().shape, 6, 72);
  problem.set_rows({{3, 5, 1}, {0, 0, 1}, {7, 1, 1}, {-1, 9, 1}, {2, 64, 1}, {1, 0, 1, 0}});
  EXPECT_EQ(check_kda_against_ref(kDecode, problem, "ref", 0.0, 0.0), "");
}

// Prefill of n tokens against n decodes: bit for bit on ref, to tolerance on cpu.
TEST_P(KdaDecodeModes, PrefillIsDecodes) {
  constexpr int64_t kTokens = 21;
  KdaShape shape = GetParam().shape;
  shape.state = shape.out = DType::kF32;
  for (const char* kernel : {"ref", "cpu"}) {
    KdaProblem whole = make_kda_problem(shape, kTokens, 73);
    whole.set_rows({{3, 5, kTokens}});
    KdaProblem steps = whole.clone();
    ASSERT_EQ(run_kda(KdaPhase::kPrefill, whole.params(), kernel), "");
    steps.set_rows({{3, 5, 1}});
    for (int64_t t = 0; t < kTokens; ++t) {
      ASSERT_EQ(run_kda(kDecode, slice_tokens(steps, t, t + 1), kernel), "");
    }
    if (std::string(kernel) == "ref") {
      EXPECT_EQ(bit_difference(steps.state, whole.state), "");
      EXPECT_EQ(bit_difference(steps.out, whole.out), "");
      continue;
    }
    EXPECT_LE(compare(slot_of(steps, 3), slot_of(whole, 3)).rel, 1e-6);
    EXPECT_LE(compare(steps.out, whole.out).rel, 1e-6);
  }
}

class KdaDecodeKernel : public ::testing::TestWithParam<const char*> {
 protected:
  std::string run(KdaProblem& problem, int threads = 1, DeviceStatus* status = nullptr) {
    return run_kda(kDecode, problem.params(), GetParam(), threads, status);
  }
};
INSTANTIATE_TEST_SUITE_P(All, KdaDecodeKernel, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

KdaShape small_shape() {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 48;
  return shape;
}

// P01: a step and 200 steps with padding rows of every kind; slot 0 is an ordinary slot.
TEST_P(KdaDecodeKernel, PaddingRowsTouchNothing) {
  KdaProblem problem = make_kda_problem(small_shape(), 5, 81);
  fill_nan(problem.q.view().slice(0, 4, 5));
  problem.set_rows(
      {{3, 2, 1}, {-1, 0, 1}, {std::numeric_limits<int32_t>::min(), 5, 1}, {8, 0, 1}, {-1, 7, 1}});
  const KdaProblem before = problem.clone();
  DeviceStatus status;
  for (int step = 0; step < 200; ++step) {
    fill_nan(problem.out);
    ASSERT_EQ(run(problem, 2, &status), "");
    ASSERT_EQ(nonzero(out_of(problem, 1, 5)), "");
    if (step != 0 && step != 199) continue;
    for (int64_t slot : {0, 1, 2, 4, 5, 6, 7}) {
      EXPECT_EQ(bit_difference(slot_of(problem, slot), slot_of(before, slot)), "");
    }
    EXPECT_NE(bit_difference(slot_of(problem, 3), slot_of(before, 3)), "");
  }
  EXPECT_EQ(status.row_of(DeviceFlag::kSlotOutOfRange), 3);
  EXPECT_FALSE(status.raised(DeviceFlag::kNonFinite));
}

TEST_P(KdaDecodeKernel, FreshAndInvalidRows) {
  KdaProblem problem = make_kda_problem(small_shape(), 4, 82);
  for (int64_t slot : {1, 2}) fill_nan(problem.state.view().select(0, slot));
  fill_nan(problem.k.view().slice(0, 1, 3));
  problem.set_rows({{1, 0, 1}, {2, 0, 1, 0}, {5, 4, 1, 0}, {6, 4, 1}});
  KdaProblem before = problem.clone();
  ASSERT_EQ(run(problem), "");
  EXPECT_EQ(nonzero(out_of(problem, 1, 3)), "");
  EXPECT_EQ(nonzero(slot_of(problem, 2)), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 5), slot_of(before, 5)), "");
  // The fresh row is a resumed one on a zero slot.
  fill_constant(before.state.view().select(0, 1), 0.0);
  before.start = HostTensor();
  ASSERT_EQ(run(before), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 1), slot_of(before, 1)), "");
  EXPECT_EQ(bit_difference(out_of(problem, 0, 1), out_of(before, 0, 1)), "");
  EXPECT_EQ(bit_difference(out_of(problem, 3, 4), out_of(before, 3, 4)), "");
}

TEST_P(KdaDecodeKernel, BatchMatesAndThreadsDoNotChangeBits) {
  KdaShape shape = small_shape();
  shape.slots = 64;
  std::vector<KdaRow> rows;
  for (int32_t n = 0; n < 64; ++n) rows.push_back({63 - n, 1 + n % 2, 1});
  KdaProblem batch = make_kda_problem(shape, 64, 83);
  batch.set_rows(rows);
  KdaProblem input = batch.clone();
  ASSERT_EQ(run(batch), "");
  for (int threads : {2, 3}) {
    KdaProblem again = input.clone();
    ASSERT_EQ(run(again, threads), "");
    EXPECT_EQ(bit_difference(again.out, batch.out), "");
    EXPECT_EQ(bit_difference(again.state, batch.state), "");
  }
  for (int64_t n : {0, 63}) {
    KdaProblem one = input.clone();
    one.set_rows({rows[static_cast<size_t>(n)]});
    ASSERT_EQ(run_kda(kDecode, slice_tokens(one, n, n + 1), GetParam()), "");
    EXPECT_EQ(bit_difference(out_of(one, n, n + 1), out_of(batch, n, n + 1)), "");
    EXPECT_EQ(bit_difference(slot_of(one, 63 - n), slot_of(batch, 63 - n)), "");
  }
}

// P26: rows of one token with large states, by prefill and by decode.
TEST_P(KdaDecodeKernel, OneTokenRowsOfPrefillAreDecodes) {
  const std::vector<KdaRow> rows = {{6, 9, 1}, {0, 64, 1}, {3, 0, 512}, {1, 7, 1}, {4, 3, 256}};
  KdaProblem mixed = make_kda_problem(small_shape(), total_tokens(rows), 84);
  fill_normal(mixed.state, 85, 100.0);
  mixed.set_rows(rows);
  KdaProblem decode = mixed.clone();
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, mixed.params(), GetParam(), 2), "");
  EXPECT_TRUE(compare(mixed.out, mixed.out).finite);
  int64_t t = 0;
  for (const KdaRow& row : rows) {
    if (row.tokens == 1) {
      decode.set_rows({row});
      ASSERT_EQ(run_kda(kDecode, slice_tokens(decode, t, t + 1), GetParam()), "");
      EXPECT_LE(compare(out_of(mixed, t, t + 1), out_of(decode, t, t + 1)).rel, 1e-6);
      EXPECT_LE(compare(slot_of(mixed, row.slot), slot_of(decode, row.slot)).rel, 5e-7);
    }
    t += row.tokens;
  }
}

TEST_P(KdaDecodeKernel, OverflowOfAnF16PoolIsReported) {
  KdaShape shape = small_shape();
  shape.state = DType::kF16;
  KdaProblem problem = make_kda_problem(shape, 3, 86);
  fill_constant(problem.beta, 5.0);
  fill_constant(problem.v.view().slice(0, 2, 3), -3e6);
  problem.set_rows({{2, 1, 1}, {6, 1, 1}, {4, 1, 1}});
  DeviceStatus status;
  KdaParams params = problem.params();
  params.layer = 2;
  ASSERT_EQ(run_kda(kDecode, params, GetParam(), 1, &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 2);
  EXPECT_EQ(status.overflow_slot.load(), 4);
  EXPECT_EQ(status.overflow_layer.load(), 2);
}

// Whatever bits it has: rounding must neither carry out of a NaN nor cut its payload off.
TEST_P(KdaDecodeKernel, NanStaysNanInEveryPool) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    KdaShape shape = small_shape();
    shape.state = dtype;
    KdaProblem problem = make_kda_problem(shape, 1, 87);
    problem.set_rows({{2, 1, 1}});
    const int64_t row = int64_t{2} * shape.HV * shape.V;  // of head 0, v = 0
    const uint32_t payloads[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff80ffffu, 0x7fbfffffu};
    for (size_t i = 0; i < 5; ++i) {
      static_cast<uint32_t*>(problem.v.data())[i] = payloads[i];
    }
    problem.state.set((row + 7) * shape.K + 3, std::numeric_limits<double>::quiet_NaN());
    if (dtype == DType::kBF16) {
      static_cast<uint16_t*>(problem.state.data())[(row + 8) * shape.K + 4] = 0x7f81;
      static_cast<uint16_t*>(problem.state.data())[(row + 9) * shape.K + 5] = 0xffff;
    }
    ASSERT_EQ(run(problem), "");
    const int64_t nan_rows = dtype == DType::kBF16 ? 3 : 1;
    for (int64_t v = 0; v < shape.V; ++v) {
      const bool nan = v < 5 || (v >= 7 && v < 7 + nan_rows);
      for (int64_t k = 0; k < shape.K; ++k) {
        ASSERT_EQ(std::isnan(problem.state.at((row + v) * shape.K + k)), nan) << v << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace linestate::testing
