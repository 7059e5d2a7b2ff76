#include "cli/replay/profile.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace linestate::cli {
namespace {

using testing::HostTensor;

// Numbers of the tensors and weights of a layer, for stream_of.
enum Stream : int64_t {
  kStreamQ,
  kStreamK,
  kStreamV,
  kStreamGate,
  kStreamBeta,
  kStreamZ,
  kStreamCommonKey,
  kStreamConv,
  kStreamALog,
  kStreamDtBias,
  kStreamNorm,
};

constexpr std::array<std::pair<std::string_view, Profile>, 5> kProfiles{{
    {"plain", Profile::kPlain},
    {"correlated", Profile::kCorrelated},
    {"slow", Profile::kSlow},
    {"strong", Profile::kStrong},
    {"mixed", Profile::kMixed},
}};

struct Context {
  const LayerSpec& layer;
  Profile profile;
  uint64_t seed;
  HeadRange key_heads;
  HeadRange value_heads;

  uint64_t stream(Stream tensor) const { return stream_of(seed, layer.layer_id, tensor); }
};

Result<Context> make_context(const LayerSpec& layer, const TpShard& shard, Profile profile,
                             uint64_t seed) {
  Result<HeadRange> key_heads = shard.heads(layer.heads.num_heads, "num_heads");
  if (!key_heads.ok()) return key_heads.status();
  Result<HeadRange> value_heads = shard.heads(layer.heads.num_value_heads, "num_value_heads");
  if (!value_heads.ok()) return value_heads.status();
  return Context{layer, profile, seed, *key_heads, *value_heads};
}

// Ids of q, k and v stay apart in the packed tensor because each has its own base.
void add_plain(ChannelPlan& plan, HeadRange heads, int64_t dim, int64_t base, float scale) {
  for (int64_t c = heads.begin * dim; c < heads.end * dim; ++c) plan.add(base + c, 0.0f, scale);
}

void add_keys(ChannelPlan& plan, const Context& context, int64_t base) {
  const int64_t dim = context.layer.heads.k_dim;
  const uint64_t common = context.stream(kStreamCommonKey);
  for (int64_t head = context.key_heads.begin; head < context.key_heads.end; ++head) {
    const bool correlated = keys_correlated(context.profile, context.layer.layer_id, head);
    for (int64_t c = head * dim; c < (head + 1) * dim; ++c) {
      if (correlated) {
        plan.add(base + c, 1.5f * fixed_normal(common, c), 0.3f);
      } else {
        plan.add(base + c, 0.0f, 1.0f);
      }
    }
  }
}

// Noise of the gate input a. Bounded draws (3.5) keep slow heads above 0.999 and strong ones below
// the limit whatever the token.
float gate_noise(GateStyle style) { return style == GateStyle::kPlain ? 0.5f : 0.25f; }

bool strong_channel(int64_t channel) { return channel % 4 != 3; }

// The gate tensor is the log decay itself: never above 0.
void add_activated_gate(ChannelPlan& plan, GateStyle style, int64_t channel) {
  if (style == GateStyle::kSlow) {
    plan.add(channel, -4e-4f, 1e-4f);
  } else if (style == GateStyle::kStrong && strong_channel(channel)) {
    plan.add(channel, -80.0f, 5.0f);
  } else {
    plan.add(channel, -0.2f, 0.05f);
  }
}

ChannelPlan gate_plan(const Context& context) {
  ChannelPlan plan{context.stream(kStreamGate), {}, {}, {}};
  const int64_t dim = context.layer.heads.k_dim;
  for (int64_t head = context.value_heads.begin; head < context.value_heads.end; ++head) {
    const GateStyle style = gate_style(context.profile, context.layer.layer_id, head);
    for (int64_t c = head * dim; c < (head + 1) * dim; ++c) {
      if (context.layer.gate_form == KdaGate::kActivated) {
        add_activated_gate(plan, style, c);
      } else {
        plan.add(c, 0.0f, gate_noise(style));
      }
    }
  }
  return plan;
}

ChannelPlan beta_plan(const Context& context) {
  ChannelPlan plan{context.stream(kStreamBeta), {}, {}, {}};
  const int64_t group = context.layer.heads.num_value_heads / context.layer.heads.num_heads;
  const bool probability = context.layer.beta_form == KdaBeta::kProbability;
  for (int64_t head = context.value_heads.begin; head < context.value_heads.end; ++head) {
    const bool near_one = keys_correlated(context.profile, context.layer.layer_id, head / group);
    if (probability) {  // stays inside (0, 1)
      plan.add(head, near_one ? 0.97f : 0.5f, near_one ? 0.008f : 0.14f);
    } else {
      plan.add(head, near_one ? 4.0f : 0.0f, near_one ? 0.5f : 1.0f);
    }
  }
  return plan;
}

LayerActivations kda_activations(const Context& context) {
  const HeadShape& heads = context.layer.heads;
  LayerActivations out;
  ChannelPlan qkv{context.stream(kStreamQ), {}, {}, {}};
  const int64_t key_channels = heads.num_heads * heads.k_dim;
  add_plain(qkv, context.key_heads, heads.k_dim, 0, 1.0f);
  add_keys(qkv, context, key_channels);
  add_plain(qkv, context.value_heads, heads.v_dim, 2 * key_channels, 1.0f);
  ChannelPlan z{context.stream(kStreamZ), {}, {}, {}};
  add_plain(z, context.value_heads, heads.v_dim, 0, 1.0f);
  out.tensors.push_back(std::move(qkv));
  out.tensors.push_back(gate_plan(context));
  out.tensors.push_back(beta_plan(context));
  out.tensors.push_back(std::move(z));
  return out;
}

LayerActivations lightning_activations(const Context& context) {
  const HeadShape& heads = context.layer.heads;
  // A minimax model hands q over with D^-0.5 already in it.
  const bool minimax = context.layer.variant == LightningVariant::kMinimax;
  const float q_scale = minimax ? 1.0f / std::sqrt(static_cast<float>(heads.k_dim)) : 1.0f;
  ChannelPlan q{context.stream(kStreamQ), {}, {}, {}};
  ChannelPlan k{context.stream(kStreamK), {}, {}, {}};
  ChannelPlan v{context.stream(kStreamV), {}, {}, {}};
  ChannelPlan gate{context.stream(kStreamGate), {}, {}, {}};
  add_plain(q, context.key_heads, heads.k_dim, 0, q_scale);
  add_keys(k, context, 0);
  add_plain(v, context.value_heads, heads.v_dim, 0, 1.0f);
  add_plain(gate, context.value_heads, heads.v_dim, 0, 1.0f);
  LayerActivations out;
  for (ChannelPlan* plan : {&q, &k, &v, &gate}) out.tensors.push_back(std::move(*plan));
  return out;
}

struct GateWeights {
  double A_log = 0.0;
  double dt_bias = 0.0;
};

// Inverse of softplus, so that a = 0 gives that step size.
double softplus_inverse(double dt) { return dt + std::log(-std::expm1(-dt)); }

GateWeights softplus_weights(GateStyle style, bool strong, float noise) {
  if (style == GateStyle::kSlow) return {0.0, -8.5 + 0.2 * noise};
  if (style == GateStyle::kStrong && strong) return {std::log(16.0), 6.0 + 0.2 * noise};
  return {std::log(4.0), softplus_inverse(std::exp(-3.5 + noise))};
}

GateWeights bounded_weights(GateStyle style, bool strong, float noise, double bound) {
  // lower_bound * sigmoid(dt_bias) is what a = 0 gives.
  if (style == GateStyle::kSlow) return {0.0, std::log(1.5e-4 / bound) + 0.2 * noise};
  if (style == GateStyle::kStrong && strong) return {0.0, 6.0 + 0.2 * noise};
  return {0.0, -3.0 + noise};
}

void fill_gate_weights(const Context& context, LayerWeightTensors& out) {
  const int64_t dim = context.layer.heads.k_dim;
  const double bound = -static_cast<double>(context.layer.lower_bound);
  out.A_log = HostTensor(DType::kF32, {context.value_heads.size()});
  out.dt_bias = HostTensor(DType::kF32, {context.value_heads.size(), dim});
  for (int64_t head = context.value_heads.begin; head < context.value_heads.end; ++head) {
    const GateStyle style = gate_style(context.profile, context.layer.layer_id, head);
    const int64_t local = head - context.value_heads.begin;
    // One A_log per head: the channels of a strong head that are not strong differ by dt_bias.
    const double shift = 0.3 * fixed_normal(context.stream(kStreamALog), head);
    for (int64_t c = 0; c < dim; ++c) {
      const float noise = fixed_normal(context.stream(kStreamDtBias), head * dim + c);
      const GateWeights weights = context.layer.gate_form == KdaGate::kBounded
                                      ? bounded_weights(style, strong_channel(c), noise, bound)
                                      : softplus_weights(style, strong_channel(c), noise);
      if (c == 0) out.A_log.set(local, weights.A_log + (style == GateStyle::kPlain ? shift : 0.0));
      out.dt_bias.set(local * dim + c, weights.dt_bias);
    }
  }
}

void fill_conv_weight(const Context& context, LayerWeightTensors& out) {
  const HeadShape& heads = context.layer.heads;
  const int64_t width = context.layer.conv_width;
  const int64_t key_channels = heads.num_heads * heads.k_dim;
  std::vector<int64_t> channels;
  for (const int64_t base : {int64_t{0}, key_channels}) {
    for (int64_t c = context.key_heads.begin * heads.k_dim; c < context.key_heads.end * heads.k_dim;
         ++c) {
      channels.push_back(base + c);
    }
  }
  for (int64_t c = context.value_heads.begin * heads.v_dim;
       c < context.value_heads.end * heads.v_dim; ++c) {
    channels.push_back(2 * key_channels + c);
  }
  out.conv_weight = HostTensor(DType::kF32, {static_cast<int64_t>(channels.size()), width});
  int64_t at = 0;
  for (const int64_t channel : channels) {
    for (int64_t tap = 0; tap < width; ++tap) {
      const float noise = fixed_normal(context.stream(kStreamConv), channel * width + tap);
      out.conv_weight.set(at++, (tap == width - 1 ? 0.7 : 0.2) + 0.2 * noise);
    }
  }
}

// Near 1. Lightning's weight is per channel of the whole layer, KDA's is shared by the heads.
void fill_norm_weight(const Context& context, LayerWeightTensors& out) {
  const HeadShape& heads = context.layer.heads;
  const bool shared = context.layer.kind == LayerKind::kKda;
  const int64_t begin = shared ? 0 : context.value_heads.begin * heads.v_dim;
  const int64_t end = shared ? heads.v_dim : context.value_heads.end * heads.v_dim;
  out.norm_weight = HostTensor(DType::kF32, {end - begin});
  for (int64_t c = begin; c < end; ++c) {
    out.norm_weight.set(c - begin, 1.0 + 0.1 * fixed_normal(context.stream(kStreamNorm), c));
  }
}

}  // namespace

