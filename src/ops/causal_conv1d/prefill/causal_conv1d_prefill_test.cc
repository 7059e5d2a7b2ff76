#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "linestate/ops/causal_conv1d.h"
#include "ops/causal_conv1d/conv_case.h"
#include "testing/compare.h"
#include "testing/sparse_memory.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Row extend(int32_t slot, int64_t start, int32_t tokens, int32_t num_valid = -1) {
  return {slot, RowKind::kExtend, start, tokens, num_valid, -1};
}

class CausalConv1dPrefill : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const CausalConv1dParams& params, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    const Status status = causal_conv1d_prefill(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  /// Runs the case and judges outputs and the whole pool.
  void run_and_check(ConvCase& c, const std::string& what = "") {
    SCOPED_TRACE(what);
    const ConvExpected expected = conv_oracle(c);
    run(c.params());
    const Difference diff = compare(c.out, expected.out);
    EXPECT_LE(diff.rel, conv_tolerance(expected.out, c.shape.out)) << diff.text();
    EXPECT_EQ(bit_difference(c.window, expected.window), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CausalConv1dPrefill, ::testing::Values("cpu", "ref"));

TEST_P(CausalConv1dPrefill, MatchesDoublePrecision) {
  for (int64_t width : {2, 3, 4}) {
    for (DType x : {kF32, kBF16, kF16}) {
      for (DType weight : {kF32, kBF16}) {
        for (int variant = 0; variant < 4; ++variant) {
          ConvShape s;
          s.width = width;
          s.x = x;
          s.weight = weight;
          s.window = variant % 2 == 0 ? x : kF32;
          s.out = variant < 2 ? kF32 : x;
          s.activation = variant == 1 ? Activation::kNone : Activation::kSilu;
          if (variant == 2) s.bias = std::nullopt;
          if (variant == 3) s.bias = kF16;
          ConvCase c(s, {extend(5, 64, 3), extend(0, 0, 9), extend(7, 2, 1), extend(1, 0, 2)});
          run_and_check(c, "width " + std::to_string(width) + " x " + std::string(dtype_name(x)) +
                               " variant " + std::to_string(variant));
        }
      }
    }
  }
}

// Sums start from the bias and products stay f32: with powers of two every step is exact, and a
// product rounded to bf16 would lose the low part.
TEST_P(CausalConv1dPrefill, KeepsProductsInF32) {
  ConvShape s;
  s.channels = 1;
  s.x = kBF16;
  s.weight = kBF16;
  s.window = kBF16;
  s.bias = kBF16;
  s.activation = Activation::kNone;
  ConvCase c(s, {extend(2, 0, 1)});
  c.x.set(0, 1.0 + 0x1p-7);
  c.weight.set(3, 1.0 + 0x1p-7);
  c.bias.set(0, 0.25);
  run(c.params());
  EXPECT_EQ(c.out.at(0), 0.25 + 1.0 + 0x1p-6 + 0x1p-14);
}

TEST_P(CausalConv1dPrefill, WindowIsTheLastInputsForAnyPieceLength) {
  for (int64_t width : {4, 3, 2}) {
    ConvShape s;
    s.channels = 3;
    s.width = width;
    s.x = kBF16;
    s.window = kBF16;
    HostTensor window;
    std::vector<double> sequence{-3, -2, -1};  // channel ch holds value + 100 * ch
    double next = 1;
    for (int32_t piece : {1, 2, 3, 0, 5}) {
      ConvCase c(s, {extend(4, 3, piece)});
      if (window.defined()) {
        c.window = window.clone();
      } else {
        for (int64_t ch = 0; ch < 3; ++ch) {
          for (int64_t j = 0; j < width - 1; ++j) {
            c.window.set((int64_t{4} * 3 + ch) * (width - 1) + j,
                         static_cast<double>(j - width + 1 + 100 * ch));
          }
        }
      }
      for (int64_t t = 0; t < piece; ++t) {
        sequence.push_back(next);
        for (int64_t ch = 0; ch < 3; ++ch)
          c.x.set(t * 3 + ch, next + 100.0 * static_cast<double>(ch));
        next += 1;
      }
      run(c.params());
      for (int64_t ch = 0; ch < 3; ++ch) {
        for (int64_t j = 0; j < width - 1; ++j) {
          EXPECT_EQ(c.window.at((int64_t{4} * 3 + ch) * (width - 1) + j),
                    sequence[sequence.size() - static_cast<size_t>(width - 1 - j)] +
                        100.0 * static_cast<double>(ch))
              << "width " << width << " piece " << piece << " channel " << ch << " place " << j;
        }
      }
      window = c.window.clone();
    }
    // A new sequence of one token in the same slot: zeros, then the token.
    ConvCase c(s, {extend(4, 0, 1)});
    c.window = window.clone();
    run(c.params());
    for (int64_t ch = 0; ch < 3; ++ch) {
      for (int64_t j = 0; j < width - 1; ++j) {
        EXPECT_EQ(c.window.at((int64_t{4} * 3 + ch) * (width - 1) + j),
                  j == width - 2 ? c.x.at(ch) : 0.0);
      }
    }
  }
}

// Every way to cut 11 tokens (1 024 of them).
TEST_P(CausalConv1dPrefill, AnySplitGivesTheBitsOfTheWhole) {
  ConvShape s;
  s.channels = 5;
  s.slots = 2;
  s.x = kBF16;
  s.weight = kBF16;
  s.window = kBF16;
  ConvCase whole(s, {extend(1, 64, 11)});
  const HostTensor before = whole.window.clone();
  run(whole.params(), 1);
  for (uint32_t cuts = 0; cuts < 1024; ++cuts) {
    ConvCase parts(s, {extend(1, 64, 11)});
    ASSERT_EQ(bit_difference(parts.window, before), "");
    int32_t begin = 0;
    for (int32_t end = 1; end <= 11; ++end) {
      if (end < 11 && (cuts >> (end - 1) & 1u) == 0) continue;
      CausalConv1dParams params = parts.params();
      const HostTensor offsets = i32_tensor({0, end - begin});
      const HostTensor valid = i32_tensor({end - begin});
      params.rows.query_start_loc = offsets;
      params.rows.num_valid = valid;
      params.x = params.x.slice(0, begin, end);
      params.out = params.out.slice(0, begin, end);
      run(params, 1);
      begin = end;
    }
    ASSERT_EQ(bit_difference(parts.out, whole.out), "") << "cuts " << cuts;
    ASSERT_EQ(bit_difference(parts.window, whole.window), "") << "cuts " << cuts;
  }
}

TEST_P(CausalConv1dPrefill, FreshRowsNeverReadTheSlot) {
  for (double poison : {kNan, 1e30}) {
    for (int32_t tokens : {0, 1, 3, 6}) {
      ConvShape s;
      s.x = kBF16;
      s.window = kBF16;
      ConvCase c(s, {extend(2, 0, tokens)});
      fill_constant(c.window.view().slice(0, 2, 3), poison);
      ConvCase clean(s, {extend(2, 0, tokens)});
      fill_constant(clean.window.view().slice(0, 2, 3), 0.0);
      run_and_check(c, "tokens " + std::to_string(tokens));
      run(clean.params());
      EXPECT_EQ(bit_difference(c.out, clean.out), "");
      EXPECT_EQ(bit_difference(c.window, clean.window), "");
    }
  }
}

TEST_P(CausalConv1dPrefill, PaddingRowsGiveZerosAndTouchNothing) {
  ConvShape s;
  for (int32_t pad :
       {-1, 8, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    ConvCase c(s, {extend(3, 64, 2), extend(pad, 0, 4), extend(pad, 64, 0), extend(pad, 64, 3)});
    fill_nan(c.x.view().slice(0, 2, 9));
    const HostTensor before = c.window.clone();
    run_and_check(c, "slot " + std::to_string(pad));
    EXPECT_EQ(nonzero(c.out.view().slice(0, 2, 9)), "");
    EXPECT_EQ(bit_difference(c.window.view().slice(0, 0, 3), before.view().slice(0, 0, 3)), "");
    EXPECT_EQ(bit_difference(c.window.view().slice(0, 4, 8), before.view().slice(0, 4, 8)), "");
  }
}

TEST_P(CausalConv1dPrefill, FlagsSlotsPastThePool) {
  ConvCase c({}, {extend(3, 64, 1), extend(8, 64, 1), extend(-1, 64, 1)});
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  ASSERT_TRUE(causal_conv1d_prefill(c.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kSlotOutOfRange), 1);
}

TEST_P(CausalConv1dPrefill, PlaceholdersNeitherCountNorLeak) {
  ConvShape s;
  ConvCase c(s,
             {extend(2, 64, 4, 4), extend(5, 64, 4, 1), extend(1, 0, 4, 0), extend(6, 64, 4, 0)});
  fill_nan(c.x.view().slice(0, 5, 16));
  const HostTensor before = c.window.clone();
  run_and_check(c);
  EXPECT_EQ(nonzero(c.out.view().slice(0, 5, 16)), "");
  EXPECT_EQ(nonzero(c.window.view().slice(0, 1, 2)), "") << "fresh, nothing valid";
  EXPECT_EQ(bit_difference(c.window.view().slice(0, 6, 7), before.view().slice(0, 6, 7)), "");
}

// A bucket of 256 tokens of which 130 belong to rows.
TEST_P(CausalConv1dPrefill, TokensBehindTheRowsAreZero) {
  for (bool padded_rows : {false, true}) {
    std::vector<Row> rows{extend(4, 64, 70), extend(2, 0, 60)};
    if (padded_rows) rows.insert(rows.end(), {extend(-1, 0, 0), extend(-1, 0, 0)});
    ConvCase c({}, rows, 256);
    fill_nan(c.x.view().slice(0, 130, 256));
    run_and_check(c);
    EXPECT_EQ(nonzero(c.out.view().slice(0, 130, 256)), "");
  }
  ConvCase none({}, {}, 3);
  run(none.params());
  EXPECT_EQ(nonzero(none.out), "") << "no rows at all";
}

TEST_P(CausalConv1dPrefill, EmptyRowsAnywhere) {
  const std::vector<std::vector<int32_t>> batches{{128, 0, 128}, {0, 5, 6},          {5, 6, 0},
                                                  {0, 0, 1},     {128, 0, 1, 0, 64}, {0, 0, 0}};
  for (const std::vector<int32_t>& lengths : batches) {
    std::vector<Row> rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      rows.push_back(extend(static_cast<int32_t>(i) + 1, 64, lengths[i]));
    }
    ConvCase c({}, rows);
    const HostTensor before = c.window.clone();
    run_and_check(c);
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] != 0) continue;
      const auto slot = static_cast<int64_t>(i) + 1;
      EXPECT_EQ(bit_difference(c.window.view().slice(0, slot, slot + 1),
                               before.view().slice(0, slot, slot + 1)),
                "");
    }
  }
}

