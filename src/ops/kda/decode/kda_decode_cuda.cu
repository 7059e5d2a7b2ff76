// Decode on a GPU: one pass over the state. Where the state lies as engines lay it, in tiles
// (kda_decode_tile.cuh). Any other layout or size: a warp at a time through kStateRows rows in each
// group of lanes, gate, norms and beta made again by every warp. The bits are the same.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/decode/kda_decode_tile.cuh"
#include "ops/kda/kda_lane_step.cuh"

namespace linestate {
namespace {

constexpr int kWarps = 4;

/// What one warp does: rows [first, first + passes * kWarpRows) of S of one head.
struct Split {
  int64_t chunks;  // warps a head
  int32_t passes;  // of kWarpRows rows each
};

template <typename Map>
__device__ void decode_rows(const KdaDevice& p, int64_t n, int64_t j, const DeviceRow& row,
                            const KdaGateHead& head, int64_t first, KdaLaneToken<Map>& token,
                            bool& have_token) {
  KdaLaneRows<Map> rows;
  load_kda_rows<Map>(p, row.slot, j, first, row.fresh, rows);
  if (!have_token) load_kda_token<Map>(p, head, n, j, token);
  have_token = true;
  const float v = load_kda_value<Map>(p, n, j, first);
  const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
  store_kda_out<Map>(p, n, j, first, result.o);
  keep_kda_rows<Map>(p, n, row.slot, j, first, rows);
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    if (snapshot_after(p.snapshots, p.rows, n, row, 1, m) != 1) continue;
    store_kda_rows<Map>(p, p.snapshots.slot.at(m), j, first, rows);
  }
}

template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_decode_kernel(const __grid_constant__ KdaDevice p, Split split, int64_t units) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; unit < units;
       unit += step) {
    const int64_t chunk = unit % split.chunks;
    const int64_t j = unit / split.chunks % p.HV;
    const int64_t n = unit / split.chunks / p.HV;
    const bool reports = chunk == 0 && j == 0;
    const DeviceRow row = read_decode_row(p.rows, n, reports ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
    const KdaGateHead head = kda_gate_head(p, j);
    KdaLaneToken<Map> token;
    bool have_token = false;
    for (int32_t pass = 0; pass < split.passes; ++pass) {
      const int64_t first = (chunk * split.passes + pass) * Map::kWarpRows;
      if (first >= p.V) break;
      if (row.valid > 0) {
        decode_rows<Map>(p, n, j, row, head, first, token, have_token);
      } else {
        clear_kda_out<Map>(p, n, j, first);
        if (row.live && row.fresh) clear_kda_rows<Map>(p, row.slot, j, first);
      }
    }
  }
}

Status run_kda_decode_rows(const KdaDevice& p, int64_t N, const ExecContext& context) {
  const int64_t heads = N * p.HV;
  return with_kda_map(p.K, [&]<typename Map>() {
    // Few heads: every warp takes one pass, so that the whole GPU works. Many: the token's own work
    // is shared by several passes. Rows do not see each other, so no bit depends on it.
    const int64_t pieces = ceil_div(p.V, Map::kWarpRows);
    const int64_t most = heads * pieces > 4096 ? 4 : heads * pieces > 2048 ? 2 : 1;
    const int64_t passes = min_i64(pieces, most);
    const Split split{ceil_div(pieces, passes), static_cast<int32_t>(passes)};
    const int64_t units = heads * split.chunks;
    return launch("kda_decode", kda_decode_kernel<Map>, grid_of(ceil_div(units, kWarps)),
                  32 * kWarps, context, p, split, units);
  });
}

}  // namespace

Status kda_decode_cuda(const KdaParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const KdaDevice p = kda_device(params, context);
  const int64_t N = params.q.shape[0];
  LINESTATE_RETURN_IF_ERROR(kda_decode_tiles_fit(params) ? run_kda_decode_tiles(p, N, context)
                                                         : run_kda_decode_rows(p, N, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
