// Cases P13, P14 and P15 of docs/cases.md: offsets beyond 32 bits and very many rows. The memory is
// address space only; a few pages of it are touched.
#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/lightning.h"
#include "testing/lightning_case.h"
#include "testing/sparse_memory.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

/// P slots of `stride` elements each, of which the problem's own [HV, V, K] are used.
struct BigPool {
  SparseMemory memory;
  TensorView view;
  BigPool(const TensorView& small, int64_t slots, int64_t stride)
      : memory(slots * stride * dtype_bytes(small.dtype)), view(small) {
    view.data = memory.data();
    view.shape[0] = slots;
    view.stride[0] = stride;
  }
  TensorView slot(int64_t s) const { return view.slice(0, s, s + 1); }
};

void copy_values(const TensorView& to, const ConstTensorView& from) {
  const HostTensor dense = copy_of(from);
  int64_t at = 0;
  for_each_offset(to,
                  [&](int64_t offset) { store_f64(to.data, to.dtype, offset, dense.at(at++)); });
}

// The rows of a small problem in slots far apart; canaries where a wrapped offset would land.
void check_p13(KdaPhase phase, DType dtype, int64_t stride, const std::vector<int32_t>& slots,
               int64_t P, KdaShape shape, int32_t tokens, const std::string& kernel) {
  shape.state = dtype;
  shape.slots = static_cast<int64_t>(slots.size());
  std::vector<KdaRow> near, far;
  for (const int32_t slot : slots) {
    near.push_back({static_cast<int32_t>(near.size()), 64, tokens});
    far.push_back({slot, 64, tokens});
  }
  KdaProblem small = make_kda_problem(shape, total_tokens(near), 130);
  BigPool pool(small.state.view(), P, stride);
  KdaProblem big = small.clone();
  small.set_rows(near);
  big.set_rows(far);
  std::vector<int64_t> canaries;
  for (const int64_t wrap :
       {int64_t{0}, (int64_t{1} << 31) / stride, (int64_t{1} << 32) / stride}) {
    for (const int64_t slot : slots) {
      for (const int64_t s : {slot - wrap, slot - wrap - 1, slot - wrap + 1}) {
        const bool live = std::count(slots.begin(), slots.end(), s) > 0;
        if (s >= 0 && s < P && !live) canaries.push_back(s);
      }
    }
  }
  for (const int64_t s : canaries) fill_constant(pool.slot(s), 5.0);
  for (size_t n = 0; n < slots.size(); ++n) {
    copy_values(pool.slot(slots[n]), pool_slot(small.state, static_cast<int64_t>(n)));
  }
  KdaParams params = big.params();
  params.state = pool.view;
  ASSERT_EQ(run_kda(phase, small.params(), kernel), "");
  ASSERT_EQ(run_kda(phase, params, kernel), "");
  EXPECT_EQ(bit_difference(big.out, small.out), "");
  for (size_t n = 0; n < slots.size(); ++n) {
    EXPECT_EQ(bit_difference(pool.slot(slots[n]), pool_slot(small.state, static_cast<int64_t>(n))),
              "")
        << slots[n];
  }
  HostTensor five = copy_of(pool.slot(0));
  fill_constant(five, 5.0);
  for (const int64_t s : canaries) EXPECT_EQ(bit_difference(pool.slot(s), five), "") << s;
}

TEST(Cases, P13_SlotsBeyondFourBillionElements) {
  const std::vector<int32_t> f32_slots = {1, 4095, 4096, 4099};
  const std::vector<int32_t> bf16_slots = {1, 4095, 4096, 4099, 8191, 8192, 8199};
  KdaShape whole = base_kda_shape();  // every element of a slot of 32 heads
  whole.H = whole.HV = 32;
  whole.io = whole.out = DType::kF32;
  constexpr int64_t kStride = 32 * 128 * 128;
  check_p13(KdaPhase::kDecode, DType::kF32, kStride, f32_slots, 4100, whole, 1, "cpu");
  KdaShape part = whole;  // the same places, one head of each
  part.H = part.HV = 1;
  part.K = part.V = 32;
  for (const std::string& kernel : kKernelRows) {
    check_p13(KdaPhase::kDecode, DType::kBF16, kStride, bf16_slots, 8200, part, 1, kernel);
    check_p13(KdaPhase::kPrefill, DType::kF32, kStride, f32_slots, 4100, part, 70, kernel);
    check_p13(KdaPhase::kPrefill, DType::kBF16, kStride, bf16_slots, 8200, part, 70, kernel);
    check_p13(KdaPhase::kDecode, DType::kF32, 12 * 128 * 128, {1, 10922, 10923, 10925}, 10930, part,
              1, kernel);
  }
}

TEST(Cases, P13_LightningSlotsBeyondFourBillionElements) {
  for (const std::string& kernel : kKernelRows) {
    LightningShape shape;
    shape.rows = {{0, 9, 1}, {1, 9, 1}, {2, 9, 1}};
    shape.slots = 3;
    shape.dim = 32;
    LightningCase small(shape);
    BigPool pool(small.state.view(), 8200, 32 * 128 * 128);
    const std::vector<int32_t> slots = {4096, 8191, 8199};
    for (int64_t n = 0; n < 3; ++n) {
      copy_values(pool.slot(slots[static_cast<size_t>(n)]), pool_slot(small.state, n));
    }
    LightningCase big(shape);
    big.slot = i32_tensor(slots);
    big.bind();
    big.params.state = pool.view;
    for (LightningCase* test : {&small, &big}) {
      ASSERT_EQ(call_op(lightning_decode, lightning_decode_workspace_bytes, test->params, kernel),
                "");
    }
    EXPECT_EQ(bit_difference(big.out, small.out), "");
    for (int64_t n = 0; n < 3; ++n) {
      EXPECT_EQ(bit_difference(pool.slot(slots[static_cast<size_t>(n)]), pool_slot(small.state, n)),
                "");
    }
    for (const int64_t s : {0, 7, 4095}) EXPECT_EQ(nonzero(pool.slot(s)), "") << s;
  }
}

