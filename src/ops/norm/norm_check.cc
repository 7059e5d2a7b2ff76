#include "ops/norm/norm_check.h"

#include <cmath>

namespace linestate {
namespace {

bool same_view(const ConstTensorView& a, const ConstTensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape &&
         a.stride == b.stride;
}

bool same_shape(const ConstTensorView& a, const ConstTensorView& b) {
  bool same = a.rank == b.rank;
  for (int dim = 0; same && dim < a.rank; ++dim) same = a.shape[dim] == b.shape[dim];
  return same;
}

}  // namespace

Status check_eps(float eps) {
  if (eps > 0.0f && std::isfinite(eps)) return {};
  return invalid_argument("eps: expected a finite value > 0, got ", eps);
}

Status check_norm_input(const char* name, const ConstTensorView& tensor,
                        std::initializer_list<int64_t> shape, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape(name, tensor, shape));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype(name, tensor));
  return check_placement(name, tensor, context);
}

Status check_norm_out(const ConstTensorView& out, const ConstTensorView& x,
                      const ExecContext& context) {
  if (!same_shape(out, x)) {
    return invalid_argument("out: expected the shape of x, ", describe(x), ", got ", describe(out));
  }
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", out));
  LINESTATE_RETURN_IF_ERROR(check_placement("out", out, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("out", out));
  if (same_view(out, x)) return {};
  return check_no_overlap("out", out, "x", x);
}

}  // namespace linestate
