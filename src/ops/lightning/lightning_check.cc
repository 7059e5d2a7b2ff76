#include "ops/lightning/lightning_check.h"

#include <cmath>

#include "base/check.h"
#include "base/element.h"
#include "ops/common/snapshot_access.h"

namespace linestate {
namespace {

struct NamedInput {
  const char* name;
  ConstTensorView tensor;
};

Status check_tokens(const LightningParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("q", params.q, {kAnySize, kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("q", params.q));
  const int64_t tokens = params.q.shape[0];
  const int64_t heads = params.q.shape[1];
  const int64_t dim = params.q.shape[2];
  if (heads < 1) return invalid_argument("q: expected at least 1 head, got ", describe(params.q));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("q: head dimension D", dim));
  for (const NamedInput& input : {NamedInput{"k", params.k}, NamedInput{"v", params.v}}) {
    LINESTATE_RETURN_IF_ERROR(check_shape(input.name, input.tensor, {tokens, heads, dim}));
    LINESTATE_RETURN_IF_ERROR(check_dtype(input.name, input.tensor, {params.q.dtype}));
  }
  LINESTATE_RETURN_IF_ERROR(check_shape("out", params.out, {tokens, heads, dim}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", params.out));
  LINESTATE_RETURN_IF_ERROR(check_shape("state", params.state, {kAnySize, heads, dim, dim}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("state", params.state));
  for (const NamedInput& input :
       {NamedInput{"q", params.q}, NamedInput{"k", params.k}, NamedInput{"v", params.v},
        NamedInput{"out", params.out}, NamedInput{"state", params.state}}) {
    LINESTATE_RETURN_IF_ERROR(check_placement(input.name, input.tensor, context));
  }
  return {};
}

Status check_decay(const LightningParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_lightning_slopes(params.slopes, params.q.shape[1], context));
  if (std::isfinite(params.scale)) return {};
  return invalid_argument("scale: expected a finite value, got ", params.scale);
}

Status check_memory(const LightningParams& params) {
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("out", params.out));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("state", params.state));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", params.out, "state", params.state));
  LINESTATE_RETURN_IF_ERROR(check_snapshots_apart(params.snapshots, "out", params.out));
  LINESTATE_RETURN_IF_ERROR(check_snapshots_apart(params.snapshots, "state", params.state));
  for (const NamedInput& input :
       {NamedInput{"q", params.q}, NamedInput{"k", params.k}, NamedInput{"v", params.v},
        NamedInput{"slopes", params.slopes}, NamedInput{"rows.slot", params.rows.slot},
        NamedInput{"rows.query_start_loc", params.rows.query_start_loc},
        NamedInput{"rows.start", params.rows.start},
        NamedInput{"rows.num_valid", params.rows.num_valid}}) {
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", params.out, input.name, input.tensor));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("state", params.state, input.name, input.tensor));
  }
  return {};
}

}  // namespace

Status check_lightning_slopes(const ConstTensorView& slopes, int64_t heads,
                              const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("slopes", slopes, {heads}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("slopes", slopes, {DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("slopes", slopes, context));
  if (context.device.type != DeviceType::kCpu) return {};
  for (int64_t h = 0; h < heads; ++h) {
    const float slope = load_f32(slopes.data, DType::kF32, offset_of(slopes, h));
    if (!(slope >= 0.0f) || !std::isfinite(slope)) {
      return invalid_argument("slopes: expected finite values >= 0, got ", slope, " at head ", h);
    }
  }
  return {};
}

Status check_lightning_tensors(const LightningParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_tokens(params, context));
  LINESTATE_RETURN_IF_ERROR(check_decay(params, context));
  return check_memory(params);
}

Status check_lightning_prefill(const LightningParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_lightning_tensors(params, context));
  const int64_t slots = params.state.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_prefill_rows(params.rows, params.q.shape[0], slots, context));
  return check_snapshots(params.snapshots, params.rows, slots, context);
}

Status check_lightning_decode(const LightningParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_lightning_tensors(params, context));
  const int64_t slots = params.state.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_decode_rows(params.rows, params.q.shape[0], slots, context));
  return check_decode_snapshots(params.snapshots, params.rows, slots, context);
}

}  // namespace linestate