// x is a column slice of a [60000, 36864] buffer; what lies beside it is NaN.
TEST(Cases, P14_ConvolutionOfALongWidePitchedPrefill) {
  constexpr int64_t kTokens = 60000, kPitch = 36864, kChannels = 32, kColumn = 30000;
  SparseMemory memory(kTokens * kPitch * 2);
  const TensorView buffer(memory.data(), DType::kBF16, {kTokens, kPitch});
  const TensorView x = buffer.slice(1, kColumn, kColumn + kChannels);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 8}, {58200, kTokens}}) {
    fill_nan(buffer.slice(0, begin, end).slice(1, kColumn - 16, kColumn + kChannels + 16));
    fill_normal(x.slice(0, begin, end), static_cast<uint64_t>(140 + begin));
  }
  const HostTensor compact = copy_of(x);
  HostTensor weight(DType::kF32, {kChannels, 4});
  fill_normal(weight, 141, 0.5);
  const HostTensor slot = i32_tensor({1, 0});
  const HostTensor start = i32_tensor({3, 0});
  const HostTensor offsets = i32_tensor({0, 59990, 60000});
  for (const std::string& kernel : kKernelRows) {
    HostTensor window(DType::kBF16, {2, kChannels, 3});
    fill_normal(window, 142);
    HostTensor window_compact = window.clone();
    HostTensor out(DType::kBF16, {kTokens, kChannels}),
        out_compact(DType::kBF16, {kTokens, kChannels});
    CausalConv1dParams p;
    p.rows = {slot, offsets, start, {}};
    p.weight = weight;
    p.x = x;
    p.window = window;
    p.out = out;
    ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, p, kernel), "");
    p.x = compact;
    p.window = window_compact;
    p.out = out_compact;
    ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, p, kernel), "");
    EXPECT_EQ(bit_difference(out, out_compact), "") << kernel;
    EXPECT_EQ(bit_difference(window, window_compact), "") << kernel;
    for (int64_t c = 0; c < kChannels; ++c) {
      for (int64_t j = 0; j < 3; ++j) {  // last inputs of either sequence
        EXPECT_EQ(window.at((kChannels + c) * 3 + j), compact.at((59987 + j) * kChannels + c));
        EXPECT_EQ(window.at(c * 3 + j), compact.at((59997 + j) * kChannels + c));
      }
    }
    for (int64_t t = 58250; t < 58260; ++t) {  // against the formula
      for (int64_t c = 0; c < kChannels; ++c) {
        double y = 0.0;
        for (int64_t j = 0; j < 4; ++j) {
          y += weight.at(c * 4 + j) * compact.at((t - 3 + j) * kChannels + c);
        }
        EXPECT_NEAR(out.at(t * kChannels + c), y / (1.0 + std::exp(-y)),
                    0.004 * std::abs(y) + 1e-6);
      }
    }
  }
}

TEST(Cases, P15_MoreRowHeadPairsThanALaunchDimension) {
  for (const std::string& kernel : kKernelRows) {
    KdaShape shape = small_kda_shape();
    shape.H = shape.HV = 96;
    shape.K = shape.V = 16;
    shape.slots = 3;
    std::vector<KdaRow> rows(683, KdaRow{-1, 5, 1});
    rows.front().slot = 1;
    rows.back().slot = 2;
    KdaProblem p = make_kda_problem(shape, 683, 150);
    p.set_rows(rows);
    const HostTensor before = p.state.clone();
    expect_kda_call(KdaPhase::kDecode, p, kernel, "683 rows of 96 heads");
    EXPECT_EQ(nonzero(part(p.out, 1, 682)), "");
    expect_untouched(p.state, before, {1, 2}, "683 rows");
  }
}

TEST(Cases, P15_SeventyThousandSequencesOfOneToken) {
  for (const std::string& kernel : kKernelRows) {
    for (const auto& [phase, count] :
         {std::pair{KdaPhase::kPrefill, 70000}, {KdaPhase::kDecode, 65536}}) {
      KdaShape shape = small_kda_shape();
      shape.H = shape.HV = 1;
      shape.K = shape.V = 16;
      shape.slots = 8;
      std::vector<KdaRow> rows(static_cast<size_t>(count), KdaRow{-1, 0, 1});
      for (int32_t n = 0; n < 8; ++n) {
        rows[static_cast<size_t>(n) * 9362].slot = n;
        rows[static_cast<size_t>(n) * 9362].start = n;
      }
      if (phase == KdaPhase::kPrefill) {
        rows.back() = rows.front();
        rows.front().slot = -1;
      }
      KdaProblem p = make_kda_problem(shape, count, 151);
      p.set_rows(rows);
      expect_kda_call(phase, p, kernel, std::to_string(count) + " rows");
    }
  }
}

}  // namespace
}  // namespace linestate::testing
