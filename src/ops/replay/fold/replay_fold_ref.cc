// KDA:        S0 <- S0 diag(Gamma) + sum_j u_j kappa_j^T       S0 [V, K]
// Lightning:  S0 <- lambda^c S0 + sum_j lambda^(c-1-j) k_j v_j^T   S0 [K, V]
// element by element in double, rounded once to f32 and once to the pool's dtype.
#include <cmath>

#include "ops/replay/fold/replay_fold_kernels.h"
#include "ops/replay/fold/replay_fold_walk.h"

namespace linestate {
namespace {

double element(const TensorView& tensor, int64_t offset) {
  return load_f32(tensor.data, tensor.dtype, offset);
}

double folded_kda(const FoldHead& x, int64_t v, int64_t k) {
  const ReplayRing& ring = x.layer.ring;
  double S = element(x.layer.state, offset_of(x.layer.state, x.slot, x.head, v, k)) *
             element(ring.gamma, offset_of(ring.gamma, x.slot, x.head, k));
  for (int64_t j = 0; j < x.pending; ++j) {
    S += element(ring.values, offset_of(ring.values, x.slot, x.head, j, v)) *
         element(ring.keys, offset_of(ring.keys, x.slot, x.head, j, k));
  }
  return S;
}

double folded_lightning(const FoldHead& x, int64_t k, int64_t v) {
  const ReplayRing& ring = x.layer.ring;
  const ConstTensorView& slopes = x.layer.slopes;
  const double slope = load_f32(slopes.data, slopes.dtype, offset_of(slopes, x.head));
  double S = element(x.layer.state, offset_of(x.layer.state, x.slot, x.head, k, v)) *
             std::exp(-slope * static_cast<double>(x.pending));
  for (int64_t j = 0; j < x.pending; ++j) {
    S += element(ring.keys, offset_of(ring.keys, x.slot, x.head, j, k)) *
         element(ring.values, offset_of(ring.values, x.slot, x.head, j, v)) *
         std::exp(-slope * static_cast<double>(x.pending - 1 - j));
  }
  return S;
}

bool fold_head(const FoldHead& x) {
  const TensorView& state = x.layer.state;
  bool fits = true;
  for (int64_t a = 0; a < state.shape[2]; ++a) {
    for (int64_t b = 0; b < state.shape[3]; ++b) {
      const auto S = static_cast<float>(x.layer.slopes.defined() ? folded_lightning(x, a, b)
                                                                 : folded_kda(x, a, b));
      fits &= store_run(state.data, state.dtype, offset_of(state, x.slot, x.head, a, b), 1, 1, &S);
    }
  }
  return fits;
}

}  // namespace

Status replay_fold_ref(const ReplayFoldParams& params, const ExecContext& context) {
  fold_slots(params, context, fold_head);
  return {};
}

}  // namespace linestate
