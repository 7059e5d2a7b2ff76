#include "ops/kda/kda_record.h"

#include "base/check.h"
#include "base/run_copy.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  ConstTensorView tensor;
};

struct Parts {
  Named part[4];
};

Parts parts_of(const KdaRecord& record) {
  return {{{"record.u", record.u},
           {"record.k", record.k},
           {"record.k_inverse_norm", record.k_inverse_norm},
           {"record.alpha", record.alpha}}};
}

}  // namespace

Status check_kda_record(const KdaRecord& record, const KdaRecordShape& s,
                        const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("record.u", record.u, {s.T, s.HV, s.V}));
  LINESTATE_RETURN_IF_ERROR(check_shape("record.k", record.k, {s.T, s.H, s.K}));
  LINESTATE_RETURN_IF_ERROR(
      check_shape("record.k_inverse_norm", record.k_inverse_norm, {s.T, s.H}));
  LINESTATE_RETURN_IF_ERROR(check_shape("record.alpha", record.alpha, {s.T, s.HV, s.K}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("record.k", record.k, {s.k_dtype}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("record.u", record.u, {DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(
      check_dtype("record.k_inverse_norm", record.k_inverse_norm, {DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("record.alpha", record.alpha, {DType::kF32}));
  const Parts parts = parts_of(record);
  for (const Named& one : parts.part) {
    LINESTATE_RETURN_IF_ERROR(check_placement(one.name, one.tensor, context));
    if (!one.tensor.contiguous()) {
      return invalid_argument(one.name, ": expected contiguous memory, got ", describe(one.tensor));
    }
    for (const Named& other : parts.part) {
      if (one.name == other.name) break;
      LINESTATE_RETURN_IF_ERROR(check_no_overlap(one.name, one.tensor, other.name, other.tensor));
    }
  }
  return {};
}

Status check_kda_record_apart(const KdaRecord& record, const char* other_name,
                              const ConstTensorView& other) {
  if (!other.defined()) return {};
  const Parts parts = parts_of(record);
  for (const Named& one : parts.part) {
    LINESTATE_RETURN_IF_ERROR(check_no_overlap(one.name, one.tensor, other_name, other));
  }
  return {};
}

void record_kda_key(const KdaRecord& record, const ConstTensorView& k, int64_t t, int64_t h,
                    float inverse_norm) {
  copy_run({record.k.data, record.k.dtype, offset_of(record.k, t, h), 1},
           {k.data, k.dtype, offset_of(k, t, h), k.stride[2]}, k.shape[2]);
  kda_record_k_inverse_norm(record, t, h) = inverse_norm;
}

}  // namespace linestate
