// Activations without a model: every value is a function of (seed, token id, position, layer,
// tensor, global channel) alone. So equal prefixes have equal activations, and what a
// tensor-parallel rank sees is a slice of what one rank would see.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "linestate/tensor.h"

namespace linestate::cli {

struct TokenAt {
  uint64_t id = 0;       // token_id()
  int64_t position = 0;  // in its sequence
};

/// The channels of one token tensor: value = mean[c] + scale[c] * z, where z is close to a standard
/// normal (bounded by 3.5) and comes from the token and id[c].
struct ChannelPlan {
  uint64_t stream = 0;       // seed, layer and tensor
  std::vector<uint32_t> id;  // global channel
  std::vector<float> mean;
  std::vector<float> scale;

  int64_t channels() const { return static_cast<int64_t>(id.size()); }
  void add(int64_t global_channel, float channel_mean, float channel_scale);
};

/// Standard normal up to its tails: the sum of the four bytes of a hash. Bounded by 3.5.
inline float near_normal(uint32_t hash) {
  const uint32_t sum = (hash & 255u) + ((hash >> 8) & 255u) + ((hash >> 16) & 255u) + (hash >> 24);
  constexpr float kMean = 510.0f;
  constexpr float kInverseDeviation = 0.0067658f;  // 1 / sqrt(4 * (256^2 - 1) / 12)
  return (static_cast<float>(sum) - kMean) * kInverseDeviation;
}

/// Mixes one 32-bit word (the finaliser of MurmurHash3).
inline uint32_t hash32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// Fixed numbers of a layer (weights, common vectors): near-normal in (stream, channel).
float fixed_normal(uint64_t stream, int64_t global_channel);
/// Stream for (seed, layer, tensor); `tensor` is any small number, different for each use.
uint64_t stream_of(uint64_t seed, int64_t layer, int64_t tensor);

/// Rows of `out`, one per token, rounded to nearest even.
/// REQUIRES: out is a contiguous [tokens, channels] of f32, bf16 or f16.
void fill_tokens(const ChannelPlan& plan, std::span<const TokenAt> tokens, const TensorView& out,
                 int threads);

}  // namespace linestate::cli