TEST_P(CausalConv1dPrefill, ThreadsAndBatchMatesDoNotMatter) {
  const std::vector<Row> rows{extend(4, 64, 17), extend(0, 0, 1), extend(-1, 0, 5),
                              extend(7, 3, 33), extend(2, 0, 0)};
  ConvShape s;
  s.channels = 600;
  s.x = kBF16;
  s.window = kBF16;
  ConvCase one(s, rows);
  run(one.params(), 1);
  for (int threads : {2, 3}) {
    ConvCase many(s, rows);
    run(many.params(), threads);
    EXPECT_EQ(bit_difference(many.out, one.out), "");
    EXPECT_EQ(bit_difference(many.window, one.window), "");
  }
  ConvCase alone(s, rows);
  CausalConv1dParams params = alone.params();
  const HostTensor slot = i64_tensor({7});
  const HostTensor offsets = i64_tensor({0, 33});
  const HostTensor start = i64_tensor({3});
  params.rows = {slot, offsets, start, {}};
  params.x = params.x.slice(0, 23, 56);
  params.out = params.out.slice(0, 23, 56);
  run(params);
  EXPECT_EQ(bit_difference(params.out, one.out.view().slice(0, 23, 56)), "");
  EXPECT_EQ(bit_difference(alone.window.view().slice(0, 7, 8), one.window.view().slice(0, 7, 8)),
            "");
}

