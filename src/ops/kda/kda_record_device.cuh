// The record of a KDA verify call in kernels.
#pragma once

#include <cstdint>

#include "linestate/ops/kda_verify.h"
#include "ops/kda/kda_lane_step.cuh"

namespace linestate {

struct KdaRecordDevice {
  DeviceView<3> u, k, alpha;
  DeviceView<2> k_inverse_norm;
};

inline KdaRecordDevice kda_record_device(const KdaRecord& record) {
  return {device_view<3>(record.u), device_view<3>(record.k), device_view<3>(record.alpha),
          device_view<2>(record.k_inverse_norm)};
}

/// u of packed token t for the row the lane speaks for; 0 behind V.
template <typename Map>
__device__ float load_kda_u(const KdaDevice& p, const KdaRecordDevice& record, int64_t t, int64_t j,
                            int64_t first) {
  const int64_t row = kda_group_row<Map>(first) + KdaLaneRole<Map>::row();
  return row < p.V ? load_at(record.u, t, j, row) : 0.0f;
}

template <typename Map>
__device__ void store_kda_u(const KdaDevice& p, const KdaRecordDevice& record, int64_t t, int64_t j,
                            int64_t first, float u) {
  using Role = KdaLaneRole<Map>;
  const int64_t row = kda_group_row<Map>(first) + Role::row();
  if (!Role::upper() && Role::speaks() && row < p.V) store_at(record.u, u, t, j, row);
}

/// alpha of token t by the first group of a warp; raw k and its inverse norm by the first value
/// head of each key head.
template <typename Map>
__device__ void store_kda_key(const KdaDevice& p, const KdaRecordDevice& record, int64_t t,
                              int64_t j, const KdaLaneToken<Map>& token) {
  if (Map::group() == 0) {
#pragma unroll
    for (int i = 0; i < Map::kQuads; ++i) {
      const int c = Map::channel(i);
      if (c < p.K) store_quad(record.alpha, record.alpha.offset(t, j, c), token.alpha + 4 * i);
    }
  }
  const int64_t heads = p.HV / p.H;
  if (j % heads != 0) return;
  const int64_t h = j / heads;
  for (int c = lane_id(); c < p.K; c += 32) {
    const int64_t from = p.k.offset(t, h, c);
    const int64_t to = record.k.offset(t, h, c);
    if (p.k.dtype == DType::kF32) {
      static_cast<uint32_t*>(record.k.data)[to] = static_cast<const uint32_t*>(p.k.data)[from];
    } else {
      static_cast<uint16_t*>(record.k.data)[to] = static_cast<const uint16_t*>(p.k.data)[from];
    }
  }
  if (lane_id() == 0) store_at(record.k_inverse_norm, token.k_inverse_norm, t, h);
}

}  // namespace linestate
