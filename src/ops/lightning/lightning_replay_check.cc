#include "base/check.h"
#include "base/row_access.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/lightning_check.h"
#include "ops/lightning/lightning_ring.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  ConstTensorView tensor;
};

Status check_ring(const LightningReplayParams& params, const ExecContext& context) {
  const ConstTensorView state = params.lightning.state;
  const ConstTensorView keys = params.ring.keys;
  LINESTATE_RETURN_IF_ERROR(
      check_shape("ring.keys", keys, {state.shape[0], state.shape[1], kAnySize, state.shape[2]}));
  if (keys.shape[2] >= kMaxReplayLength) {
    return invalid_argument("ring.keys: expected at most ", kMaxReplayLength - 1, " records, got ",
                            keys.shape[2]);
  }
  LINESTATE_RETURN_IF_ERROR(
      check_shape("ring.values", params.ring.values,
                  {state.shape[0], state.shape[1], keys.shape[2], state.shape[3]}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("ring.keys", keys, {DType::kF32, DType::kF16}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("ring.values", params.ring.values, {keys.dtype}));
  if (params.ring.gamma.defined()) {
    return invalid_argument("ring.gamma: expected none for Lightning, got ",
                            describe(params.ring.gamma));
  }
  for (const Named& part : {Named{"ring.keys", keys}, Named{"ring.values", params.ring.values}}) {
    LINESTATE_RETURN_IF_ERROR(check_placement(part.name, part.tensor, context));
    LINESTATE_RETURN_IF_ERROR(check_no_self_overlap(part.name, part.tensor));
  }
  return {};
}

Status check_step(const LightningReplayParams& params, const ExecContext& context) {
  const int64_t num_rows = params.lightning.q.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_shape("pending", params.pending, {num_rows}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("pending", params.pending, {DType::kI32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("pending", params.pending, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("flush", params.flush, {num_rows}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("flush", params.flush, {DType::kU8, DType::kBool}));
  return check_placement("flush", params.flush, context);
}

// On the CPU: the records of a live row fit its ring, and so does one more unless it flushes.
Status check_step_values(const LightningReplayParams& params) {
  const int64_t records = params.ring.keys.shape[2];
  const int64_t slots = params.lightning.state.shape[0];
  for (int64_t n = 0; n < params.pending.shape[0]; ++n) {
    const RowInfo row = read_decode_row(params.lightning.rows, n, slots);
    if (row.valid == 0) continue;
    const int64_t pending = load_index(params.pending, n);
    const int64_t most = row.fresh ? 0 : records;
    if (pending < 0 || pending > most) {
      return invalid_argument("pending: expected 0 to ", most, ", got ", pending, " at row ", n);
    }
    if (pending == records && !load_flag(params.flush, n)) {
      return invalid_argument("flush: expected 1 where the ring is full, got 0 at row ", n);
    }
  }
  return {};
}

Status check_memory(const LightningReplayParams& params) {
  const LightningParams& lightning = params.lightning;
  const Named inputs[] = {{"q", lightning.q},
                          {"k", lightning.k},
                          {"v", lightning.v},
                          {"slopes", lightning.slopes},
                          {"rows.slot", lightning.rows.slot},
                          {"rows.start", lightning.rows.start},
                          {"rows.num_valid", lightning.rows.num_valid},
                          {"pending", params.pending},
                          {"flush", params.flush},
                          {"state", lightning.state},
                          {"out", lightning.out}};
  for (const Named& ring :
       {Named{"ring.keys", params.ring.keys}, Named{"ring.values", params.ring.values}}) {
    for (const Named& input : inputs) {
      LINESTATE_RETURN_IF_ERROR(check_no_overlap(ring.name, ring.tensor, input.name, input.tensor));
    }
  }
  for (const Named& step : {Named{"pending", params.pending}, Named{"flush", params.flush}}) {
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", lightning.out, step.name, step.tensor));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("state", lightning.state, step.name, step.tensor));
  }
  return check_no_overlap("ring.keys", params.ring.keys, "ring.values", params.ring.values);
}

}  // namespace

Status check_lightning_replay(const LightningReplayParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_lightning_tensors(params.lightning, context));
  LINESTATE_RETURN_IF_ERROR(check_no_snapshots(params.lightning.snapshots));
  LINESTATE_RETURN_IF_ERROR(check_ring(params, context));
  LINESTATE_RETURN_IF_ERROR(check_step(params, context));
  LINESTATE_RETURN_IF_ERROR(check_memory(params));
  LINESTATE_RETURN_IF_ERROR(check_decode_rows(params.lightning.rows, params.lightning.q.shape[0],
                                              params.lightning.state.shape[0], context));
  if (context.device.type != DeviceType::kCpu) return {};
  return check_step_values(params);
}

}  // namespace linestate
