#include "base/check.h"
#include "base/row_access.h"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"

namespace linestate {
namespace {

Status check_output(const char* name, const ConstTensorView& tensor, int64_t size, DType dtype,
                    const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape(name, tensor, {size}));
  LINESTATE_RETURN_IF_ERROR(check_dtype(name, tensor, {dtype}));
  LINESTATE_RETURN_IF_ERROR(check_placement(name, tensor, context));
  return check_no_self_overlap(name, tensor);
}

Status check_memory(const ReplayStepParams& p) {
  struct Named {
    const char* name;
    ConstTensorView tensor;
  };
  const Named outputs[] = {{"cursor", p.cursor}, {"pending", p.pending}, {"flush", p.flush}};
  for (const Named& output : outputs) {
    for (const Named& input : {Named{"rows.slot", p.rows.slot},
                               {"rows.start", p.rows.start},
                               {"rows.num_valid", p.rows.num_valid},
                               {"force_flush", p.force_flush}}) {
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, input.name, input.tensor));
    }
    for (const Named& other : outputs) {
      if (other.name == output.name) break;
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, other.name, other.tensor));
    }
  }
  return {};
}

// Cursors that are read: those of rows with a token that does not start its sequence.
Status check_cursors(const ReplayStepParams& p) {
  for (int64_t n = 0; n < p.rows.slot.shape[0]; ++n) {
    const RowInfo row = read_decode_row(p.rows, n, p.cursor.shape[0]);
    if (row.valid == 0 || row.fresh) continue;
    const int64_t c = load_index(p.cursor, row.slot);
    if (c >= 0 && c < p.ring_length) continue;
    return invalid_argument("cursor: expected 0 to ", p.ring_length - 1, " for slot ", row.slot,
                            ", got ", c);
  }
  return {};
}

Status check(const ReplayStepParams& p, const ExecContext& context) {
  if (p.ring_length < 1 || p.ring_length > kMaxReplayLength) {
    return invalid_argument("ring_length: expected 1 to ", kMaxReplayLength, ", got ",
                            p.ring_length);
  }
  LINESTATE_RETURN_IF_ERROR(check_shape("rows.slot", p.rows.slot, {kAnySize}));
  const int64_t N = p.rows.slot.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_output("cursor", p.cursor, kAnySize, DType::kI32, context));
  LINESTATE_RETURN_IF_ERROR(check_output("pending", p.pending, N, DType::kI32, context));
  LINESTATE_RETURN_IF_ERROR(check_output("flush", p.flush, N, DType::kU8, context));
  if (p.force_flush.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("force_flush", p.force_flush, {N}));
    LINESTATE_RETURN_IF_ERROR(
        check_dtype("force_flush", p.force_flush, {DType::kU8, DType::kBool}));
    LINESTATE_RETURN_IF_ERROR(check_placement("force_flush", p.force_flush, context));
  }
  LINESTATE_RETURN_IF_ERROR(check_memory(p));
  LINESTATE_RETURN_IF_ERROR(check_decode_rows(p.rows, N, p.cursor.shape[0], context));
  if (context.device.type != DeviceType::kCpu) return {};
  return check_cursors(p);
}

}  // namespace

const OpTable<ReplayStepParams>& replay_step_begin_table() {
  static constexpr OpTable<ReplayStepParams> kTable{"replay_step_begin", kReplayStepBeginRows,
                                                    check};
  return kTable;
}

Status replay_step_begin(const ReplayStepParams& params, const ExecContext& context,
                         std::string_view kernel) {
  return run_op(replay_step_begin_table(), params, context, kernel);
}

KernelChoice explain_replay_step_begin(const ReplayStepParams& params, const ExecContext& context,
                                       std::string_view kernel) {
  return explain_op(replay_step_begin_table(), params, context, kernel);
}

}  // namespace linestate
