// One call of a Lightning operator with everything it needs, for the tests of both phases.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "linestate/ops/lightning.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

struct LightningRow {
  int32_t slot = 0;
  int64_t start = 0;
  int32_t tokens = 1;
  int32_t num_valid = -1;  // -1 = all
};

struct LightningShape {
  std::vector<LightningRow> rows;
  int64_t heads = 2;
  int64_t dim = 64;
  int64_t slots = 6;
  int64_t capacity = 0;  // tokens of the tensors, at least the rows' sum
  DType io = DType::kF32;
  DType out = DType::kF32;
  DType state = DType::kF32;
  uint64_t seed = 1;
};

class LightningCase {
 public:
  LightningShape shape;
  HostTensor q, k, v, slopes, state, out;
  HostTensor slot, query_start_loc, start, num_valid;
  LightningParams params;
  DeviceStatus status;

  explicit LightningCase(LightningShape shape_in) : shape(std::move(shape_in)) {
    int64_t tokens = 0;
    std::vector<int32_t> slots, starts, valid, offsets{0};
    for (const LightningRow& row : shape.rows) {
      tokens += row.tokens;
      slots.push_back(row.slot);
      starts.push_back(static_cast<int32_t>(row.start));
      valid.push_back(row.num_valid < 0 ? row.tokens : row.num_valid);
      offsets.push_back(static_cast<int32_t>(tokens));
    }
    shape.capacity = std::max(shape.capacity, tokens);
    const std::vector<int64_t> token_shape{shape.capacity, shape.heads, shape.dim};
    q = HostTensor(shape.io, token_shape);
    k = HostTensor(shape.io, token_shape);
    v = HostTensor(shape.io, token_shape);
    out = HostTensor(shape.out, token_shape);
    state = HostTensor(shape.state, {shape.slots, shape.heads, shape.dim, shape.dim});
    fill_normal(q, shape.seed * 8 + 1);
    fill_normal(k, shape.seed * 8 + 2, 0.3);
    fill_normal(v, shape.seed * 8 + 3);
    fill_normal(state, shape.seed * 8 + 4);
    fill_nan(out);
    slopes = f32_tensor(*lightning_slopes(shape.heads, 1, 24));
    slot = i32_tensor(slots);
    query_start_loc = i32_tensor(offsets);
    start = i32_tensor(starts);
    num_valid = i32_tensor(valid);
    bind();
  }

  void bind() {
    params.rows = {slot, query_start_loc, start, num_valid};
    params.q = q;
    params.k = k;
    params.v = v;
    params.slopes = slopes;
    params.state = state;
    params.out = out;
    params.scale = lightning_scale(LightningVariant::kSegLa, shape.dim);
  }

  /// First token of row n.
  int64_t token_of(size_t n) const { return static_cast<int64_t>(query_start_loc.at(n)); }
};

using LightningOp = Status (*)(const LightningParams&, const ExecContext&, std::string_view);
using LightningSizer = Result<int64_t> (*)(const LightningParams&, const ExecContext&,
                                           std::string_view);

/// Runs with a workspace of exactly the asked size, filled with NaN.
inline Status run_lightning(LightningOp op, LightningSizer sizer, LightningCase& test,
                            const char* kernel, int threads = 1) {
  ExecContext context;
  context.num_threads = threads;
  context.status = &test.status;
  const Result<int64_t> bytes = sizer(test.params, context, kernel);
  if (!bytes.ok()) return bytes.status();
  HostTensor workspace(DType::kF32, {*bytes / 4 + 1});
  fill_nan(workspace);
  context.workspace = {workspace.data(), *bytes};
  return op(test.params, context, kernel);
}

/// The recurrence in float64 without any rounding, written apart from the library. Expected
/// output [capacity, H, D] and pool [P, H, D, D], rounded once to f32.
struct LightningExpected {
  HostTensor out;
  HostTensor state;
};

inline LightningExpected expect_lightning(const LightningCase& test) {
  const LightningShape& s = test.shape;
  const int64_t dim = s.dim;
  LightningExpected expected{HostTensor(DType::kF32, {s.capacity, s.heads, dim}),
                             cast_of(test.state.view(), DType::kF32)};
  for (size_t n = 0; n < s.rows.size(); ++n) {
    const LightningRow& row = s.rows[n];
    if (row.slot < 0 || row.slot >= s.slots) continue;
    const int64_t valid = row.num_valid < 0 ? row.tokens : row.num_valid;
    for (int64_t h = 0; h < s.heads; ++h) {
      const double lambda = std::exp(-test.slopes.at(h));
      const int64_t base = (row.slot * s.heads + h) * dim * dim;
      for (int64_t e = 0; e < dim; ++e) {  // one column of S after the other
        std::vector<double> column(static_cast<size_t>(dim), 0.0);
        for (int64_t d = 0; d < dim && row.start > 0; ++d) {
          column[static_cast<size_t>(d)] = test.state.at(base + d * dim + e);
        }
        for (int64_t i = 0; i < valid; ++i) {
          const int64_t at = ((test.token_of(n) + i) * s.heads + h) * dim;
          double sum = 0.0;
          for (int64_t d = 0; d < dim; ++d) {
            double& S = column[static_cast<size_t>(d)];
            S = lambda * S + test.k.at(at + d) * test.v.at(at + e);
            sum += S * test.q.at(at + d);
          }
          expected.out.set(at + e, test.params.scale * sum);
        }
        for (int64_t d = 0; d < dim; ++d) {
          expected.state.set(base + d * dim + e, column[static_cast<size_t>(d)]);
        }
      }
    }
  }
  return expected;
}

/// Empty when output and state are close enough, otherwise what is not. Output: 1e-6 (f32) or
/// 1.05 x the rounding of its dtype; f32 state: 5e-7; 16-bit state: 1.05 x its rounding.
inline std::string disagreement(const LightningCase& test, const LightningExpected& expected) {
  const ConstTensorView want = expected.out.view();
  const ConstTensorView pool = expected.state.view();
  const double out_limit =
      test.shape.out == DType::kF32 ? 1e-6 : 1.05 * rounding_error(want, test.shape.out);
  const double state_limit =
      test.shape.state == DType::kF32 ? 5e-7 : 1.05 * rounding_error(pool, test.shape.state);
  const Difference out = compare(test.out.view(), want);
  const Difference state = compare(test.state.view(), pool);
  std::string text;
  if (!(out.rel <= out_limit)) text += "out: " + out.text() + "\n";
  if (!(state.rel <= state_limit)) text += "state: " + state.text() + "\n";
  return text;
}

/// Slot `index` of a pool.
inline ConstTensorView slot_of(const HostTensor& pool, int64_t index) {
  return pool.view().slice(0, index, index + 1);
}

}  // namespace linestate::testing