// x and out are column slices of wide buffers, the window is kept channels-last inside a larger
// slot, the weight is transposed, index tensors are every second element.
TEST_P(CausalConv1dPrefill, AnyStrides) {
  ConvShape s;
  s.x = kBF16;
  s.window = kBF16;
  ConvCase c(s, {extend(5, 64, 7), extend(0, 0, 2), extend(-1, 64, 3), extend(3, 1, 40)}, 55);
  const int64_t tokens = c.tokens();
  const ConvExpected expected = conv_oracle(c);

  HostTensor wide_x(s.x, {tokens, 1000});
  HostTensor wide_out(s.out, {tokens, 700});
  HostTensor wide_window(s.window, {s.slots, 5, 400});  // [slot, place, channel] with borders
  HostTensor weight(s.weight, {s.width, s.channels});
  fill_nan(wide_x);
  fill_nan(wide_out);
  fill_nan(wide_window);
  CausalConv1dParams params = c.params();
  params.x = wide_x.view().slice(1, 321, 321 + s.channels);
  params.out = wide_out.view().slice(1, 77, 77 + s.channels);
  params.window = wide_window.view().slice(1, 1, 4).slice(2, 50, 50 + s.channels).transpose(1, 2);
  params.weight = weight.view().transpose(0, 1);
  const auto copy = [](const ConstTensorView& to, const ConstTensorView& from) {
    std::vector<int64_t> source;
    for_each_offset(from, [&](int64_t at) { source.push_back(at); });
    size_t i = 0;
    const auto size = static_cast<size_t>(dtype_bytes(from.dtype));
    for_each_offset(to, [&](int64_t at) {
      std::memcpy(static_cast<char*>(const_cast<void*>(to.data)) + at * static_cast<int64_t>(size),
                  static_cast<const char*>(from.data) + source[i++] * static_cast<int64_t>(size),
                  size);
    });
  };
  copy(params.x, c.x);
  copy(params.window, c.window);
  copy(params.weight, c.weight);
  HostTensor slot(DType::kI64, {4, 2});
  for (int64_t i = 0; i < 4; ++i) slot.set(2 * i, c.slot.at(i));
  params.rows.slot = slot.view().select(1, 0);

  const HostTensor canary_out = wide_out.clone();
  const HostTensor canary_window = wide_window.clone();
  run(params);
  const Difference diff = compare(params.out, expected.out);
  EXPECT_LE(diff.rel, 1e-6) << diff.text();
  EXPECT_EQ(bit_difference(params.window, expected.window), "");
  EXPECT_EQ(bit_difference(wide_out.view().slice(1, 0, 77), canary_out.view().slice(1, 0, 77)), "");
  EXPECT_EQ(bit_difference(wide_out.view().slice(1, 77 + s.channels, 700),
                           canary_out.view().slice(1, 77 + s.channels, 700)),
            "");
  for (int64_t place : {0, 4}) {
    EXPECT_EQ(bit_difference(wide_window.view().slice(1, place, place + 1),
                             canary_window.view().slice(1, place, place + 1)),
              "");
  }
  EXPECT_EQ(
      bit_difference(wide_window.view().slice(2, 0, 50), canary_window.view().slice(2, 0, 50)), "");
}

