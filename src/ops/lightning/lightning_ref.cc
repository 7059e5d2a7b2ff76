#include "ops/lightning/lightning_ref.h"

#include <cmath>

#include "base/device_status.h"
#include "ops/lightning/lightning_access.h"

namespace linestate {
namespace {

struct RefScratch {
  float* S;     // [K, V]
  float* q;     // [K]
  float* k;     // [K]
  float* v;     // [V]
  float* o;     // [V]
  double* sum;  // [V]
};

RefScratch cut(Scratch& scratch, int64_t dim) {
  RefScratch cut;
  cut.S = scratch.take<float>(dim * dim);
  cut.q = scratch.take<float>(dim);
  cut.k = scratch.take<float>(dim);
  cut.v = scratch.take<float>(dim);
  cut.o = scratch.take<float>(dim);
  cut.sum = scratch.take<double>(dim);
  return cut;
}

void advance(const RefScratch& x, int64_t dim, double lambda, double scale) {
  for (int64_t j = 0; j < dim; ++j) x.sum[j] = 0.0;
  for (int64_t i = 0; i < dim; ++i) {
    const double k = x.k[i];
    const double q = x.q[i];
    float* S = x.S + i * dim;
    for (int64_t j = 0; j < dim; ++j) {
      S[j] =
          static_cast<float>(lambda * static_cast<double>(S[j]) + k * static_cast<double>(x.v[j]));
      x.sum[j] += static_cast<double>(S[j]) * q;
    }
  }
  for (int64_t j = 0; j < dim; ++j) x.o[j] = static_cast<float>(scale * x.sum[j]);
}

}  // namespace

int64_t lightning_ref_scratch_bytes(int64_t dim) {
  Scratch counter;
  cut(counter, dim);
  return counter.bytes();
}

void lightning_ref_head(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t row_index, int64_t head, Scratch scratch) {
  zero_tokens(params.out, head, row.token_begin + row.valid, row.token_begin + row.tokens);
  if (row.valid == 0) {
    if (row.live && row.fresh) zero_state(params.state, row.slot, head);
    return;
  }
  const int64_t dim = params.q.shape[2];
  const RefScratch x = cut(scratch, dim);

  const float slope =
      load_f32(params.slopes.data, params.slopes.dtype, offset_of(params.slopes, head));
  const double lambda = std::exp(-static_cast<double>(slope));
  load_state(params.state, row.slot, head, row.fresh, x.S);
  for (int64_t t = row.token_begin; t < row.token_begin + row.valid; ++t) {
    load_token(params.q, t, head, x.q);
    load_token(params.k, t, head, x.k);
    load_token(params.v, t, head, x.v);
    advance(x, dim, lambda, static_cast<double>(params.scale));
    store_token(params.out, t, head, x.o);
  }
  if (!store_state(params.state, row.slot, head, x.S)) {
    raise_overflow(context.status, static_cast<int32_t>(row_index), row.slot, params.layer);
  }
}

}  // namespace linestate
