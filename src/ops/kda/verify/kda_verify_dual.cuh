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
#include "ops/kda/kda_panel_token.cuh"
#include "ops/kda/kda_record_device.cuh"

namespace linestate {

struct KdaVerifyDevice {
  KdaDevice kda;
  KdaRecordDevice record;
  IndexView parent;
  FastDivider heads;  // value heads of a key head

  __device__ int key_head(int j) const {
    uint32_t rest;
    return static_cast<int>(heads.divide(static_cast<uint32_t>(j), rest));
  }
};

/// Nodes of one row for one value head, in shared memory.
template <typename Map>
struct DualNodes {
  static constexpr int kChannels = Map::kChannels;
  static constexpr int kMost = kChannels > 128 ? 8 : 16;
  static constexpr int kOfWarp = kMost / kPanelWarps;  // nodes a warp prepares

  union {
    float alpha[kMost][kChannels];
    float sums[kMost][kPanelThreads];  // products with S0 of each thread, once alpha is used up
  };
  float k[kMost][kChannels];        // k^, then times Gamma
  float q[kMost][kChannels];        // scale q^, then times Gamma
  float v[kMost][kPanelBlockRows];  // of the block's rows; u once it is known
  float pair[2][kMost][kMost];      // [][i][j]: kappa_ij . k^_i and kappa_ij . q_i
  float beta[kMost];
  uint32_t path[kMost];  // nodes from the root to i, itself included; 0 = inert
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

/// Raw k as it came.
template <typename Map>
__device__ void keep_key(const KdaVerifyDevice& p, int64_t t, int64_t h,
                         const uint4 (&bits)[Map::kQuads]) {
  const DeviceView<3>& to = p.record.k;
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    if (c >= p.kda.K) continue;
    const int64_t at = to.offset(t, h, c);
    if (to.dtype == DType::kF32) {
      auto* data = static_cast<uint32_t*>(to.data) + at;
      if (to.packed) {
        *reinterpret_cast<uint4*>(data) = bits[i];
      } else {
        data[0] = bits[i].x;
        data[1] = bits[i].y;
        data[2] = bits[i].z;
        data[3] = bits[i].w;
      }
    } else {
      auto* data = static_cast<uint16_t*>(to.data) + at;
      if (to.packed) {
        *reinterpret_cast<uint2*>(data) = make_uint2(bits[i].x, bits[i].y);
      } else {
        data[0] = static_cast<uint16_t>(bits[i].x);
        data[1] = static_cast<uint16_t>(bits[i].x >> 16);
        data[2] = static_cast<uint16_t>(bits[i].y);
        data[3] = static_cast<uint16_t>(bits[i].y >> 16);
      }
    }
  }
}

/// Alpha, raw k and its norm, once a head; k by the first value head of its key head.
template <typename Map>
__device__ void keep_node(const KdaVerifyDevice& p, const KdaTask& task, int64_t t,
                          const KdaPanelBits<Map>& bits, const KdaLaneToken<Map>& token) {
  if (Map::group() != 0) return;
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    if (c >= p.kda.K) continue;
    store_quad(p.record.alpha, p.record.alpha.offset(t, task.j, c), token.alpha + 4 * i);
  }
  const int h = p.key_head(task.j);
  if (h * static_cast<int>(p.heads.divisor) != task.j) return;
  keep_key<Map>(p, t, h, bits.k);
  if (lane_id() == 0) store_at(p.record.k_inverse_norm, token.k_inverse_norm, t, h);
}

/// Node i, packed token t, from what has been read of it; keeps its record.
template <typename Map>
__device__ void finish_node(const KdaVerifyDevice& p, const KdaTask& task, int64_t t, int i,
                            const KdaPanelBits<Map>& bits, DualNodes<Map>& nodes) {
  KdaLaneToken<Map> token;
  finish_token_bits<Map>(p.kda, bits, token);
  put_lanes<Map>(token.k, nodes.k[i]);
  put_lanes<Map>(token.q, nodes.q[i]);
  put_lanes<Map>(token.alpha, nodes.alpha[i]);
#pragma unroll
  for (int e = 0; e < KdaPanelBits<Map>::kValues; ++e) {
    nodes.v[i][lane_id() + 32 * e] = widen_element(bits.v[e], p.kda.v.dtype);
  }
  if (lane_id() == 0) {
    nodes.beta[i] = token.beta;
    nodes.pair[1][i][i] = token.kq;
  }
  if (task.leads()) keep_node<Map>(p, task, t, bits, token);
}