TEST_P(CausalConv1dPrefill, NegativeStrides) {
  ConvShape s;
  s.activation = Activation::kNone;
  ConvCase c(s, {extend(5, 64, 7)});
  const ConvExpected expected = conv_oracle(c);
  // Channels stored backwards in x, weight, bias, window and out alike.
  const auto backwards = [](TensorView view, int dim) {
    view.data = static_cast<char*>(view.data) +
                (view.shape[dim] - 1) * view.stride[dim] * dtype_bytes(view.dtype);
    view.stride[dim] = -view.stride[dim];
    return view;
  };
  HostTensor x = copy_of(backwards(c.x, 1));
  CausalConv1dParams params = c.params();
  params.x = backwards(x, 1);
  HostTensor out(s.out, {c.tokens(), s.channels});
  params.out = backwards(out, 1);
  run(params);
  EXPECT_LE(compare(params.out, expected.out).rel, 1e-6);
  EXPECT_EQ(bit_difference(c.window, expected.window), "");
}

// Token, channel-block and slot offsets beyond 2^31 elements, in memory that is never touched
// elsewhere.
TEST_P(CausalConv1dPrefill, OffsetsBeyond31Bits) {
  ConvShape s;
  s.channels = 8;
  s.slots = 4;
  s.x = kBF16;
  s.window = kBF16;
  ConvCase c(s, {extend(3, 64, 2), extend(1, 0, 2)});
  const ConvExpected expected = conv_oracle(c);
  constexpr int64_t kPitch = int64_t{750'000'000};  // 3 of them pass 2^31
  const SparseMemory x_memory(4 * kPitch * 2);
  const SparseMemory window_memory(4 * kPitch * 2);
  const SparseMemory out_memory(4 * kPitch * 4);
  CausalConv1dParams params = c.params();
  TensorView x(x_memory.data(), s.x, {4, s.channels});
  x.stride = {kPitch, 1};
  params.window.data = window_memory.data();
  params.window.stride[0] = kPitch;
  params.out.data = out_memory.data();
  params.out.stride[0] = kPitch;
  const auto move = [](const TensorView& to, const HostTensor& from) {
    for (int64_t i = 0; i < to.shape[0]; ++i) {
      const TensorView row = to.select(0, i);
      const ConstTensorView source = from.view().select(0, i);
      std::memcpy(row.data, source.data,
                  static_cast<size_t>(source.num_elements() * dtype_bytes(source.dtype)));
    }
  };
  move(x, c.x);
  move(params.window, c.window);
  params.x = x;
  run(params);
  EXPECT_LE(compare(params.out, expected.out).rel, 1e-6);
  EXPECT_EQ(bit_difference(params.window, expected.window), "");
}

