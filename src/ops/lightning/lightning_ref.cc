#include "ops/lightning/lightning_ref.h"

#include <cmath>

#include "base/device_status.h"
#include "ops/lightning/lightning_access.h"

namespace linestate {

LightningRefHead cut_lightning_ref_head(Scratch& scratch, int64_t dim) {
  LightningRefHead x;
  x.S = scratch.take<float>(dim * dim);
  x.q = scratch.take<float>(dim);
  x.k = scratch.take<float>(dim);
  x.v = scratch.take<float>(dim);
  x.o = scratch.take<float>(dim);
  x.sum = scratch.take<double>(dim);
  return x;
}

int64_t lightning_ref_scratch_bytes(int64_t dim) {
  Scratch counter;
  cut_lightning_ref_head(counter, dim);
  return counter.bytes();
}

double lightning_ref_lambda(const ConstTensorView& slopes, int64_t head) {
  const float slope = load_f32(slopes.data, slopes.dtype, offset_of(slopes, head));
  return std::exp(-static_cast<double>(slope));
}

void lightning_ref_update(const LightningRefHead& x, int64_t dim, double lambda) {
  for (int64_t i = 0; i < dim; ++i) {
    float* S = x.S + i * dim;
    for (int64_t j = 0; j < dim; ++j) S[j] = lightning_ref_entry(lambda, S[j], x.k[i], x.v[j]);
  }
}

void lightning_ref_output(const LightningRefHead& x, int64_t dim, double scale) {
  for (int64_t j = 0; j < dim; ++j) x.sum[j] = 0.0;
  for (int64_t i = 0; i < dim; ++i) {
    const double q = x.q[i];
    const float* S = x.S + i * dim;
    for (int64_t j = 0; j < dim; ++j) x.sum[j] += static_cast<double>(S[j]) * q;
  }
  for (int64_t j = 0; j < dim; ++j) x.o[j] = static_cast<float>(scale * x.sum[j]);
}

void lightning_ref_head(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t row_index, int64_t head, Scratch scratch) {
  zero_tokens(params.out, head, row.token_begin + row.valid, row.token_begin + row.tokens);
  if (row.valid == 0) {
    if (row.live && row.fresh) zero_state(params.state, row.slot, head);
    return;
  }
  const int64_t dim = params.q.shape[2];
  const LightningRefHead x = cut_lightning_ref_head(scratch, dim);
  const double lambda = lightning_ref_lambda(params.slopes, head);
  const RowSnapshots snapshots(params.snapshots, row_index, row, params.state.shape[0], row.valid);
  const auto store = [&](int64_t slot) {
    if (store_state(params.state, slot, head, x.S)) return;
    raise_overflow(context.status, static_cast<int32_t>(row_index), slot, params.layer);
  };
  load_state(params.state, row.slot, head, row.fresh, x.S);
  for (int64_t i = 0; i < row.valid; ++i) {
    const int64_t t = row.token_begin + i;
    load_token(params.q, t, head, x.q);
    load_token(params.k, t, head, x.k);
    load_token(params.v, t, head, x.v);
    lightning_ref_update(x, dim, lambda);
    lightning_ref_output(x, dim, static_cast<double>(params.scale));
    store_token(params.out, t, head, x.o);
    snapshots.at(i + 1, [&](int64_t, int64_t slot) { store(slot); });
  }
  store(row.slot);
}

}  // namespace linestate
