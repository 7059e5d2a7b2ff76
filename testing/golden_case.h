// What the runners of golden files share: access to the file with checks, rows, calls, judgement.
#pragma once

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/rows.h"
#include "linestate/status.h"
#include "testing/device_mirror.h"
#include "testing/golden.h"
#include "testing/host_tensor.h"
#include "testing/json.h"
#include "testing/params_views.h"
#include "testing/safetensors.h"

namespace linestate::testing {

/// Thrown inside a runner; run_golden turns it into a Status.
struct GoldenError {
  Status status;
};

inline void require(const Status& status) {
  if (!status.ok()) throw GoldenError{status};
}
template <typename T>
T require(Result<T> result) {
  if (!result.ok()) throw GoldenError{result.status()};
  return std::move(*result);
}

inline constexpr int64_t kAnyGoldenSize = -1;
inline constexpr double kNoCeiling = std::numeric_limits<double>::infinity();

/// A row that starts from its slot; the files do not say how many tokens the slot holds.
inline constexpr int64_t kResumedStart = 64;

/// Rows of a call: one slot and start a row, padding where the slot is -1.
class GoldenRows {
 public:
  /// Packed rows; `cu` has one more entry than `slots`.
  static GoldenRows prefill(std::vector<int64_t> slots, std::vector<int64_t> start,
                            std::vector<int64_t> cu);
  /// One token a row, every row resumed.
  static GoldenRows decode(std::vector<int64_t> slots);

  RowTensors tensors() const;
  int64_t num_rows() const { return static_cast<int64_t>(slots_.size()); }
  int64_t num_tokens() const { return cu_.back(); }
  const std::vector<int64_t>& slots() const { return slots_; }
  /// Slots of the rows that are not padding, in row order.
  std::vector<int64_t> live_slots() const;
  std::vector<int64_t> fresh_slots() const;
  /// Tokens of live rows, or of padding rows, over `steps` calls whose tokens follow each other.
  std::vector<int64_t> tokens(bool live, int64_t steps = 1) const;

 private:
  std::vector<int64_t> slots_;
  std::vector<int64_t> start_;
  std::vector<int64_t> cu_;
  HostTensor slot_tensor_;
  HostTensor start_tensor_;
  HostTensor cu_tensor_;
};

/// The three public functions of an operator.
template <typename Params>
struct GoldenOp {
  Status (*run)(const Params&, const ExecContext&, std::string_view);
  Result<int64_t> (*workspace_bytes)(const Params&, const ExecContext&, std::string_view);
  KernelChoice (*explain)(const Params&, const ExecContext&, std::string_view);
};

class GoldenCase {
 public:
  GoldenCase(const Safetensors& file, const GoldenOptions& options, GoldenReport& report);

  bool has(std::string_view name) const { return file_.has(name); }
  const Json& params() const { return params_; }
  int64_t param_int(std::string_view key) const { return require(params_.get_int(key)); }
  const Safetensors& file() const { return file_; }
  /// What the report says ran, where no kernel is called.
  void set_kernel(std::string_view name) { report_.kernel = name; }

  /// A tensor of exactly this shape, kAnyGoldenSize matching every size.
  const HostTensor& tensor(std::string_view name, std::initializer_list<int64_t> shape) const;
  /// A copy to be written; in f32 where the file stores an f32 tensor as bf16.
  HostTensor pool(std::string_view name, std::initializer_list<int64_t> shape) const;
  /// An integer or boolean tensor of rank 1.
  std::vector<int64_t> ints(std::string_view name) const;
  /// SGLang's relative error by its name in the file.
  std::optional<double> sglang_error(std::string_view name) const;

  /// Calls the operator with the options' kernel, or with `kernel` when it is not empty; that one
  /// is an oracle and runs on the CPU. On another device on copies of the tensors, written back.
  template <typename Params>
  void call(const GoldenOp<Params>& op, const Params& params, std::string_view kernel = {}) {
    ExecContext context;
    context.num_threads = options_.threads;
    DeviceStatus status;
    context.status = &status;
    if (kernel.empty() && options_.device.type != DeviceType::kCpu) {
      call_there(op, params, context, status);
    } else {
      const std::string_view name = kernel.empty() ? std::string_view(options_.kernel) : kernel;
      const int64_t bytes = require(op.workspace_bytes(params, context, name));
      HostTensor scratch(DType::kU8, {bytes});
      if (bytes > 0) context.workspace = {scratch.data(), bytes};
      if (kernel.empty()) report_.kernel = op.explain(params, context, name).kernel;
      require(op.run(params, context, name));
    }
    if (status.flags.load() != 0) judge_bits("device status", status.describe());
  }