/// All nodes of the row, a warp each. The tree is filled meanwhile.
template <typename Map>
__device__ void prepare_nodes(const KdaVerifyDevice& p, const DeviceRow& row, const KdaTask& task,
                              DeviceDraftTree& tree, DualNodes<Map>& nodes) {
  int i = static_cast<int>(threadIdx.x / 32);
  KdaPanelBits<Map> bits;
  __syncthreads();  // the nodes of the task before have been used
  int64_t t = row.token_begin + i;
  const int h = p.key_head(task.j);
  if (i < row.valid) read_token_bits<Map>(p.kda, task, t, h, nodes.k[i], bits);
  fill_draft_tree(p.parent, row, task.n, task.status(p.kda.status), tree);
  for (; i < row.valid; i += kPanelWarps, t += kPanelWarps) {
    const uint32_t path = path_bits(tree, i);
    if (lane_id() == 0) nodes.path[i] = path;
    if (i >= kPanelWarps) read_token_bits<Map>(p.kda, task, t, h, nodes.k[i], bits);
    if (path != 0) finish_node<Map>(p, task, t, i, bits, nodes);
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
    const int i = warp + a * kPanelWarps;
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
    const int i = warp + a * kPanelWarps;
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

/// Where a lane puts its row's o (upper half) or u of the row's nodes, one after the other.
struct NodeResult {
  char* data;
  int64_t pitch;  // bytes from node to node
  DType dtype;

  __device__ void put(float x) const { store_f32(data, dtype, 0, x); }
};

template <typename Panel>
__device__ NodeResult node_result(const KdaVerifyDevice& p, int64_t t, int64_t j, int at) {
  const DeviceView<3>& view = Panel::upper() ? p.kda.out : p.record.u;
  const int bytes = view.dtype == DType::kF32 ? 4 : 2;
  return {static_cast<char*>(view.data) + view.offset(t, j, at) * bytes, view.stride[0] * bytes,
          view.dtype};
}

/// Eight nodes from `begin` on: u and o of the row that the lane speaks for, which is `lane_row`
/// counted from the block's first.
template <typename Map, typename Panel>
__device__ void solve_nodes(const DeviceRow& row, int begin, int lane_row, bool stores,
                            NodeResult& result, DualNodes<Map>& nodes) {
  const float(*pair)[DualNodes<Map>::kMost] = nodes.pair[Panel::upper() ? 1 : 0];
  const int count = static_cast<int>(row.valid);
  float u[8] = {};
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = begin + e;
    if (i >= count) continue;
    const uint32_t path = nodes.path[i];
    const float v = nodes.v[i][lane_row];
    float x = 0.0f;
    if (path != 0) {
      x = nodes.sums[i][threadIdx.x];
      for (int j = 0; j < begin; ++j) {
        if ((path >> j & 1u) != 0) x = fmaf(pair[i][j], nodes.v[j][lane_row], x);
      }
#pragma unroll
      for (int f = 0; f < e; ++f) {
        if ((path >> (begin + f) & 1u) != 0) x = fmaf(pair[i][begin + f], u[f], x);
      }
      u[e] = Panel::from_lower(nodes.beta[i] * (v - x));
      x = Panel::upper() ? fmaf(nodes.pair[1][i][i], u[e], x) : u[e];
    }
    if (stores && (path != 0 || Panel::upper())) result.put(x);
    result.data += result.pitch;
  }
  if (begin + 8 >= count) return;
  __syncwarp();  // v has been read
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (Panel::speaks() && !Panel::upper()) nodes.v[begin + e][lane_row] = u[e];
  }
  __syncwarp();  // for the next eight
}

/// The warp's rows of S, from `first` on, through all nodes.
template <typename Map, typename Panel>
__device__ void answer_nodes(const KdaVerifyDevice& p, const DeviceRow& row, const KdaTask& task,
                             int first, const KdaPanelRows<Panel>& rows, DualNodes<Map>& nodes) {
  const int lane_row = first - task.begin + Panel::row();
  const int at = task.begin + lane_row;
  const bool stores = Panel::speaks() && at < task.end;
#pragma unroll 1
  for (int i = 0; i < row.valid; ++i) {
    if (nodes.path[i] == 0) continue;
    nodes.sums[i][threadIdx.x] = kda_panel_products<Panel>(rows, nodes.k[i], nodes.q[i]);
  }
  NodeResult result = node_result<Panel>(p, row.token_begin, task.j, at);
#pragma unroll 1
  for (int begin = 0; begin < row.valid; begin += 8) {
    solve_nodes<Map, Panel>(row, begin, lane_row, stores, result, nodes);
  }
}

}  // namespace linestate
