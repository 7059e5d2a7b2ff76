#include "ops/kda/prefill/kda_prefill_block.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/prefill/kda_prefill_block.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_tile_inl.h"
#include "ops/kda/prefill/kda_prefill_factors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// G neighbouring panels of S^T and what one block makes of them.
template <int G>
struct Panels {
  static constexpr int64_t kWidth = G * kKdaPanel;
  float* S;                                          // [G][K][16]
  HWY_ALIGN float Y[2 * kKdaBlock * G * kKdaPanel];  // [2 n, width] S (P_i k^_i), S (P_i q^_i)
  HWY_ALIGN float u[kKdaBlock * G * kKdaPanel];      // [n, width]; v at first
};

// Rows r .. r + R of Y = PK S^T.
template <int R, int G>
HWY_INLINE void project_tile(const KdaBlock& b, int64_t r, Panels<G>& x) {
  Tile<R, G> y;
  for (int i = 0; i < R; ++i) {
    for (int g = 0; g < G; ++g) y.at[i][g] = group_of(0.0f);
  }
  tile_multiply(TileLeft{b.PK + r * b.K, b.K, 1}, TileRight{x.S, kKdaPanel, b.K * kKdaPanel}, b.K,
                y);
  for (int i = 0; i < R; ++i) {
    for (int g = 0; g < G; ++g) group_store(x.Y + (r + i) * x.kWidth + g * kGroup, y.at[i][g]);
  }
}

template <int G>
HWY_INLINE void project(const KdaBlock& b, int64_t n, Panels<G>& x) {
  for (int64_t r = 0; r < 2 * n;) {
    const int rows = next_tile_rows(2 * n - r);
    if (rows == 6) {
      project_tile<6>(b, r, x);
    } else if (rows == 4) {
      project_tile<4>(b, r, x);
    } else {
      project_tile<2>(b, r, x);
    }
    r += rows;
  }
}

// u and o by substitution; o takes the place of S (P_i q^_i).
template <int G>
HWY_INLINE void solve(const KdaBlock& b, int64_t n, Panels<G>& x) {
  constexpr int64_t kWidth = Panels<G>::kWidth;
  for (int64_t g = 0; g < kWidth; g += kGroup) {
    for (int64_t i = 0; i < n; ++i) {
      float* u_i = x.u + i * kWidth + g;
      float* o_i = x.Y + (n + i) * kWidth + g;
      const float* A = b.A + i * kKdaBlock;
      const float* Aqk = b.Aqk + i * kKdaBlock;
      Group u = group_of(b.beta[i]) * (group_load(u_i) - group_load(x.Y + i * kWidth + g));
      Group o = group_load(o_i);
      for (int64_t j = 0; j < i; ++j) {
        const Group u_j = group_load(x.u + j * kWidth + g);
        u = neg_mul_add(group_of(A[j]), u_j, u);
        o = mul_add(group_of(Aqk[j]), u_j, o);
      }
      group_store(u_i, u);
      group_store(o_i, mul_add(group_of(Aqk[i]), u, o));
    }
  }
}

// Rows r .. r + R of S^T <- diag(P) S^T + D^T u.
template <int R, int G>
HWY_INLINE void update_tile(const KdaBlock& b, int64_t n, int64_t r, Panels<G>& x) {
  Tile<R, G> s;
  for (int i = 0; i < R; ++i) {
    const Group P = group_of(b.P[r + i]);
    for (int g = 0; g < G; ++g) {
      s.at[i][g] = P * group_load(x.S + (g * b.K + r + i) * kKdaPanel);
    }
  }
  tile_multiply(TileLeft{b.D + r, 1, b.K}, TileRight{x.u, x.kWidth, kGroup}, n, s);
  for (int i = 0; i < R; ++i) {
    for (int g = 0; g < G; ++g) group_store(x.S + (g * b.K + r + i) * kKdaPanel, s.at[i][g]);
  }
}

template <int G>
HWY_INLINE void update(const KdaBlock& b, int64_t n, Panels<G>& x) {
  for (int64_t r = 0; r < b.K;) {
    const int rows = next_tile_rows(b.K - r);
    if (rows == 6) {
      update_tile<6>(b, n, r, x);
    } else if (rows == 4) {
      update_tile<4>(b, n, r, x);
    } else {
      update_tile<2>(b, n, r, x);
    }
    r += rows;
  }
}

