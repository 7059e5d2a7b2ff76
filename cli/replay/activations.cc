#include "cli/replay/activations.h"

#include <algorithm>

#include "cli/replay/half_floats.h"
#include "testing/fill.h"

namespace linestate::cli {
namespace {

using testing::hash64;

// Channels generated at a time: fits the stack, long enough for vector code.
constexpr int64_t kBlock = 256;

void normal_block(uint32_t token_seed, const uint32_t* id, const float* mean, const float* scale,
                  int64_t n, float* out) {
  for (int64_t c = 0; c < n; ++c) {
    out[c] = mean[c] + scale[c] * near_normal(hash32(token_seed ^ (id[c] * 0x9e3779b9u)));
  }
}

void store_block(const float* values, int64_t n, DType dtype, void* out, int64_t offset) {
  if (dtype == DType::kF32) {
    std::copy_n(values, n, static_cast<float*>(out) + offset);
    return;
  }
  auto* halves = static_cast<uint16_t*>(out) + offset;
  if (dtype == DType::kBF16) {
    for (int64_t c = 0; c < n; ++c) halves[c] = round_to_bf16(values[c]);
  } else {
    for (int64_t c = 0; c < n; ++c) halves[c] = round_to_f16(values[c]);
  }
}

}  // namespace

void ChannelPlan::add(int64_t global_channel, float channel_mean, float channel_scale) {
  id.push_back(static_cast<uint32_t>(global_channel));
  mean.push_back(channel_mean);
  scale.push_back(channel_scale);
}

float fixed_normal(uint64_t stream, int64_t global_channel) {
  const uint64_t word = hash64(stream + hash64(static_cast<uint64_t>(global_channel)));
  return near_normal(static_cast<uint32_t>(word >> 32));
}

uint64_t stream_of(uint64_t seed, int64_t layer, int64_t tensor) {
  return hash64(hash64(hash64(seed) + static_cast<uint64_t>(layer)) +
                static_cast<uint64_t>(tensor));
}

void fill_tokens(const ChannelPlan& plan, std::span<const TokenAt> tokens, const TensorView& out,
                 int threads) {
  const int64_t channels = plan.channels();
  const auto count = static_cast<int64_t>(tokens.size());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > 16)
  for (int64_t t = 0; t < count; ++t) {
    const TokenAt& token = tokens[static_cast<size_t>(t)];
    const uint64_t mixed =
        hash64(plan.stream ^ hash64(token.id + hash64(static_cast<uint64_t>(token.position))));
    float values[kBlock];
    for (int64_t begin = 0; begin < channels; begin += kBlock) {
      const int64_t n = std::min(kBlock, channels - begin);
      normal_block(static_cast<uint32_t>(mixed >> 32), plan.id.data() + begin,
                   plan.mean.data() + begin, plan.scale.data() + begin, n, values);
      store_block(values, n, out.dtype, out.data, t * channels + begin);
    }
  }
}

}  // namespace linestate::cli
