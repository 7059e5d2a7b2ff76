// Kimi Delta Attention: a delta rule whose decay is per key channel.
//
// Per value head j, with key head j / (HV / H), state S [V, K], all in f32:
//   q^ = q * rsqrt(sum q^2 + 1e-6)      k^ likewise               (unless qk_normalized)
//   S  <- S * exp(g)                    per key channel
//   u  = beta * (v - S k^)
//   S  <- S + u k^T
//   o  = scale * S q^
// Source: Kimi Linear (arXiv 2510.26692), section on KDA; rounding points in docs/operators.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

/// How the log decay g comes from the gate tensor a. Bounded is not a clamp of softplus.
enum class KdaGate : uint8_t {
  kSoftplus,   // g = -exp(A_log[j]) * softplus(a + dt_bias[j, k])
  kBounded,    // g = lower_bound * sigmoid(exp(A_log[j]) * (a + dt_bias[j, k]))
  kActivated,  // g = a, which must be <= 0
};

enum class KdaBeta : uint8_t {
  kLogits,       // beta = sigmoid(b) in f32
  kProbability,  // beta = b
};

struct KdaParams {
  RowTensors rows;
  ConstTensorView q;     // [T, H, K]  f32 | bf16 | f16     (decode: T = N, token n is row n)
  ConstTensorView k;     // [T, H, K]  dtype of q
  ConstTensorView v;     // [T, HV, V] dtype of q; never written
  ConstTensorView gate;  // [T, HV, K] dtype of q or f32
  ConstTensorView beta;  // [T, HV]    dtype of q or f32

  KdaGate gate_form = KdaGate::kSoftplus;
  KdaBeta beta_form = KdaBeta::kLogits;
  ConstTensorView A_log;       // [HV] f32; not read for kActivated
  ConstTensorView dt_bias;     // [HV, K] f32; not read for kActivated
  float lower_bound = 0.0f;    // < 0 for kBounded, else 0
  float scale = 0.0f;          // 0 = K^-0.5
  bool qk_normalized = false;  // true: q and k already have unit length and are used as they are

  TensorView state;   // [P, HV, V, K] in place; f32 | bf16 | f16
  TensorView out;     // [T, HV, V] f32 | bf16 | f16; overlaps no input
  int32_t layer = 0;  // only for error reports
};

/// q, k and v as views of the packed convolution output.
struct PackedQkv {
  ConstTensorView q;  // [T, H, K]
  ConstTensorView k;  // [T, H, K]
  ConstTensorView v;  // [T, HV, V]
};

/// Splits packed [T, 2*H*K + HV*V] (order q | k | v, head-major); any row stride, no copy.
/// Errors: kInvalidArgument when the width does not match.
Result<PackedQkv> split_packed_qkv(const ConstTensorView& packed, int64_t num_heads,
                                   int64_t num_value_heads, int64_t k_dim, int64_t v_dim);

/// Prefill, fresh or resumed rows, any length; the final state is written in place.
/// REQUIRES: HV a multiple of H; K and V multiples of 16 up to 256.
/// Errors: kInvalidArgument names the tensor; kUnsupported lists every refusal.
/// Deterministic: bits depend on the row alone. Splitting a row at a multiple of kChunkTokens
/// gives the bits of the whole with an f32 pool.
Status kda_prefill(const KdaParams& params, const ExecContext& context,
                   std::string_view kernel = kAutoKernel);
Result<int64_t> kda_prefill_workspace_bytes(const KdaParams& params, const ExecContext& context,
                                            std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_prefill(const KdaParams& params, const ExecContext& context,
                                 std::string_view kernel = kAutoKernel);

/// One token a row. rows.query_start_loc is not read; rows.start may be undefined (all resume).
Status kda_decode(const KdaParams& params, const ExecContext& context,
                  std::string_view kernel = kAutoKernel);
Result<int64_t> kda_decode_workspace_bytes(const KdaParams& params, const ExecContext& context,
                                           std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_decode(const KdaParams& params, const ExecContext& context,
                                std::string_view kernel = kAutoKernel);

}  // namespace linestate
