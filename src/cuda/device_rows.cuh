// The row contract of include/linestate/rows.h as kernels see it. The host has not looked at these
// values: what breaks the contract raises its flag and makes the row padding.
#pragma once

#include <cstdint>

#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/warp.cuh"
#include "linestate/rows.h"

namespace linestate {

struct DeviceRows {
  IndexView slot;
  IndexView query_start_loc;
  IndexView start;
  IndexView num_valid;
  int64_t count = 0;      // N
  int64_t num_slots = 0;  // P
  int64_t capacity = 0;   // T
};

inline DeviceRows device_rows(const RowTensors& rows, int64_t num_slots, int64_t capacity) {
  return {index_view(rows.slot),
          index_view(rows.query_start_loc),
          index_view(rows.start),
          index_view(rows.num_valid),
          rows.slot.shape[0],
          num_slots,
          capacity};
}

struct DeviceRow {
  int64_t slot = -1;
  int64_t start = 0;
  int64_t token_begin = 0;
  int64_t tokens = 0;
  int64_t valid = 0;
  bool live = false;
  bool fresh = false;
};

/// Row n. `status` is null for all but the one thread that reports the row.
__device__ inline DeviceRow finish_row(const DeviceRows& rows, int64_t n, bool sound, DeviceRow row,
                                       DeviceStatus* status) {
  // All loads before anything depends on one of them.
  row.slot = rows.slot.at(n);
  row.start = rows.start.defined() ? rows.start.at(n) : 1;
  row.valid = rows.num_valid.defined() ? rows.num_valid.at(n) : row.tokens;
  row.live = row.slot >= 0 && row.slot < rows.num_slots;
  row.fresh = row.start == 0;
  if (row.slot >= rows.num_slots) raise_flag(status, DeviceFlag::kSlotOutOfRange, n);
  sound = sound && row.start >= 0 && row.valid >= 0 && row.valid <= row.tokens;
  if (!sound) {
    raise_flag(status, DeviceFlag::kBadOffsets, n);
    row.live = false;
  }
  if (!row.live) row.valid = 0;
  return row;
}

/// Row n of a call with query_start_loc; n = N is the tail behind the rows, as padding.
__device__ inline DeviceRow read_prefill_row(const DeviceRows& rows, int64_t n,
                                             DeviceStatus* status) {
  DeviceRow row;
  const int64_t begin = rows.query_start_loc.at(n);
  const int64_t end = n < rows.count ? rows.query_start_loc.at(n + 1) : rows.capacity;
  const bool sound = begin >= 0 && end >= begin && end <= rows.capacity &&
                     (n > 0 || begin == 0 || rows.count == 0);
  if (sound) {
    row.token_begin = begin;
    row.tokens = end - begin;
  }
  if (n == rows.count) return row;
  return finish_row(rows, n, sound, row, status);
}

/// The row that token t belongs to; N for the tail behind all rows. By a whole warp. Offsets that
/// break their contract give some row, which read_prefill_row then refuses.
__device__ inline int64_t row_of_token(const DeviceRows& rows, int64_t t) {
  int64_t low = 0;  // query_start_loc[low] <= t, as far as the offsets are in order
  int64_t high = rows.count + 1;
  while (high - low > 1) {
    const int64_t step = (high - low + 31) / 32;
    const int64_t at = low + lane_id() * step;
    const bool below = lane_id() == 0 || (at < high && rows.query_start_loc.at(at) <= t);
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(kAllLanes, below)));
    low += last * step;
    high = min(high, low + step);
  }
  return low;
}

/// Row n of a call with one token a row.
__device__ inline DeviceRow read_decode_row(const DeviceRows& rows, int64_t n,
                                            DeviceStatus* status) {
  DeviceRow row;
  row.token_begin = n;
  row.tokens = 1;
  return finish_row(rows, n, true, row, status);
}

struct DeviceSnapshots {
  IndexView row;
  IndexView position;
  IndexView slot;
  int64_t count = 0;  // M; 0 = no plan
};

inline DeviceSnapshots device_snapshots(const SnapshotPlan& plan) {
  if (!plan.defined()) return {};
  return {index_view(plan.row), index_view(plan.position), index_view(plan.slot),
          plan.row.shape[0]};
}

inline constexpr int64_t kNoSnapshot = INT64_MAX;

/// Tokens of the call after which entry m is taken, when `reach` tokens of row n count.
__device__ inline int64_t snapshot_after(const DeviceSnapshots& plan, const DeviceRows& rows,
                                         int64_t n, const DeviceRow& row, int64_t reach,
                                         int64_t m) {
  if (!row.live || plan.row.at(m) != n) return kNoSnapshot;
  const int64_t slot = plan.slot.at(m);
  if (slot < 0 || slot >= rows.num_slots) return kNoSnapshot;
  const int64_t tokens = plan.position.at(m) - row.start;
  return tokens > 0 && tokens <= reach ? tokens : kNoSnapshot;
}

/// The first wanted token count behind `done`, for a whole warp.
__device__ inline int64_t next_snapshot(const DeviceSnapshots& plan, const DeviceRows& rows,
                                        int64_t n, const DeviceRow& row, int64_t reach,
                                        int64_t done) {
  if (plan.count == 0) return kNoSnapshot;
  int64_t first = kNoSnapshot;
  for (int64_t m = lane_id(); m < plan.count; m += 32) {
    const int64_t tokens = snapshot_after(plan, rows, n, row, reach, m);
    if (tokens > done && tokens < first) first = tokens;
  }
  return min_lanes(first);
}

/// kSnapshotNotTaken for row n when a wanted entry is not reached; by one warp.
__device__ inline void report_snapshots(const DeviceSnapshots& plan, const DeviceRows& rows,
                                        int64_t n, const DeviceRow& row, int64_t reach,
                                        DeviceStatus* status) {
  if (!row.live) return;
  for (int64_t m = lane_id(); m < plan.count; m += 32) {
    if (plan.row.at(m) != n) continue;
    const int64_t slot = plan.slot.at(m);
    if (slot < 0 || slot >= rows.num_slots) continue;
    if (snapshot_after(plan, rows, n, row, reach, m) != kNoSnapshot) continue;
    raise_flag(status, DeviceFlag::kSnapshotNotTaken, n);
  }
}

}  // namespace linestate