  /// Output against its reference: floor 1e-6 for f32, 1.05 x the reference's own rounding for
  /// 16-bit outputs.
  void judge_output(const std::string& name, const ConstTensorView& actual,
                    const ConstTensorView& expected, std::string_view sglang,
                    double ceiling = kNoCeiling, const std::string& note = {});
  /// State against its reference: floor 5e-7.
  void judge_state(const std::string& name, const ConstTensorView& actual,
                   const ConstTensorView& expected, std::string_view sglang,
                   double ceiling = kNoCeiling, const std::string& note = {});
  /// An exact comparison made by the caller: empty text passes, anything else says what differs.
  void judge_bits(const std::string& name, const std::string& difference);
  /// Bit for bit.
  void judge_exact(const std::string& name, const ConstTensorView& actual,
                   const ConstTensorView& expected);
  /// Padding rows of an output are zero. No line when there is no padding.
  void judge_padding(const std::string& name, const ConstTensorView& out,
                     const std::vector<int64_t>& padding_tokens);
  /// Slots outside `live` have the bits they had. No line when there are none.
  void judge_untouched(const std::string& name, const ConstTensorView& after,
                       const ConstTensorView& before, const std::vector<int64_t>& live);
  /// Measured, not judged.
  void inform(const std::string& name, const ConstTensorView& actual,
              const ConstTensorView& expected, const std::string& note);

 private:
  template <typename Params>
  void call_there(const GoldenOp<Params>& op, const Params& params, ExecContext context,
                  DeviceStatus& status) {
    const Device device = options_.device;
    OwnedParams<Params> moved(params);
    DeviceMirror mirror(device, nullptr);
    for_each_view(moved, [&](auto& view) { mirror.add(view, is_output(view)); });
    require(mirror.upload());
    for_each_view(moved, [&](auto& view) { view = mirror.map(view); });
    context.device = device;
    const DeviceStatusBlock block = require(DeviceStatusBlock::create(device));
    context.status = block.get();
    const int64_t bytes = require(op.workspace_bytes(moved.value, context, options_.kernel));
    const DeviceMemory scratch = require(DeviceMemory::allocate(device, bytes));
    context.workspace = {scratch.data(), bytes};
    report_.kernel = op.explain(moved.value, context, options_.kernel).kernel;
    require(op.run(moved.value, context, options_.kernel));
    const std::vector<char> image = require(mirror.download());
    if (const std::string broken = mirror.intact(image); !broken.empty()) {
      judge_bits("memory", broken);
    }
    mirror.write_back(image);
    require(block.read(status));
  }
  static bool is_output(const TensorView&) { return true; }
  static bool is_output(const ConstTensorView&) { return false; }

  void judge(const std::string& name, const ConstTensorView& actual,
             const ConstTensorView& expected, std::string_view sglang, double floor, double ceiling,
             const std::string& note);

  const Safetensors& file_;
  const GoldenOptions& options_;
  GoldenReport& report_;
  Json params_;
  Json errors_;
};

/// Rows `indices` of dimension 0, copied.
HostTensor take(const ConstTensorView& view, const std::vector<int64_t>& indices);
/// The same elements under another shape. REQUIRES: equally many.
ConstTensorView view_as(const HostTensor& tensor, std::initializer_list<int64_t> shape);

// The runners.
void run_golden_conv_prefill(GoldenCase& golden);
void run_golden_conv_update(GoldenCase& golden);
void run_golden_kda_prefill(GoldenCase& golden);
void run_golden_kda_decode(GoldenCase& golden);
void run_golden_seg_la_prefill(GoldenCase& golden);
void run_golden_seg_la_decode(GoldenCase& golden);
void run_golden_minimax_prefill(GoldenCase& golden);
void run_golden_minimax_decode(GoldenCase& golden);
void run_golden_slopes(GoldenCase& golden);
void run_golden_conv_spec(GoldenCase& golden);
void run_golden_kda_verify(GoldenCase& golden);
void run_golden_kda_replayssm(GoldenCase& golden);
void run_golden_lightning_mtp(GoldenCase& golden);
void run_golden_spec_commit(GoldenCase& golden);
void run_golden_track_decode(GoldenCase& golden);

}  // namespace linestate::testing