// Columns v .. v + 16 G of V.
template <int G>
HWY_NOINLINE void run_panels(const KdaParams& p, const KdaSpan& span, int64_t v,
                             const KdaBlock& b) {
  const int64_t n = span.n;
  Panels<G> x;
  x.S = b.S + (v - b.v_begin) * b.K;
  for (int64_t i = 0; i < n; ++i) {
    simd_load_run(p.v.data, p.v.dtype, offset_of(p.v, span.t + i, span.j, v), p.v.stride[2],
                  x.kWidth, x.u + i * x.kWidth);
  }
  project(b, n, x);
  solve(b, n, x);
  for (int64_t i = 0; i < n; ++i) {
    simd_store_run(p.out.data, p.out.dtype, offset_of(p.out, span.t + i, span.j, v),
                   p.out.stride[2], x.kWidth, x.Y + (n + i) * x.kWidth);
  }
  update(b, n, x);
}

template <bool kWrite, typename Void>
HWY_INLINE void prefetch_row(const BasicTensorView<Void>& x, int64_t t, int64_t j) {
  const int64_t size = dtype_bytes(x.dtype);
  const char* row = static_cast<const char*>(x.data) + offset_of(x, t, j) * size;
  const int64_t bytes = x.stride[2] == 1 ? x.shape[2] * size : 0;
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, kWrite, 2);
}

// A head's rows lie far apart, so no prefetcher in the hardware finds the next one.
HWY_INLINE void prefetch_tokens(const KdaParams& p, int64_t begin, int64_t end, int64_t j) {
  const int64_t h = j / (p.v.shape[1] / p.q.shape[1]);
  for (int64_t t = begin; t < end; ++t) {
    prefetch_row<false>(p.q, t, h);
    prefetch_row<false>(p.k, t, h);
    prefetch_row<false>(p.gate, t, j);
    prefetch_row<false>(p.v, t, j);
    prefetch_row<true>(p.out, t, j);
  }
}

void run_block(const KdaParams& p, const KdaGateHead& head, const KdaSpan& span,
               const KdaBlock& b) {
  make_factors(p, head, span, b);
  const int64_t next = span.t + span.n;
  const int64_t ahead = min_i64(kKdaBlock, span.end - next);
  for (int64_t v = b.v_begin; v < b.v_end;) {
    const int groups = v + kTileGroups * kKdaPanel <= b.v_end ? kTileGroups : 1;
    const int64_t width = groups * kKdaPanel;
    const int64_t all = b.v_end - b.v_begin;
    const int64_t done = v - b.v_begin;
    // The next block's tokens, spread over the panels of this one.
    prefetch_tokens(p, next + ahead * done / all, next + ahead * (done + width) / all, span.j);
    if (groups == kTileGroups) {
      run_panels<kTileGroups>(p, span, v, b);
    } else {
      run_panels<1>(p, span, v, b);
    }
    v += width;
  }
}

void load_panels(const TensorView& state, int64_t slot, bool fresh, int64_t j, const KdaBlock& b) {
  if (fresh) return std::fill(b.S, b.S + b.state_size(), 0.0f), void();
  HWY_ALIGN float row[256];
  for (int64_t v = b.v_begin; v < b.v_end; ++v) {
    const int64_t at = v - b.v_begin;
    float* panel = b.S + at / kKdaPanel * kKdaPanel * b.K + at % kKdaPanel;
    simd_load_run(state.data, state.dtype, offset_of(state, slot, j, v), state.stride[3], b.K, row);
    for (int64_t k = 0; k < b.K; ++k) panel[k * kKdaPanel] = row[k];
  }
}

bool store_panels(const TensorView& state, int64_t slot, int64_t j, const KdaBlock& b) {
  bool fits = true;
  HWY_ALIGN float row[256];
  for (int64_t v = b.v_begin; v < b.v_end; ++v) {
    const int64_t at = v - b.v_begin;
    const float* panel = b.S + at / kKdaPanel * kKdaPanel * b.K + at % kKdaPanel;
    for (int64_t k = 0; k < b.K; ++k) row[k] = panel[k * kKdaPanel];
    fits &= simd_store_run(state.data, state.dtype, offset_of(state, slot, j, v), state.stride[3],
                           b.K, row);
  }
  return fits;
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(run_block);
HWY_EXPORT(load_panels);
HWY_EXPORT(store_panels);

void run_kda_block(const KdaParams& params, const KdaGateHead& head, const KdaSpan& span,
                   const KdaBlock& block) {
  HWY_DYNAMIC_DISPATCH(run_block)(params, head, span, block);
}

void load_kda_panels(const TensorView& state, int64_t slot, bool fresh, int64_t j,
                     const KdaBlock& block) {
  HWY_DYNAMIC_DISPATCH(load_panels)(state, slot, fresh, j, block);
}

bool store_kda_panels(const TensorView& state, int64_t slot, int64_t j, const KdaBlock& block) {
  return HWY_DYNAMIC_DISPATCH(store_panels)(state, slot, j, block);
}

}  // namespace linestate
#endif
