// Everything of eight tokens of a block of 16 that is a product of q^, k^ and decays.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90_levels.cuh"

namespace linestate::kda_sm90 {

/// Offsets of the arrays in FactorShared.
constexpr uint32_t kAtQ = 0;
constexpr uint32_t kAtK = 2 * kTile;
constexpr uint32_t kAtX = 4 * kTile;
constexpr uint32_t kAtKd = 6 * kTile;
constexpr uint32_t kAtQd = 8 * kTile;
constexpr uint32_t kAtKt = 10 * kTile;

/// One channel pair of eight tokens.
using Eight = float[8][2];

template <bool kHalf>
__device__ void take_eight(const uint8_t* from, uint32_t base, const float* inverse, Eight& x) {
  const auto* inverse4 = reinterpret_cast<const float4*>(inverse);
  const float4 low = inverse4[0];
  const float4 high = inverse4[1];
  const float scale[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(from + ((base ^ (i << 4)) + 128 * i));
    widen_pair<kHalf>(bits, x[i][0], x[i][1]);
    x[i][0] *= scale[i];
    x[i][1] *= scale[i];
  }
}

/// The decay of token i at level h of 1, 2, 4: up to the token in the later block of h tokens,
/// behind it in the earlier; from alpha of the eight.
template <int h>
__device__ float level_decay(const Eight& alpha, int i, int e) {
  float x = 1.0f;
  const int border = i / h * h;  // begin of the token's block of h
  if ((i & h) != 0) {
    x = alpha[border][e];
#pragma unroll
    for (int m = border + 1; m <= i; ++m) x *= alpha[m][e];
  } else {
    bool first = true;
#pragma unroll
    for (int m = border + h - 1; m > i; --m) {
      x = first ? alpha[m][e] : x * alpha[m][e];
      first = false;
    }
  }
  return x;
}

/// Operands of level h; queries of the earlier blocks are not needed.
template <int h>
__device__ void put_level(uint8_t* s, uint32_t base, uint32_t q_at, uint32_t k_at,
                          const Eight& alpha, const Eight& q, const Eight& k) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float low = level_decay<h>(alpha, i, 0);
    const float high = level_decay<h>(alpha, i, 1);
    uint8_t* at = s + ((base ^ (i << 4)) + 128 * i);
    word_at(at + k_at) = pack_f16(k[i][0] * low, k[i][1] * high);
    if ((i & h) != 0) word_at(at + q_at) = pack_f16(q[i][0] * low, q[i][1] * high);
  }
}

/// Up to the token, in the eight.
__device__ inline void products_before(const Eight& alpha, Eight& P) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    P[0][e] = alpha[0][e];
#pragma unroll
    for (int i = 1; i < 8; ++i) P[i][e] = P[i - 1][e] * alpha[i][e];
  }
}
/// Behind the token, in the eight.
__device__ inline void products_behind(const Eight& alpha, Eight& X) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    X[7][e] = 1.0f;
    X[6][e] = alpha[7][e];
#pragma unroll
    for (int i = 5; i >= 0; --i) X[i][e] = X[i + 1][e] * alpha[i + 1][e];
  }
}

/// Products of alpha over the other blocks of the chunk, a channel pair.
struct Around {
  float2 pre;    // blocks before
  float2 next;   // block r + 1
  float2 after;  // blocks r + 1 and r + 2

  __device__ Around(const FactorLane& at, const float (&total)[4][kWidth]) {
    const auto of = [&](int r) {
      return *reinterpret_cast<const float2*>(&total[r][at.channel()]);
    };
    pre = make_float2(1.0f, 1.0f);
    for (int r = 0; r < at.r; ++r) {
      const float2 x = of(r);
      pre.x *= x.x;
      pre.y *= x.y;
    }
    next = of(at.r == 0 ? 1 : 2);
    const float2 second = of(2);
    after = make_float2(next.x * second.x, next.y * second.y);
  }
};

