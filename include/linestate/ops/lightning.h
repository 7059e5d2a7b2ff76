// Lightning attention: linear attention with one scalar decay per head.
//
// Per head h, state S [K, V] with K = V = D, all in f32, lambda = exp(-slope[h]):
//   S <- lambda * S + k v^T
//   o  = scale * S^T q
// Source: Lightning Attention-2 (arXiv 2401.04658); MiniMax-01 (arXiv 2501.08313).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/rows.h"
#include "linestate/status.h"
#include "linestate/tp_shard.h"

namespace linestate {

/// How models feed the operator. Only the scale differs: `minimax` models scale q themselves.
enum class LightningVariant : uint8_t {
  kSegLa,    // scale = D^-0.5
  kMinimax,  // scale = 1
};

/// "seg_la" | "minimax". Errors: kInvalidArgument naming the allowed ones.
Result<LightningVariant> parse_lightning_variant(std::string_view name);
std::string_view lightning_variant_name(LightningVariant variant);
/// D^-0.5 for seg_la, 1 for minimax.
float lightning_scale(LightningVariant variant, int64_t head_dim);

struct LightningParams {
  RowTensors rows;
  ConstTensorView q;       // [T, H, D] f32 | bf16 | f16    (decode: T = N, token n is row n)
  ConstTensorView k;       // [T, H, D] dtype of q
  ConstTensorView v;       // [T, H, D] dtype of q; never written
  ConstTensorView slopes;  // [H] f32, >= 0
  float scale = 1.0f;      // see lightning_scale

  TensorView state;        // [P, H, K, V] in place; f32 | bf16 | f16
  TensorView out;          // [T, H, D] f32 | bf16 | f16; overlaps no input
  SnapshotPlan snapshots;  // prefill and decode: states to keep on the way
  int32_t layer = 0;       // only for error reports
};

/// Prefill, fresh or resumed rows, any length. REQUIRES: D a multiple of 16 up to 256.
/// Errors, determinism and the split rule as kda_prefill.
Status lightning_prefill(const LightningParams& params, const ExecContext& context,
                         std::string_view kernel = kAutoKernel);
Result<int64_t> lightning_prefill_workspace_bytes(const LightningParams& params,
                                                  const ExecContext& context,
                                                  std::string_view kernel = kAutoKernel);
KernelChoice explain_lightning_prefill(const LightningParams& params, const ExecContext& context,
                                       std::string_view kernel = kAutoKernel);

/// One token a row. rows.query_start_loc is not read; rows.start may be undefined (all resume).
Status lightning_decode(const LightningParams& params, const ExecContext& context,
                        std::string_view kernel = kAutoKernel);
Result<int64_t> lightning_decode_workspace_bytes(const LightningParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel = kAutoKernel);
KernelChoice explain_lightning_decode(const LightningParams& params, const ExecContext& context,
                                      std::string_view kernel = kAutoKernel);

/// Families of models number their layers differently inside the per-layer factor.
enum class SlopeRule : uint8_t {
  kLayerOverLast,         // 1 - l/(L-1) + 1e-5                SGLang, vLLM; the default
  kLayerOverLastPlusEps,  // 1 - l/(L-1+1e-5) + 1e-5           MiniMax as in transformers
  kPreviousLayer,         // 1 - max(l-1, 0)/(L-1) + 1e-5      Bailing's own modelling code
};

/// Decay slopes of one layer, for the shard's contiguous heads, in f32.
///   base_i = 2^(-8 i / n), i = 1..n, for n a power of two; otherwise the slopes of the next lower
///   power c followed by the first n-c of every other one (1st, 3rd, ...) of 2c.
///   Then times the rule's factor; 1 + 1e-5 when num_layers <= 1. Both factors are rounded to f32.
/// `layer` is the global decoder layer (softmax layers count), `num_layers` all decoder layers.
/// Errors: kInvalidArgument when num_heads < 1, layer outside [0, num_layers), or the shard does
/// not divide the heads.
Result<std::vector<float>> lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers,
                                            const TpShard& shard = {},
                                            SlopeRule rule = SlopeRule::kLayerOverLast);

}  // namespace linestate