TEST_P(CausalConv1dPrefill, SiluOfLargeValuesStaysFinite) {
  ConvShape s;
  s.channels = 4;
  ConvCase c(s, {extend(0, 0, 1)});
  fill_constant(c.weight, 0.0);
  const double biases[4] = {-200.0, -88.5, 200.0, 3e38};
  for (int64_t ch = 0; ch < 4; ++ch) c.bias.set(ch, biases[ch]);
  run(c.params());
  EXPECT_EQ(nonzero(c.out.view().slice(1, 0, 1)), "");
  EXPECT_NEAR(c.out.at(1), 0.0, 1e-35);
  EXPECT_EQ(c.out.at(2), 200.0);
  EXPECT_EQ(c.out.at(3), c.bias.at(3));
}

TEST_P(CausalConv1dPrefill, WindowKeepsBits) {
  ConvShape s;
  s.channels = 1;
  ConvCase c(s, {extend(1, 0, 3)});
  const uint32_t bits[3] = {0x7fa01234u, 0x00000001u, 0x80000000u};  // NaN payload, subnormal, -0
  std::memcpy(c.x.data(), bits, sizeof bits);
  run(c.params());
  EXPECT_EQ(std::memcmp(static_cast<const uint32_t*>(c.window.data()) + 3, bits, sizeof bits), 0);
  // f16 inputs in an f32 window widen without loss.
  s.x = kF16;
  s.channels = 7;
  ConvCase wide(s, {extend(1, 0, 3)});
  run(wide.params());
  for (int64_t ch = 0; ch < 7; ++ch) {
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(wide.window.at((7 + ch) * 3 + j), wide.x.at(j * 7 + ch));
    }
  }
}

TEST_P(CausalConv1dPrefill, RaisesNonFiniteWhenAsked) {
  ConvCase c({}, {extend(0, 0, 2), extend(1, 0, 2)});
  c.x.set(2 * c.shape.channels + 5, kNan);
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  ASSERT_TRUE(causal_conv1d_prefill(c.params(), context, GetParam()).ok());
  EXPECT_FALSE(device_status.raised(DeviceFlag::kNonFinite));
  context.check_finite = true;
  ASSERT_TRUE(causal_conv1d_prefill(c.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kNonFinite), 2);
}

