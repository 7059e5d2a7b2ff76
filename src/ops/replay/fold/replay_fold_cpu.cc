// Fold on the CPU: a row of the state goes through all pending records in f32. KDA rows run along
// keys, Lightning rows along values; either way a row takes multiples of the records' other side.
#include <array>
#include <cmath>

#include "ops/replay/fold/replay_fold_kernels.h"
#include "ops/replay/fold/replay_fold_walk.h"

namespace linestate {
namespace {

constexpr int64_t kMaxDim = 256;
constexpr auto kMaxRecords = static_cast<size_t>(kMaxReplayLength - 1);

// The records of one head, as rows and as the factors of one row of the state.
struct Records {
  std::array<float, kMaxRecords * kMaxDim> row;  // [pending, dim]
  std::array<float, kMaxRecords> factor;         // [pending]
};

// s <- s * hi + (s * lo + sum over records of factor * row).
void fold_row(const Records& records, int64_t pending, int64_t dim, const float* hi,
              const float* lo, float* s) {
  std::array<float, kMaxDim> sum;
  for (int64_t i = 0; i < dim; ++i) sum[static_cast<size_t>(i)] = s[i] * lo[i];
  for (int64_t r = 0; r < pending; ++r) {
    const float factor = records.factor[static_cast<size_t>(r)];
    const float* row = records.row.data() + r * dim;
    for (int64_t i = 0; i < dim; ++i) sum[static_cast<size_t>(i)] += factor * row[i];
  }
  for (int64_t i = 0; i < dim; ++i) s[i] = s[i] * hi[i] + sum[static_cast<size_t>(i)];
}

bool fold_head(const FoldHead& x) {
  const bool lightning = x.layer.slopes.defined();
  const TensorView& state = x.layer.state;
  const TensorView& along = lightning ? x.layer.ring.values : x.layer.ring.keys;
  const TensorView& across = lightning ? x.layer.ring.keys : x.layer.ring.values;
  const int64_t rows = state.shape[2];
  const int64_t dim = state.shape[3];
  Records records;
  std::array<float, kMaxDim> hi;
  std::array<float, kMaxDim> lo{};
  double slope = 0.0;
  if (lightning) {
    slope = load_f32(x.layer.slopes.data, x.layer.slopes.dtype, offset_of(x.layer.slopes, x.head));
    // One decay over all pending tokens, its f32 rounding error kept.
    const double decay = std::exp(-slope * static_cast<double>(x.pending));
    hi.fill(static_cast<float>(decay));
    lo.fill(static_cast<float>(decay - static_cast<double>(hi[0])));
  } else {
    const TensorView& gamma = x.layer.ring.gamma;
    load_run(gamma.data, gamma.dtype, offset_of(gamma, x.slot, x.head), gamma.stride[2], dim,
             hi.data());
  }
  std::array<float, kMaxRecords> decay;
  for (int64_t r = 0; r < x.pending; ++r) {
    load_run(along.data, along.dtype, offset_of(along, x.slot, x.head, r), along.stride[3], dim,
             records.row.data() + r * dim);
    decay[static_cast<size_t>(r)] =
        static_cast<float>(std::exp(-slope * static_cast<double>(x.pending - 1 - r)));
  }
  bool fits = true;
  std::array<float, kMaxDim> s;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t r = 0; r < x.pending; ++r) {
      const auto at = static_cast<size_t>(r);
      records.factor[at] =
          decay[at] * load_f32(across.data, across.dtype, offset_of(across, x.slot, x.head, r, i));
    }
    const int64_t at = offset_of(state, x.slot, x.head, i);
    load_run(state.data, state.dtype, at, state.stride[3], dim, s.data());
    fold_row(records, x.pending, dim, hi.data(), lo.data(), s.data());
    fits &= store_run(state.data, state.dtype, at, state.stride[3], dim, s.data());
  }
  return fits;
}

}  // namespace

Status replay_fold_cpu(const ReplayFoldParams& params, const ExecContext& context) {
  fold_slots(params, context, fold_head);
  return {};
}

}  // namespace linestate
