#include "ops/state_ops/state_check.h"

#include "base/check.h"

namespace linestate {

Status check_plane(const std::string& name, const ConstTensorView& plane,
                   const ExecContext& context) {
  bool valid = plane.rank >= 1;
  for (int dim = 0; dim < plane.rank; ++dim) valid = valid && plane.shape[dim] >= 0;
  if (!valid) {
    return invalid_argument(name, ": expected shape [slots, ...], got ", describe(plane));
  }
  return check_placement(name.c_str(), plane, context);
}

Status check_slot_ids(const char* name, const ConstTensorView& slots, int64_t n,
                      const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape(name, slots, {n}));
  LINESTATE_RETURN_IF_ERROR(check_dtype(name, slots, {DType::kI32, DType::kI64}));
  return check_placement(name, slots, context);
}

}  // namespace linestate
