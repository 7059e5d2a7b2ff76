// Backends: the forward pass of one attention layer over a prepared batch. They own no request
// state and no weights; they build one Params per operator and let the kernel tables choose.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/forward_batch.h"
#include "linestate/kernel_info.h"
#include "linestate/model_config.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

/// Kernel names per phase. Precedence: the call's name > phase > base > "auto".
/// Empty means "not set here". Performance only: every row meets the same tolerances.
struct KernelOptions {
  std::string base;
  std::string conv;     // causal_conv1d prefill and update
  std::string prefill;  // kda_prefill, lightning_prefill
  std::string decode;   // kda_decode, lightning_decode
  std::string verify;   // kda_verify, lightning_verify and their commits
  std::string norm;     // norms after attention
};

/// Weights of one KDA layer, this rank's heads. Views only; must outlive the call.
struct KdaLayerWeights {
  ConstTensorView conv_weight;  // [2*H*K + HV*V, W] f32 | bf16 | f16
  ConstTensorView conv_bias;    // [2*H*K + HV*V]; undefined = none
  ConstTensorView A_log;        // [HV] f32; undefined for an activated gate
  ConstTensorView dt_bias;      // [HV, K] f32; undefined for an activated gate
  ConstTensorView norm_weight;  // [V]; undefined = no norm after attention
};

/// Token tensors of one KDA layer. T = metadata.token_capacity().
struct KdaLayerIo {
  ConstTensorView qkv;   // [T, 2*H*K + HV*V] before the convolution, q | k | v
  ConstTensorView gate;  // [T, HV, K]
  ConstTensorView beta;  // [T, HV]
  ConstTensorView z;     // [T, HV, V] gate of the norm; defined exactly when norm_weight is
  TensorView out;        // [T, HV, V]

  // Verify rows only: what commit needs later. At least as many tokens as the batch verifies, the
  // first of them used; see VerifyRecords, which makes these for all layers.
  KdaRecord record;
  TensorView record_x;  // [tokens, channels] dtype of qkv: the convolution's inputs
};

/// A verified layer to commit. The metadata must still hold the batch that was verified.
struct KdaCommitIo {
  KdaRecord record;          // as verify filled it; only read
  ConstTensorView record_x;  // as verify filled it
  ConstTensorView
      accepted_node;  // [verify rows] i32 | i64; -1 = none. c accepted of a chain: c - 1
};

class KdaBackend {
 public:
  /// `model` is this rank's part (shard_model). Layers of other kinds are ignored.
  /// Errors: kInvalidArgument when the model has no KDA layer or breaks a rule.
  static Result<KdaBackend> create(const ModelConfig& model, KernelOptions options = {});

  /// Scratch that any forward() of this model needs for batches of up to max_tokens tokens of
  /// capacity, any number of rows. `kernel` as in forward().
  Result<int64_t> workspace_bytes(int64_t max_tokens, const StatePool& pool,
                                  const ExecContext& context, std::string_view kernel = {}) const;

  /// conv -> gate, delta rule -> norm for every segment of the batch; state and window of
  /// `pool_layer` are advanced in place. Segments in any order; an idle batch writes zero output.
  /// Verify rows give outputs and records and leave the pool as it is. Snapshots of extend and
  /// decode rows are taken on the way. Nothing is written when an error is returned before the
  /// first launch; messages name the tensor. `kernel` names a row for every operator of the call.
  /// Errors: kInvalidArgument, kUnsupported (every kernel refused).
  Status forward(int64_t pool_layer, const KdaLayerWeights& weights,
                 const ForwardMetadata& metadata, const StatePool& pool, const KdaLayerIo& io,
                 const ExecContext& context, std::string_view kernel = {}) const;

  /// State and window of the layer take the accepted path of every verify row, and the rows'
  /// snapshots that the path reaches. All layers of a model get the same accepted_node; whatever is
  /// wrong with it shows at the first. Errors: kInvalidArgument (no verify rows; see kda_commit).
  Status commit(int64_t pool_layer, const ForwardMetadata& metadata, const StatePool& pool,
                const KdaCommitIo& io, const ExecContext& context,
                std::string_view kernel = {}) const;

  /// The choices forward() would make for this batch, one per operator and segment; the arguments
  /// are those of forward(), workspace included, and nothing is read through them.
  std::vector<KernelChoice> explain(int64_t pool_layer, const KdaLayerWeights& weights,
                                    const ForwardMetadata& metadata, const StatePool& pool,
                                    const KdaLayerIo& io, const ExecContext& context,
                                    std::string_view kernel = {}) const;

 private:
  ModelConfig model_;
  KernelOptions options_;
};

struct LightningLayerWeights {
  ConstTensorView slopes;       // [H] f32
  ConstTensorView norm_weight;  // [H*D]; undefined = no norm after attention
};

/// Token tensors of one Lightning layer. T = metadata.token_capacity().
struct LightningLayerIo {
  ConstTensorView q;       // [T, H, D]
  ConstTensorView k;       // [T, H, D]
  ConstTensorView v;       // [T, H, D]
  ConstTensorView gate;    // [T, H, D] logits for the norm's sigmoid; undefined = none
  TensorView out;          // [T, H, D]
  LightningRecord record;  // verify rows only, as KdaLayerIo::record
};

struct LightningCommitIo {
  LightningRecord record;         // as verify filled it; only read
  ConstTensorView accepted_node;  // as KdaCommitIo
};

class LightningBackend {
 public:
  static Result<LightningBackend> create(const ModelConfig& model, KernelOptions options = {});

  Result<int64_t> workspace_bytes(int64_t max_tokens, const StatePool& pool,
                                  const ExecContext& context, std::string_view kernel = {}) const;

  /// linear attention -> norm; otherwise as KdaBackend::forward.
  Status forward(int64_t pool_layer, const LightningLayerWeights& weights,
                 const ForwardMetadata& metadata, const StatePool& pool, const LightningLayerIo& io,
                 const ExecContext& context, std::string_view kernel = {}) const;

  /// As KdaBackend::commit.
  Status commit(int64_t pool_layer, const LightningLayerWeights& weights,
                const ForwardMetadata& metadata, const StatePool& pool, const LightningCommitIo& io,
                const ExecContext& context, std::string_view kernel = {}) const;

  std::vector<KernelChoice> explain(int64_t pool_layer, const LightningLayerWeights& weights,
                                    const ForwardMetadata& metadata, const StatePool& pool,
                                    const LightningLayerIo& io, const ExecContext& context,
                                    std::string_view kernel = {}) const;

 private:
  ModelConfig model_;
  KernelOptions options_;
};

}  // namespace linestate
