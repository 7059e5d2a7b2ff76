// Inputs and the double-precision oracle that the tests of both convolution phases share.
#pragma once

#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "linestate/ops/causal_conv1d.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

struct ConvShape {
  int64_t channels = 300;  // more than one block of the CPU kernel
  int64_t width = 4;
  int64_t slots = 8;
  DType x = DType::kF32;
  DType weight = DType::kF32;
  std::optional<DType> bias = DType::kF32;
  DType window = DType::kF32;
  DType out = DType::kF32;
  Activation activation = Activation::kSilu;
};

/// Tensors of one call. `rows` uses slot, start, tokens and num_valid.
struct ConvCase {
  ConvShape shape;
  std::vector<Row> rows;
  HostTensor slot, query_start_loc, start, num_valid;
  HostTensor x, weight, bias, window, out;

  /// `tokens` may be more than the rows use; -1 = exactly those.
  ConvCase(const ConvShape& s, std::vector<Row> rows_in, int64_t tokens = -1, uint64_t seed = 1)
      : shape(s), rows(std::move(rows_in)) {
    std::vector<int32_t> slots, offsets{0}, starts, valid;
    for (Row& row : rows) {
      if (row.num_valid < 0) row.num_valid = row.tokens;
      slots.push_back(row.slot);
      offsets.push_back(offsets.back() + row.tokens);
      starts.push_back(static_cast<int32_t>(row.start));
      valid.push_back(row.num_valid);
    }
    if (tokens < 0) tokens = offsets.back();
    slot = i32_tensor(slots);
    query_start_loc = i32_tensor(offsets);
    start = i32_tensor(starts);
    num_valid = i32_tensor(valid);
    x = HostTensor(s.x, {tokens, s.channels});
    weight = HostTensor(s.weight, {s.channels, s.width});
    window = HostTensor(s.window, {s.slots, s.channels, s.width - 1});
    out = HostTensor(s.out, {tokens, s.channels});
    fill_normal(x, seed);
    fill_normal(weight, seed + 1, 0.5);
    if (s.bias) {
      bias = HostTensor(*s.bias, {s.channels});
      fill_normal(bias, seed + 2, 0.3);
    }
    // Windows hold values the inputs could have had.
    HostTensor past(s.x, window.shape());
    fill_normal(past, seed + 3);
    window = cast_of(past, s.window);
    fill_nan(out);
  }

  int64_t tokens() const { return x.shape()[0]; }

  CausalConv1dParams params() {
    CausalConv1dParams p;
    p.rows = {slot, query_start_loc, start, num_valid};
    p.x = x;
    p.weight = weight;
    if (bias.defined()) p.bias = bias;
    p.activation = shape.activation;
    p.window = window;
    p.out = out;
    return p;
  }
};

struct ConvExpected {
  HostTensor out;     // f64 [T, channels]
  HostTensor window;  // as the case's
};

/// What the call must do to the case as it stands before the call. Every sequence is laid out with
/// its past in front, then read off.
inline ConvExpected conv_oracle(const ConvCase& c) {
  const int64_t channels = c.shape.channels;
  const int64_t W = c.shape.width;
  ConvExpected expected{HostTensor(DType::kF64, {c.tokens(), channels}), c.window.clone()};
  int64_t first = 0;
  for (const Row& row : c.rows) {
    const bool live = row.slot >= 0 && row.slot < c.shape.slots;
    for (int64_t ch = 0; live && ch < channels; ++ch) {
      const int64_t at = (row.slot * channels + ch) * (W - 1);
      std::vector<double> sequence;
      for (int64_t j = 0; j < W - 1; ++j) {
        sequence.push_back(row.start == 0 ? 0.0 : c.window.at(at + j));
      }
      for (int64_t t = 0; t < row.num_valid; ++t) {
        sequence.push_back(c.x.at((first + t) * channels + ch));
        double y = c.bias.defined() ? c.bias.at(ch) : 0.0;
        for (int64_t j = 0; j < W; ++j) {
          y += c.weight.at(ch * W + j) * sequence[static_cast<size_t>(t + j)];
        }
        if (c.shape.activation == Activation::kSilu) y = y / (1.0 + std::exp(-y));
        expected.out.set((first + t) * channels + ch, y);
      }
      for (int64_t j = 0; j < W - 1; ++j) {
        expected.window.set(at + j, sequence[sequence.size() - static_cast<size_t>(W - 1 - j)]);
      }
    }
    first += row.tokens;
  }
  return expected;
}

/// Error allowed for an output of `dtype` (f32 floor, or the rounding of the reference).
inline double conv_tolerance(const ConstTensorView& expected, DType dtype) {
  return dtype == DType::kF32 ? 1e-6 : 1.05 * rounding_error(expected, dtype);
}

}  // namespace linestate::testing
