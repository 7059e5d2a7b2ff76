// A KDA call with its own memory: inputs, rows, pool and outputs, for tests and bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/ops/kda.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

/// Sizes, dtypes and options of a call.
struct KdaShape {
  int64_t H = 2;
  int64_t HV = 2;
  int64_t K = 64;
  int64_t V = 64;
  DType io = DType::kF32;          // q, k, v
  DType gate_dtype = DType::kF32;  // gate and beta: f32 or that of q
  DType state = DType::kF32;
  DType out = DType::kF32;
  KdaGate gate_form = KdaGate::kSoftplus;
  KdaBeta beta_form = KdaBeta::kLogits;
  float lower_bound = 0.0f;
  bool qk_normalized = false;
  int64_t slots = 8;
};

/// One row of a prefill batch; num_valid -1 = all.
struct KdaRow {
  int32_t slot = -1;
  int64_t start = 0;
  int32_t tokens = 0;
  int32_t num_valid = -1;
};

struct KdaProblem {
  KdaShape shape;
  HostTensor q, k, v, gate, beta, A_log, dt_bias, state, out;
  HostTensor slot, query_start_loc, start, num_valid;

  int64_t tokens() const { return q.shape()[0]; }
  KdaParams params();
  /// Rows in packed order. Prefill: offsets from the token counts. Decode: one token a row, the
  /// counts are not looked at.
  void set_rows(const std::vector<KdaRow>& rows);
  /// Same tensors, own memory.
  KdaProblem clone() const;
};

/// Random inputs for T tokens: keys, values and queries N(0, 1), gates and biases so that decays
/// span forgetting at once to hardly at all, beta around one half; pool N(0, 1); out NaN. No rows.
KdaProblem make_kda_problem(const KdaShape& shape, int64_t tokens, uint64_t seed);

/// Sum of the rows' token counts.
int64_t total_tokens(const std::vector<KdaRow>& rows);

enum class KdaPhase : uint8_t { kPrefill, kDecode };

/// Runs the op with a workspace of exactly the size it asks for, poisoned with NaN. Returns the
/// error's text, "workspace overrun" when bytes behind it changed, or nothing.
std::string run_kda(KdaPhase phase, const KdaParams& params, const std::string& kernel,
                    int threads = 1, DeviceStatus* status = nullptr);

/// Judges `kernel` on `problem` against `ref` run with an f32 pool and f32 outputs: outputs and the
/// pool within `out_limit` and `state_limit` relative RMS, narrow dtypes within 1.05 x their own
/// rounding of that reference. Leaves the results in `problem`. Returns what broke, or nothing.
std::string check_kda_against_ref(KdaPhase phase, KdaProblem& problem, const std::string& kernel,
                                  double out_limit = 1e-6, double state_limit = 5e-7);

}  // namespace linestate::testing
