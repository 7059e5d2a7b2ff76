// The record of a KDA verify call: its checks and its addresses. No maths.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "linestate/exec_context.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/status.h"

namespace linestate {

/// What a record must fit.
struct KdaRecordShape {
  int64_t T = 0;
  int64_t H = 0;
  int64_t HV = 0;
  int64_t K = 0;
  int64_t V = 0;
  DType k_dtype = DType::kF32;
};

/// Shapes, dtypes, dense memory, and the four tensors apart from each other.
Status check_kda_record(const KdaRecord& record, const KdaRecordShape& shape,
                        const ExecContext& context);

/// All of a record lies apart from `other`.
Status check_kda_record_apart(const KdaRecord& record, const char* other_name,
                              const ConstTensorView& other);

/// The record of token t as value head j sees it. Dense, so plain pointers do.
inline float* kda_record_u(const KdaRecord& record, int64_t t, int64_t j) {
  return static_cast<float*>(record.u.data) + offset_of(record.u, t, j);
}
inline float* kda_record_alpha(const KdaRecord& record, int64_t t, int64_t j) {
  return static_cast<float*>(record.alpha.data) + offset_of(record.alpha, t, j);
}
/// For key head h.
inline float& kda_record_k_inverse_norm(const KdaRecord& record, int64_t t, int64_t h) {
  return static_cast<float*>(record.k_inverse_norm.data)[offset_of(record.k_inverse_norm, t, h)];
}

/// Keeps a copy of raw k and its inverse norm; called by the first value head of each key head.
void record_kda_key(const KdaRecord& record, const ConstTensorView& k, int64_t t, int64_t h,
                    float inverse_norm);

}  // namespace linestate
