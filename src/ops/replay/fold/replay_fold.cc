#include <string>
#include <vector>

#include "base/check.h"
#include "base/element.h"
#include "ops/replay/fold/replay_fold_kernels.h"

namespace linestate {
namespace {

struct Named {
  std::string name;
  ConstTensorView tensor;
};

// Tensors that the fold reads or writes of one layer.
std::vector<Named> parts_of(const ReplayFoldLayer& layer, size_t l) {
  std::vector<Named> parts = {{concat("layers[", l, "].state"), layer.state},
                              {concat("layers[", l, "].ring.keys"), layer.ring.keys},
                              {concat("layers[", l, "].ring.values"), layer.ring.values}};
  const bool lightning = layer.slopes.defined();
  if (lightning) parts.push_back({concat("layers[", l, "].slopes"), layer.slopes});
  // Without pending records there is nothing to decay.
  const bool decays = layer.ring.gamma.defined() || layer.ring.keys.shape[2] > 0;
  if (!lightning && decays) {
    parts.push_back({concat("layers[", l, "].ring.gamma"), layer.ring.gamma});
  }
  return parts;
}

Status check_memory(const std::vector<Named>& parts, const ReplayFoldParams& p,
                    const ExecContext& context) {
  for (const Named& part : parts) {
    LINESTATE_RETURN_IF_ERROR(check_placement(part.name.c_str(), part.tensor, context));
  }
  const Named& state = parts[0];
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap(state.name.c_str(), state.tensor));
  for (const Named& part : parts) {
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("cursor", p.cursor, part.name.c_str(), part.tensor));
    if (&part == &state) continue;
    LINESTATE_RETURN_IF_ERROR(
        check_no_overlap(state.name.c_str(), state.tensor, part.name.c_str(), part.tensor));
  }
  return check_no_overlap(state.name.c_str(), state.tensor, "slots", p.slots);
}

Status check_layer(const ReplayFoldParams& p, size_t l, int64_t ring_length,
                   const ExecContext& context) {
  const ReplayFoldLayer& layer = p.layers[l];
  const std::vector<Named> parts = parts_of(layer, l);
  const int64_t P = p.cursor.shape[0];
  const char* state_name = parts[0].name.c_str();
  LINESTATE_RETURN_IF_ERROR(
      check_shape(state_name, layer.state, {P, kAnySize, kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype(state_name, layer.state));
  const bool lightning = layer.slopes.defined();
  const int64_t heads = layer.state.shape[1];
  const int64_t key_dim = layer.state.shape[lightning ? 2 : 3];
  const int64_t value_dim = layer.state.shape[lightning ? 3 : 2];
  LINESTATE_RETURN_IF_ERROR(check_head_dim(state_name, key_dim));
  LINESTATE_RETURN_IF_ERROR(check_head_dim(state_name, value_dim));
  LINESTATE_RETURN_IF_ERROR(
      check_shape(parts[1].name.c_str(), layer.ring.keys, {P, heads, ring_length - 1, key_dim}));
  LINESTATE_RETURN_IF_ERROR(check_shape(parts[2].name.c_str(), layer.ring.values,
                                        {P, heads, ring_length - 1, value_dim}));
  LINESTATE_RETURN_IF_ERROR(
      check_dtype(parts[1].name.c_str(), layer.ring.keys, {DType::kF32, DType::kF16}));
  LINESTATE_RETURN_IF_ERROR(
      check_dtype(parts[2].name.c_str(), layer.ring.values, {layer.ring.keys.dtype}));
  if (parts.size() > 3) {
    const char* name = parts[3].name.c_str();
    LINESTATE_RETURN_IF_ERROR(lightning ? check_shape(name, parts[3].tensor, {heads})
                                        : check_shape(name, parts[3].tensor, {P, heads, key_dim}));
    LINESTATE_RETURN_IF_ERROR(check_dtype(name, parts[3].tensor, {DType::kF32}));
  }
  return check_memory(parts, p, context);
}

Status check(const ReplayFoldParams& p, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("slots", p.slots, {kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("slots", p.slots, {DType::kI32, DType::kI64}));
  LINESTATE_RETURN_IF_ERROR(check_placement("slots", p.slots, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("cursor", p.cursor, {kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("cursor", p.cursor, {DType::kI32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("cursor", p.cursor, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("cursor", p.cursor));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("cursor", p.cursor, "slots", p.slots));
  int64_t ring_length = 1;
  for (size_t l = 0; l < p.layers.size(); ++l) {
    LINESTATE_RETURN_IF_ERROR(check_shape(concat("layers[", l, "].ring.keys").c_str(),
                                          p.layers[l].ring.keys,
                                          {kAnySize, kAnySize, kAnySize, kAnySize}));
    if (l == 0) ring_length = p.layers[0].ring.keys.shape[2] + 1;
    if (ring_length > kMaxReplayLength) {
      return invalid_argument("layers[0].ring.keys: expected at most ", kMaxReplayLength - 1,
                              " records, got ", ring_length - 1);
    }
    LINESTATE_RETURN_IF_ERROR(check_layer(p, l, ring_length, context));
  }
  if (context.device.type != DeviceType::kCpu) return {};
  LINESTATE_RETURN_IF_ERROR(check_distinct("slots", p.slots, p.cursor.shape[0]));
  for (int64_t i = 0; i < p.slots.shape[0]; ++i) {
    const int64_t slot = load_index(p.slots, i);
    if (slot < 0 || slot >= p.cursor.shape[0]) continue;
    const int64_t c = load_index(p.cursor, slot);
    if (c >= 0 && (p.layers.empty() || c < ring_length)) continue;
    return invalid_argument("cursor: expected 0 to ", ring_length - 1, " for slot ", slot, ", got ",
                            c);
  }
  return {};
}

}  // namespace

const OpTable<ReplayFoldParams>& replay_fold_table() {
  static constexpr OpTable<ReplayFoldParams> kTable{"replay_fold", kReplayFoldRows, check};
  return kTable;
}

Status replay_fold(const ReplayFoldParams& params, const ExecContext& context,
                   std::string_view kernel) {
  return run_op(replay_fold_table(), params, context, kernel);
}

KernelChoice explain_replay_fold(const ReplayFoldParams& params, const ExecContext& context,
                                 std::string_view kernel) {
  return explain_op(replay_fold_table(), params, context, kernel);
}

}  // namespace linestate
