#include <bit>
#include <cmath>

#include "base/message.h"
#include "linestate/ops/lightning.h"

namespace linestate {
namespace {

// i-th slope, i from 1, of n heads; n a power of two.
double geometric_slope(int64_t i, int64_t n) {
  return std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(n));
}

// Head `head`, from 0, of any number of heads.
double base_slope(int64_t head, int64_t num_heads) {
  const auto c = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  if (head < c) return geometric_slope(head + 1, c);
  return geometric_slope(2 * (head - c) + 1, 2 * c);
}

double layer_factor(int64_t layer, int64_t num_layers, SlopeRule rule) {
  constexpr double kEps = 1e-5;
  if (num_layers <= 1) return 1.0 + kEps;
  const auto l = static_cast<double>(layer);
  const auto last = static_cast<double>(num_layers - 1);
  switch (rule) {
    case SlopeRule::kLayerOverLast:
      return 1.0 - l / last + kEps;
    case SlopeRule::kLayerOverLastPlusEps:
      return 1.0 - l / (last + kEps) + kEps;
    case SlopeRule::kPreviousLayer:
      return 1.0 - std::fmax(l - 1.0, 0.0) / last + kEps;
  }
  return 1.0;
}

}  // namespace

Result<std::vector<float>> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers,
                                            const TpShard& shard, SlopeRule rule) try {
  const Result<HeadRange> heads = shard.heads(num_heads);
  if (!heads.ok()) return heads.status();
  if (num_layers < 1) return invalid_argument("num_layers: expected at least 1, got ", num_layers);
  if (layer < 0 || layer >= num_layers) {
    return invalid_argument("layer: expected 0 to ", num_layers - 1, ", got ", layer);
  }
  const auto factor = static_cast<float>(layer_factor(layer, num_layers, rule));
  std::vector<float> slopes;
  slopes.reserve(static_cast<size_t>(heads->size()));
  for (int64_t head = heads->begin; head < heads->end; ++head) {
    slopes.push_back(static_cast<float>(base_slope(head, num_heads)) * factor);
  }
  return slopes;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::string_view lightning_variant_name(LightningVariant variant) {
  return variant == LightningVariant::kSegLa ? "seg_la" : "minimax";
}

Result<LightningVariant> parse_lightning_variant(std::string_view name) try {
  for (LightningVariant variant : {LightningVariant::kSegLa, LightningVariant::kMinimax}) {
    if (name == lightning_variant_name(variant)) return variant;
  }
  return invalid_argument("lightning variant: expected one of seg_la, minimax, got ", name);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

float lightning_scale(LightningVariant variant, int64_t head_dim) {
  if (variant == LightningVariant::kMinimax) return 1.0f;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace linestate
