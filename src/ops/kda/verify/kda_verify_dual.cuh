// Verify of rows with few nodes in dual form: one pass over the state for all nodes together, and
// small triangular sums between the nodes.
//   Gamma_i = product of alpha from the root to i      kappa_ij = k^_j decayed from j to i
//   u_i = beta_i (v_i - S0 (Gamma_i k^_i) - sum_j (kappa_ij . k^_i) u_j)       j above i
//   o_i = S0 (Gamma_i q_i) + sum_j (kappa_ij . q_i) u_j + (k^_i . q_i) u_i     q_i = scale q^_i
// Every decay is a product of alphas from the top down, so it is at most 1 whatever the gates are,
// and a node's bits do not depend on what else hangs in its tree.
#pragma once

#include <cstdint>

#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/kda/kda_record_device.cuh"
#include "ops/kda/kda_tile_tasks.cuh"

namespace linestate {

struct KdaVerifyDevice {
  KdaDevice kda;
  KdaRecordDevice record;
  IndexView parent;
};

/// Nodes of one row for one value head, in shared memory.
template <typename Map>
struct DualNodes {
  static constexpr int kChannels = Map::kChannels;
  static constexpr int kMost = kChannels > 128 ? 8 : 16;
  static constexpr int kOfWarp = kMost / kTileWarps;  // nodes a warp prepares

  union {
    float alpha[kMost][kChannels];
    float sums[kMost][kTileThreads];  // products with S0 of each thread, once alpha is used up
  };
  float k[kMost][kChannels];     // k^, then times Gamma
  float q[kMost][kChannels];     // scale q^, then times Gamma
  float v[kMost][kTileBlockRows];   // of the block's rows; u once it is known
  float pair[2][kMost][kMost];   // [][i][j]: kappa_ij . k^_i and kappa_ij . q_i
  float beta[kMost];
  uint32_t path[kMost];          // nodes from the root to i, itself included; 0 = inert
};

template <typename Map>
__device__ void scale_by(const float* factor, float (&x)[Map::kElems]) {
  float f[Map::kElems];
  get_lanes<Map>(factor, f);
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) x[i] *= f[i];
}

/// Nodes from the root to i as bits; 0 for an inert one.
__device__ inline uint32_t path_bits(const DeviceDraftTree& tree, int i) {
  if (tree.inert(i)) return 0;
  uint32_t bits = 0;
  for (int at = i; at >= 0; at = tree.parent[at]) bits |= 1u << at;
  return bits;
}

/// Gate, norms, beta and values of the nodes, a warp each; keeps alpha, k and its norm.
template <typename Map>
__device__ void prepare_nodes(const KdaVerifyDevice& p, const DeviceRow& row,
                              const KdaTask& task, const DeviceDraftTree& tree,
                              DualNodes<Map>& nodes) {
  constexpr int kValues = kTileBlockRows / 32;
  const KdaGateHead head = kda_gate_head(p.kda, task.j);
  for (int i = static_cast<int>(threadIdx.x / 32); i < row.valid; i += kTileWarps) {
    const uint32_t bits = path_bits(tree, i);
    if (lane_id() == 0) nodes.path[i] = bits;
    if (bits == 0) continue;
    const int64_t t = row.token_begin + i;
    float v[kValues];
#pragma unroll
    for (int e = 0; e < kValues; ++e) {
      const int at = task.begin + lane_id() + 32 * e;
      v[e] = at < task.end ? load_at(p.kda.v, t, task.j, at) : 0.0f;
    }
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, task.j, token);
    put_lanes<Map>(token.alpha, nodes.alpha[i]);
    put_lanes<Map>(token.k, nodes.k[i]);
    put_lanes<Map>(token.q, nodes.q[i]);
#pragma unroll
    for (int e = 0; e < kValues; ++e) nodes.v[i][lane_id() + 32 * e] = v[e];
    if (lane_id() == 0) {
      nodes.beta[i] = token.beta;
      nodes.pair[1][i][i] = token.kq;
    }
    if (task.leads()) store_kda_key<Map>(p.kda, p.record, t, task.j, token);
  }
}

/// kappa_ij from kappa of node `at`, or from k^_j when `at` is not the parent of i.
template <typename Map>
__device__ void decay_key(const DualNodes<Map>& nodes, const DeviceDraftTree& tree, int i, int j,
                          int& at, float (&kappa)[Map::kElems]) {
  uint32_t steps = 1u << i;
  if (tree.parent[i] != at) {
    get_lanes<Map>(nodes.k[j], kappa);
    steps = nodes.path[i] & ~((2u << j) - 1u);
  }
  for (; steps != 0; steps &= steps - 1) scale_by<Map>(nodes.alpha[__ffs(steps) - 1], kappa);
  at = i;
}

