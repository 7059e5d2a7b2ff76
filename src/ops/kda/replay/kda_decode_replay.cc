#include "base/check.h"
#include "base/row_access.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/kda_check.h"
#include "ops/kda/replay/kda_decode_replay_kernels.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  ConstTensorView tensor;
};

Status check_ring_sizes(const KdaReplayParams& p) {
  const ReplayRing& ring = p.ring;
  const int64_t P = p.kda.state.shape[0];
  const int64_t HV = p.kda.state.shape[1];
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  LINESTATE_RETURN_IF_ERROR(check_shape("ring.keys", ring.keys, {P, HV, kAnySize, K}));
  const int64_t records = ring.keys.shape[2];
  if (records >= kMaxReplayLength) {
    return invalid_argument("ring.keys: expected at most ", kMaxReplayLength - 1, " records, got ",
                            records);
  }
  LINESTATE_RETURN_IF_ERROR(check_shape("ring.values", ring.values, {P, HV, records, V}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("ring.keys", ring.keys, {DType::kF32, DType::kF16}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("ring.values", ring.values, {ring.keys.dtype}));
  if (records == 0 && !ring.gamma.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_shape("ring.gamma", ring.gamma, {P, HV, K}));
  return check_dtype("ring.gamma", ring.gamma, {DType::kF32});
}

Status check_step_tensors(const KdaReplayParams& p, const ExecContext& context) {
  const int64_t N = p.kda.q.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_shape("pending", p.pending, {N}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("pending", p.pending, {DType::kI32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("pending", p.pending, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("flush", p.flush, {N}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("flush", p.flush, {DType::kU8}));
  return check_placement("flush", p.flush, context);
}

Status check_memory(const KdaReplayParams& p, const ExecContext& context) {
  const KdaParams& kda = p.kda;
  const bool gated = kda.gate_form != KdaGate::kActivated;
  const Named parts[] = {
      {"ring.keys", p.ring.keys}, {"ring.values", p.ring.values}, {"ring.gamma", p.ring.gamma}};
  const Named others[] = {{"q", kda.q},
                          {"k", kda.k},
                          {"v", kda.v},
                          {"gate", kda.gate},
                          {"beta", kda.beta},
                          {"A_log", gated ? kda.A_log : ConstTensorView()},
                          {"dt_bias", gated ? kda.dt_bias : ConstTensorView()},
                          {"rows.slot", kda.rows.slot},
                          {"rows.start", kda.rows.start},
                          {"rows.num_valid", kda.rows.num_valid},
                          {"state", kda.state},
                          {"out", kda.out},
                          {"pending", p.pending},
                          {"flush", p.flush}};
  for (const Named& part : parts) {
    if (!part.tensor.defined()) continue;
    LINESTATE_RETURN_IF_ERROR(check_placement(part.name, part.tensor, context));
    LINESTATE_RETURN_IF_ERROR(check_no_self_overlap(part.name, part.tensor));
    for (const Named& other : others) {
      LINESTATE_RETURN_IF_ERROR(check_no_overlap(part.name, part.tensor, other.name, other.tensor));
    }
    for (const Named& other : parts) {
      if (other.name == part.name) break;
      LINESTATE_RETURN_IF_ERROR(check_no_overlap(part.name, part.tensor, other.name, other.tensor));
    }
  }
  for (const Named& output : {Named{"state", kda.state}, Named{"out", kda.out}}) {
    LINESTATE_RETURN_IF_ERROR(check_no_overlap(output.name, output.tensor, "pending", p.pending));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap(output.name, output.tensor, "flush", p.flush));
  }
  return {};
}

Status check_steps(const KdaReplayParams& p) {
  const int64_t records = p.ring.keys.shape[2];
  for (int64_t n = 0; n < p.kda.q.shape[0]; ++n) {
    const RowInfo row = read_decode_row(p.kda.rows, n, p.kda.state.shape[0]);
    if (row.valid == 0) continue;
    const int64_t pending = load_index(p.pending, n);
    const int64_t most = row.fresh ? 0 : records;
    if (pending < 0 || pending > most) {
      return invalid_argument("pending: expected 0 to ", most, " at row ", n, ", got ", pending);
    }
    const bool flush = static_cast<const uint8_t*>(p.flush.data)[offset_of(p.flush, n)] != 0;
    if (pending == records && !flush) {
      return invalid_argument("flush: expected 1 at row ", n, " with ", pending,
                              " records pending, got 0");
    }
  }
  return {};
}

Status check(const KdaReplayParams& p, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_no_snapshots(p.kda.snapshots));
  LINESTATE_RETURN_IF_ERROR(check_kda_decode(p.kda, context));
  LINESTATE_RETURN_IF_ERROR(check_ring_sizes(p));
  LINESTATE_RETURN_IF_ERROR(check_step_tensors(p, context));
  LINESTATE_RETURN_IF_ERROR(check_memory(p, context));
  if (context.device.type != DeviceType::kCpu) return {};
  return check_steps(p);
}

}  // namespace

const OpTable<KdaReplayParams>& kda_decode_replay_table() {
  static constexpr OpTable<KdaReplayParams> kTable{"kda_decode_replay", kKdaDecodeReplayRows,
                                                   check};
  return kTable;
}

Status kda_decode_replay(const KdaReplayParams& params, const ExecContext& context,
                         std::string_view kernel) {
  return run_op(kda_decode_replay_table(), params, context, kernel);
}

Result<int64_t> kda_decode_replay_workspace_bytes(const KdaReplayParams& params,
                                                  const ExecContext& context,
                                                  std::string_view kernel) {
  return op_workspace_bytes(kda_decode_replay_table(), params, context, kernel);
}

KernelChoice explain_kda_decode_replay(const KdaReplayParams& params, const ExecContext& context,
                                       std::string_view kernel) {
  return explain_op(kda_decode_replay_table(), params, context, kernel);
}

}  // namespace linestate
