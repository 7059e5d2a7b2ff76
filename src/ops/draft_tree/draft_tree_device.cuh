// Draft trees as kernels walk them. A block works on one row and keeps its parents in shared
// memory. Follows include/linestate/ops/draft_tree.h; what breaks it is flagged, and inert.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"
#include "linestate/ops/draft_tree.h"

namespace linestate {

struct DeviceDraftTree {
  static constexpr int16_t kInert = -2;
  int16_t parent[kMaxVerifyNodes];  // -1 for the root

  __device__ bool inert(int64_t i) const { return parent[i] == kInert; }
  /// Tokens on the path of node i, itself included. REQUIRES: not inert.
  __device__ int depth(int i) const {
    int tokens = 0;
    for (; i >= 0; i = parent[i]) ++tokens;
    return tokens;
  }
  /// The node `up` steps above node i.
  __device__ int ancestor(int i, int up) const {
    for (; up > 0; --up) i = parent[i];
    return i;
  }
};

/// read_prefill_row for verify: a row of more than kMaxVerifyNodes tokens is flagged and skipped.
__device__ inline DeviceRow read_verify_row(const DeviceRows& rows, int64_t n,
                                            DeviceStatus* status) {
  DeviceRow row = read_prefill_row(rows, n, status);
  if (n < rows.count && row.tokens > kMaxVerifyNodes) {
    raise_flag(status, DeviceFlag::kBadOffsets, n);
    row.live = false;
    row.valid = 0;
  }
  return row;
}

/// Fills `tree` for the row's valid nodes, by the whole block; an undefined `parent` is a chain.
/// A node whose path does not end at the root is inert. `status` as for read_prefill_row.
__device__ inline void fill_draft_tree(const IndexView& parent, const DeviceRow& row, int64_t n,
                                       DeviceStatus* status, DeviceDraftTree& tree) {
  __syncthreads();  // the previous row's readers are done
  for (int64_t i = threadIdx.x; i < row.valid; i += blockDim.x) {
    const int64_t id = parent.defined() ? parent.at(row.token_begin + i) : i - 1;
    const bool sound = id >= -1 && id < i;
    if (!sound) raise_flag(status, DeviceFlag::kBadParent, n);
    const bool reached = sound && (i == 0 || id >= 0);
    tree.parent[i] = reached ? static_cast<int16_t>(id) : DeviceDraftTree::kInert;
  }
  __syncthreads();
  if (!parent.defined()) return;  // a chain has no inert nodes
  if (threadIdx.x == 0) {
    for (int64_t i = 1; i < row.valid; ++i) {
      if (!tree.inert(i) && tree.inert(tree.parent[i])) tree.parent[i] = DeviceDraftTree::kInert;
    }
  }
  __syncthreads();
}

/// The way from the root to an accepted node, in shared memory.
struct DevicePath {
  int16_t node[kMaxVerifyNodes];
  int length;  // 0 when the row commits nothing
};

/// The tensors that name the accepted nodes of a call.
struct DeviceAccepted {
  IndexView parent;
  IndexView accepted_node;
};

/// One thread walks up from the accepted node. A node outside the row, or one that does not lead to
/// the root, is flagged, and the row commits nothing.
__device__ inline void walk_accepted_path(const DeviceAccepted& nodes, const DeviceRow& row,
                                          int64_t n, DeviceStatus* status, DevicePath& path) {
  path.length = 0;
  if (!row.live) return;
  const int64_t accepted = nodes.accepted_node.at(n);
  if (accepted == -1) return;
  int length = 0;
  bool sound = accepted >= 0 && accepted < row.valid;
  for (int64_t at = accepted; sound && at >= 0;) {
    path.node[length++] = static_cast<int16_t>(at);
    const int64_t up = nodes.parent.defined() ? nodes.parent.at(row.token_begin + at) : at - 1;
    sound = up >= -1 && up < at && (up >= 0 || at == 0);
    at = up;
  }
  if (!sound) {
    raise_flag(status, DeviceFlag::kBadAcceptedNode, n);
    return;
  }
  for (int i = 0; i < length / 2; ++i) {
    const int16_t other = path.node[i];
    path.node[i] = path.node[length - 1 - i];
    path.node[length - 1 - i] = other;
  }
  path.length = length;
}

/// walk_accepted_path for a whole block.
__device__ inline void read_accepted_path(const DeviceAccepted& nodes, const DeviceRow& row,
                                          int64_t n, DeviceStatus* status, DevicePath& path) {
  __syncthreads();
  if (threadIdx.x == 0) walk_accepted_path(nodes, row, n, status, path);
  __syncthreads();
}

/// `taken` of a commit: [M] u8, no data when not wanted.
struct DeviceTaken {
  uint8_t* data = nullptr;
  int64_t stride = 0;
};

inline DeviceTaken device_taken(const TensorView& taken) {
  if (!taken.defined()) return {};
  return {static_cast<uint8_t*>(taken.data), taken.stride[0]};
}

/// Fills `taken` for the entries of row n, and raises kSnapshotNotTaken as for any call; by a warp.
__device__ inline void report_commit(const DeviceSnapshots& plan, const DeviceRows& rows, int64_t n,
                                     const DeviceRow& row, int64_t reach, const DeviceTaken& taken,
                                     DeviceStatus* status) {
  for (int64_t m = lane_id(); taken.data != nullptr && m < plan.count; m += 32) {
    if (plan.row.at(m) != n) continue;
    const bool done = snapshot_after(plan, rows, n, row, reach, m) != kNoSnapshot;
    taken.data[m * taken.stride] = done ? 1 : 0;
  }
  report_snapshots(plan, rows, n, row, reach, status);
}

}  // namespace linestate