/// Operands of products between blocks and of the state.
template <int kPart>
__device__ void put_far(uint8_t* s, const FactorLane& at, uint32_t base, Eight& alpha,
                        const float (&other)[2], const Eight& q, const Eight& k) {
  const Around x(at, reinterpret_cast<const FactorShared*>(s)->total);
  uint8_t* x48 = s + offsetof(FactorShared, X48) - 2048 - (kTile - 2048) * at.c;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Products are made anew: kept since the levels they would be 32 registers.
#pragma unroll
    for (int e = 0; e < 2; ++e) asm volatile("" : "+f"(alpha[i][e]));
  }
  Eight X;
  products_behind(alpha, X);
  float P[2] = {1.0f, 1.0f};
  if (kPart == 1) P[0] = other[0], P[1] = other[1];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t offset = (base ^ (i << 4)) + 128 * i;
    uint8_t* to = s + offset;
    float kp[2], qp[2], kx[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      P[e] *= alpha[i][e];
      kp[e] = k[i][e] * P[e];
      qp[e] = q[i][e] * P[e];
      kx[e] = k[i][e] * (kPart == 0 ? X[i][e] * other[e] : X[i][e]);
    }
    word_at(to + kAtKd) = pack_f16(kp[0] * x.pre.x, kp[1] * x.pre.y);
    word_at(to + kAtQd) = pack_f16(qp[0] * x.pre.x, qp[1] * x.pre.y);
    split_pair(kx[0], kx[1], word_at(to + kAtX), word_at(to + kAtKt));
    const uint32_t to_next = pack_f16(kx[0] * x.next.x, kx[1] * x.next.y);
    if (at.r > 0) {
      word_at(to + kAtK) = pack_f16(kp[0], kp[1]);
      word_at(to + kAtQ) = pack_f16(qp[0], qp[1]);
      if (at.r == 1) word_at(x48 + offset) = to_next;
    } else {
      word_at(to + kAtK) = to_next;
      word_at(to + kAtQ) = pack_f16(kx[0] * x.after.x, kx[1] * x.after.y);
    }
  }
}

/// Products of the eight tokens among themselves: the level of element (g, j) is that of g ^ j.
__device__ inline void keep_diagonal(const FactorLane& at, const float (&one)[4],
                                     const float (&two)[4], const float (&four)[4],
                                     float (&to)[4]) {
  const int g = at.lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int apart = g ^ (2 * (at.lane % 4) + i % 2);
    to[i] = apart >= 4 ? four[i] : apart >= 2 ? two[i] : one[i];
  }
}

/// Keys decayed to the end of the eight, for the products with the next eight.
__device__ inline void put_early(uint8_t* to, uint32_t base, const Eight& alpha, const Eight& k) {
  Eight X;
  products_behind(alpha, X);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    word_at(to + ((base ^ (i << 4)) + 128 * i)) = pack_f16(k[i][0] * X[i][0], k[i][1] * X[i][1]);
  }
}

/// Half kPart of the warp's block; `other` is the product of alpha over the other. `early` carries
/// keys of the first half, decayed to its end, to the second.
template <bool kHalf, int kPart>
__device__ void factor_half(uint8_t* s, const FactorLane& at, const float* inverse_norm,
                            Eight& alpha, const float (&other)[2], uint32_t (&early)[4][2],
                            InnerSums& sums) {
  const uint32_t rows = 1024 * kPart;
  const uint32_t base = at.base() + rows;
  const Fragments fragments(at);
  const uint32_t shared = shared_address(s) + rows;
  const float* inverse = inverse_norm + 16 * at.r + 8 * kPart;
  Eight q, k;
  take_eight<kHalf>(s + kAtQ, base, inverse, q);
  take_eight<kHalf>(s + kAtK, base, inverse + 64, k);
  __syncwarp();
  put_level<1>(s, base, kAtQd, kAtKd, alpha, q, k);
  put_level<2>(s, base, kAtQ, kAtK, alpha, q, k);
  put_level<4>(s, base, kAtX, kAtKt, alpha, q, k);
  if constexpr (kPart == 0) put_early(s + kAtQd + 1024, base, alpha, k);
  __syncwarp();
  {
    float one[4] = {}, two[4] = {}, four[4] = {};
    inner_products(fragments, shared + kAtQd, shared + kAtKd, one);
    inner_products(fragments, shared + kAtQ, shared + kAtK, two);
    inner_products(fragments, shared + kAtX, shared + kAtKt, four);
    keep_diagonal(at, one, two, four, sums.diagonal[kPart]);
  }
  if constexpr (kPart == 0) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t b[4];
      load_matrices((shared + kAtQd + 1024 + fragments.four) ^ (pair << 6), b);
      early[2 * pair][0] = b[0], early[2 * pair][1] = b[1];
      early[2 * pair + 1][0] = b[2], early[2 * pair + 1][1] = b[3];
    }
  } else {
    Eight P;
    products_before(alpha, P);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint8_t* to = s + ((base ^ (i << 4)) + 128 * i);
      word_at(to + kAtKd) = pack_f16(k[i][0] * P[i][0], k[i][1] * P[i][1]);
      word_at(to + kAtQd) = pack_f16(q[i][0] * P[i][0], q[i][1] * P[i][1]);
    }
    __syncwarp();
    const uint32_t from = fragments.q_or_k + shared + (fragments.keys ? kAtKd : kAtQd);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      uint32_t a[4];
      load_matrices(from ^ (kk << 5), a);
      mma_16816(sums.below, a[0], a[1], a[2], a[3], early[kk][0], early[kk][1]);
    }
  }
  __syncwarp();
  put_far<kPart>(s, at, base, alpha, other, q, k);
}

}  // namespace linestate::kda_sm90