TEST(CausalConv1dPrefillContract, RefusesByName) {
  ConvShape s;
  s.channels = 6;
  s.x = kBF16;
  s.window = kBF16;
  const auto refuses = [&](const char* expected, const auto& change) {
    ConvCase c(s, {extend(1, 64, 2), extend(2, 0, 3)});
    CausalConv1dParams params = c.params();
    HostTensor keep = change(params);
    const HostTensor before = c.window.clone();
    const Status status = causal_conv1d_prefill(params, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, std::strlen(expected)), expected);
    EXPECT_EQ(bit_difference(c.window, before), "");
    EXPECT_EQ(explain_causal_conv1d_prefill(params, {}).problem, status.message());
  };
  using P = CausalConv1dParams;
  const auto none = [] { return HostTensor(); };
  refuses("x: expected shape", [&](P& p) {
    p.x = p.x.select(0, 0);
    return none();
  });
  refuses("x: expected dtype", [&](P& p) {
    p.x.dtype = DType::kI32;
    return none();
  });
  refuses("x: expected memory", [&](P& p) {
    p.x.data = nullptr;
    return none();
  });
  refuses("x: expected device", [&](P& p) {
    p.x.device = {DeviceType::kCuda, 0};
    return none();
  });
  refuses("weight: expected shape", [&](P& p) {
    HostTensor weight(kF32, {5, 4});
    p.weight = weight;
    return weight;
  });
  for (int64_t width : {1, 5}) {
    refuses("weight: expected a width of 2 to 4", [&](P& p) {
      HostTensor weight(kF32, {6, width});
      p.weight = weight;
      return weight;
    });
  }
  refuses("bias: expected shape", [&](P& p) {
    p.bias = p.bias.slice(0, 0, 5);
    return none();
  });
  refuses("bias: expected dtype", [&](P& p) {
    p.bias.dtype = DType::kI32;
    return none();
  });
  refuses("activation: expected", [&](P& p) {
    p.activation = Activation(7);
    return none();
  });
  refuses("window: expected shape", [&](P& p) {
    p.window = p.window.slice(2, 0, 2);
    return none();
  });
  refuses("window: expected dtype bf16 or f32, got f16", [&](P& p) {
    p.window.dtype = kF16;
    return none();
  });
  refuses("window: expected strides", [&](P& p) {
    p.window.stride[1] = 1;
    return none();
  });
  refuses("out: expected shape", [&](P& p) {
    p.out = p.out.slice(0, 0, 4);
    return none();
  });
  refuses("out: expected strides", [&](P& p) {
    p.out.stride[0] = 0;
    return none();
  });
  refuses("out: expected memory apart from x", [&](P& p) {
    p.out.data = const_cast<void*>(p.x.data);
    p.out.dtype = p.x.dtype;
    return none();
  });
  refuses("rows.start: expected shape", [&](P& p) {
    p.rows.start = {};
    return none();
  });
  refuses("rows.query_start_loc: expected monotone", [&](P& p) {
    HostTensor offsets = i32_tensor({0, 3, 2});
    p.rows.query_start_loc = offsets;
    return offsets;
  });
  refuses("rows.query_start_loc: expected to start at 0", [&](P& p) {
    HostTensor offsets = i32_tensor({1, 2, 5});
    p.rows.query_start_loc = offsets;
    return offsets;
  });
  refuses("rows.query_start_loc: expected monotone offsets up to 5", [&](P& p) {
    HostTensor offsets = i32_tensor({0, 2, 6});
    p.rows.query_start_loc = offsets;
    return offsets;
  });
  refuses("rows.num_valid: expected 0 to 2", [&](P& p) {
    HostTensor valid = i32_tensor({3, 0});
    p.rows.num_valid = valid;
    return valid;
  });
  refuses("rows.slot: expected distinct live slots, got slot 1", [&](P& p) {
    HostTensor slot = i32_tensor({1, 1});
    p.rows.slot = slot;
    return slot;
  });
}

TEST(CausalConv1dPrefillContract, ExplainsAndNamesKernels) {
  ConvCase c({}, {extend(1, 64, 2)});
  const KernelChoice choice = explain_causal_conv1d_prefill(c.params(), {});
  EXPECT_EQ(choice.kernel, "cpu");
  EXPECT_EQ(choice.workspace_bytes, 0);
  const Result<int64_t> bytes = causal_conv1d_prefill_workspace_bytes(c.params(), {});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, 0);
  const Status status = causal_conv1d_prefill(c.params(), {}, "fast");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("auto, cuda, cpu, ref"), std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
