// Activation profiles: what the generated inputs look like, head by head, and the fixed weights
// that go with them. Independent Gaussian inputs hide the faults that matter (states that drift,
// gates that underflow, keys that cluster), so the profiles ask for them by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cli/replay/activations.h"
#include "linestate/model_config.h"
#include "linestate/status.h"
#include "testing/host_tensor.h"

namespace linestate::cli {

enum class Profile : uint8_t {
  kPlain,       // independent keys, decays as in trained models
  kCorrelated,  // keys = a common vector per head plus noise, beta near 1
  kSlow,        // retention above 0.999 per token
  kStrong,      // three key channels of four: |g| > 50 (softplus) or near the bound (bounded)
  kMixed,       // heads take these in turn
};
/// Errors: kInvalidArgument listing the names.
Result<Profile> parse_profile(std::string_view name);
std::string_view profile_name(Profile profile);

enum class GateStyle : uint8_t { kPlain, kSlow, kStrong };
/// What a profile means for one global head of one layer.
bool keys_correlated(Profile profile, int64_t layer, int64_t key_head);
GateStyle gate_style(Profile profile, int64_t layer, int64_t value_head);

/// Token tensors of one layer, this rank's channels. KDA: qkv, gate, beta, z. Lightning: q, k, v,
/// gate of the norm.
struct LayerActivations {
  std::vector<ChannelPlan> tensors;
};

/// Weights of one layer, this rank's heads; tensors that the layer kind does not have are
/// undefined.
struct LayerWeightTensors {
  testing::HostTensor conv_weight;  // [channels, W] f32
  testing::HostTensor A_log;        // [HV] f32
  testing::HostTensor dt_bias;      // [HV, K] f32
  testing::HostTensor slopes;       // [H] f32
  testing::HostTensor norm_weight;  // KDA [V], Lightning [H*D]; f32
};

/// `layer` is the whole model's layer; the shard picks the heads.
/// Errors: kInvalidArgument when the shard does not divide the heads.
Result<LayerActivations> make_activations(const LayerSpec& layer, const TpShard& shard,
                                          Profile profile, uint64_t seed);
/// `num_layers`: all decoder layers of the model, for the slopes.
Result<LayerWeightTensors> make_weights(const LayerSpec& layer, int32_t num_layers,
                                        const TpShard& shard, Profile profile, uint64_t seed);

}  // namespace linestate::cli