/// What node j says to the nodes below it, for the warp's j.
template <typename Map>
__device__ void pair_nodes(const DeviceRow& row, const DeviceDraftTree& tree, int j,
                           DualNodes<Map>& nodes) {
  const int count = static_cast<int>(row.valid);
  float kappa[Map::kElems];
  get_lanes<Map>(nodes.k[j], kappa);
  int at = j;  // kappa is decayed to this node
  for (int begin = (j + 1) / 8 * 8; begin < count; begin += 8) {
    float sums[16];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int i = begin + e;
      sums[e] = 0.0f;
      sums[8 + e] = 0.0f;
      if (i <= j || i >= count || (nodes.path[i] >> j & 1u) == 0) continue;
      decay_key<Map>(nodes, tree, i, j, at, kappa);
      float k[Map::kElems];
      float q[Map::kElems];
      get_lanes<Map>(nodes.k[i], k);
      get_lanes<Map>(nodes.q[i], q);
#pragma unroll
      for (int c = 0; c < Map::kElems; ++c) {
        sums[e] = fmaf(kappa[c], k[c], sums[e]);
        sums[8 + e] = fmaf(kappa[c], q[c], sums[8 + e]);
      }
    }
    constexpr int kShare = Map::kLanes / 16;
    const float sum = transpose_sum<16, Map::kLanes>(sums);
    const int number = Map::lane() / kShare;
    const int i = begin + number % 8;
    if (Map::group() == 0 && Map::lane() % kShare == 0 && i > j && i < count) {
      nodes.pair[number / 8][i][j] = sum;
    }
  }
}

/// The pairs, and k and q times Gamma. By the whole block; the nodes are ready when it returns.
template <typename Map>
__device__ void relate_nodes(const DeviceRow& row, const DeviceDraftTree& tree,
                             DualNodes<Map>& nodes) {
  using Nodes = DualNodes<Map>;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float gamma[Nodes::kOfWarp][Map::kElems];
#pragma unroll
  for (int a = 0; a < Nodes::kOfWarp; ++a) {
    const int i = warp + a * kTileWarps;
#pragma unroll
    for (int c = 0; c < Map::kElems; ++c) gamma[a][c] = 1.0f;
    if (i >= row.valid || nodes.path[i] == 0) continue;
    for (uint32_t steps = nodes.path[i]; steps != 0; steps &= steps - 1) {
      scale_by<Map>(nodes.alpha[__ffs(steps) - 1], gamma[a]);
    }
    pair_nodes<Map>(row, tree, i, nodes);
  }
  __syncthreads();  // k and q have been read as they were
#pragma unroll
  for (int a = 0; a < Nodes::kOfWarp; ++a) {
    const int i = warp + a * kTileWarps;
    if (i >= row.valid || nodes.path[i] == 0) continue;
    float k[Map::kElems];
    float q[Map::kElems];
    get_lanes<Map>(nodes.k[i], k);
    get_lanes<Map>(nodes.q[i], q);
#pragma unroll
    for (int c = 0; c < Map::kElems; ++c) {
      k[c] *= gamma[a][c];
      q[c] *= gamma[a][c];
    }
    __syncwarp();  // lanes of a second group read too
    put_lanes<Map>(k, nodes.k[i]);
    put_lanes<Map>(q, nodes.q[i]);
  }
  __syncthreads();
}

/// Eight nodes from `begin` on: u and o of the row that the lane speaks for, which is `lane_row`
/// counted from the block's first.
template <typename Map, typename Tile>
__device__ void solve_nodes(const KdaVerifyDevice& p, const DeviceRow& row, const KdaTask& task,
                            int begin, int lane_row, DualNodes<Map>& nodes) {
  const float(*pair)[DualNodes<Map>::kMost] = nodes.pair[Tile::upper() ? 1 : 0];
  const int at = task.begin + lane_row;
  const bool stores = Tile::speaks() && at < task.end;
  float u[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = begin + e;
    u[e] = 0.0f;
    if (i >= row.valid) continue;
    const uint32_t path = nodes.path[i];
    const int64_t t = row.token_begin + i;
    float x = nodes.sums[i][threadIdx.x];
    for (int j = 0; j < begin; ++j) {
      if ((path >> j & 1u) != 0) x = fmaf(pair[i][j], nodes.v[j][lane_row], x);
    }
#pragma unroll
    for (int f = 0; f < e; ++f) {
      if ((path >> (begin + f) & 1u) != 0) x = fmaf(pair[i][begin + f], u[f], x);
    }
    if (path != 0) {
      u[e] = Tile::from_lower(nodes.beta[i] * (nodes.v[i][lane_row] - x));
      x = fmaf(nodes.pair[1][i][i], u[e], x);
      __syncwarp();  // v has been read
      if (stores && !Tile::upper()) {
        nodes.v[i][lane_row] = u[e];
        store_at(p.record.u, u[e], t, task.j, at);
      }
    } else {
      x = 0.0f;
    }
    if (stores && Tile::upper()) store_at(p.kda.out, x, t, task.j, at);
  }
  __syncwarp();  // u, for the next eight
}

/// The warp's rows of S through all nodes.
template <typename Map, typename Tile>
__device__ void answer_nodes(const KdaVerifyDevice& p, const DeviceRow& row,
                             const KdaTask& task, int first,
                             const KdaTileRows<Tile>& rows, DualNodes<Map>& nodes) {
  const int lane_row = first - task.begin + Tile::row();
#pragma unroll 1
  for (int i = 0; i < row.valid; ++i) {
    if (nodes.path[i] == 0) continue;
    nodes.sums[i][threadIdx.x] = kda_tile_products<Tile>(rows, nodes.k[i], nodes.q[i]);
  }
#pragma unroll 1
  for (int begin = 0; begin < row.valid; begin += 8) {
    solve_nodes<Map, Tile>(p, row, task, begin, lane_row, nodes);
  }
}

}  // namespace linestate
