// What both backends need around their operators.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cpu/scratch.h"
#include "linestate/backend.h"

namespace linestate {

/// Precedence of kernel names: call > phase > base > auto. Empty means not set.
std::string_view pick_kernel(std::string_view call, std::string_view phase, std::string_view base);

/// Plans of a batch's segments: one a kind with work. Lives on the stack, a forward pass allocates
/// nothing.
template <typename Plan>
class SegmentPlans {
 public:
  void push_back(const Plan& plan) { plans_[count_++] = plan; }
  const Plan* begin() const { return plans_.data(); }
  const Plan* end() const { return plans_.data() + count_; }

 private:
  std::array<Plan, 3> plans_;  // extend, decode, verify
  size_t count_ = 0;
};

/// The option that names the attention kernel of rows of this kind.
const std::string& phase_option(const KernelOptions& options, RowKind kind);

/// The model's layer behind a pool layer: index in range, of this kind, and the pool holds exactly
/// what the layer needs. Null `layer` is never returned with an ok status.
Status find_layer(const ModelConfig& model, LayerKind kind, const StatePool& pool,
                  int64_t pool_layer, const LayerSpec** layer);

/// `context` with the part of its workspace behind the first `used` bytes, for operators over rows
/// that prepare() has checked.
ExecContext with_workspace_behind(const ExecContext& context, int64_t used);

/// For a norm in front of zero_unreal_tokens: the output is checked after it.
inline ExecContext without_finite_check(ExecContext context) {
  context.check_finite = false;
  return context;
}

/// The first tokens of a record tensor; one that is too small stays as it is, and its operator
/// refuses it by name.
TensorView record_tokens(const TensorView& tensor, int64_t tokens);

/// A segment's tokens of a [T, ...] tensor; undefined stays undefined.
template <typename View>
View segment_tokens(const View& tensor, const Segment& segment) {
  return tensor.defined() ? tensor.slice(0, segment.token_begin, segment.token_end) : tensor;
}

/// The answer of explain when the call would fail before any operator is asked.
KernelChoice refused_choice(const char* backend, const Status& status);

/// Snapshots of decode rows whose tokens went through a replay ring and were flushed: the row's
/// state is copied behind the operator. No-op without snapshots.
Status copy_flushed_snapshots(const Segment& segment, const TensorView& state,
                              const ExecContext& context);

/// Rows of an empty batch on `device`, for asking operators about scratch: valid, and without a
/// single token. Their memory is the host's wherever they say they are: only shapes are looked at.
RowTensors empty_rows(Device device);

/// The batch was prepared where the call runs.
Status check_metadata_device(const ForwardMetadata& metadata, const ExecContext& context);

}  // namespace linestate