Result<Profile> parse_profile(std::string_view name) {
  std::string names;
  for (const auto& [known, profile] : kProfiles) {
    if (known == name) return profile;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  return Status(StatusCode::kInvalidArgument,
                "--profile: expected " + names + ", got " + std::string(name));
}

std::string_view profile_name(Profile profile) {
  return kProfiles[static_cast<size_t>(profile)].first;
}

bool keys_correlated(Profile profile, int64_t layer, int64_t key_head) {
  if (profile == Profile::kMixed) return (key_head + layer) % 2 == 1;
  return profile == Profile::kCorrelated;
}

GateStyle gate_style(Profile profile, int64_t layer, int64_t value_head) {
  constexpr std::array<GateStyle, 3> kTurn{GateStyle::kPlain, GateStyle::kSlow, GateStyle::kStrong};
  if (profile == Profile::kMixed) return kTurn[static_cast<size_t>((value_head + layer) % 3)];
  if (profile == Profile::kSlow) return GateStyle::kSlow;
  return profile == Profile::kStrong ? GateStyle::kStrong : GateStyle::kPlain;
}

Result<LayerActivations> make_activations(const LayerSpec& layer, const TpShard& shard,
                                          Profile profile, uint64_t seed) {
  Result<Context> context = make_context(layer, shard, profile, seed);
  if (!context.ok()) return context.status();
  return layer.kind == LayerKind::kKda ? kda_activations(*context)
                                       : lightning_activations(*context);
}

Result<LayerWeightTensors> make_weights(const LayerSpec& layer, int32_t num_layers,
                                        const TpShard& shard, Profile profile, uint64_t seed) {
  Result<Context> context = make_context(layer, shard, profile, seed);
  if (!context.ok()) return context.status();
  LayerWeightTensors out;
  fill_norm_weight(*context, out);
  if (layer.kind == LayerKind::kLightning) {
    Result<std::vector<float>> slopes = lightning_slopes(layer.heads.num_heads, layer.layer_id,
                                                         num_layers, shard, layer.slope_rule);
    if (!slopes.ok()) return slopes.status();
    out.slopes = testing::f32_tensor(*slopes);
    return out;
  }
  fill_conv_weight(*context, out);
  if (layer.gate_form != KdaGate::kActivated) fill_gate_weights(*context, out);
  return out;
}

}  // namespace linestate::cli
