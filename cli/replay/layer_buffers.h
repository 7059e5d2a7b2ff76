// Token tensors of one layer call, in memory that all layers share: each layer's activations are
// generated just before it runs.
#pragma once

#include <cstdint>
#include <span>

#include "cli/replay/profile.h"
#include "linestate/backend.h"
#include "linestate/device_staging.h"
#include "linestate/model_config.h"
#include "testing/host_tensor.h"

namespace linestate::cli {

class LayerBuffers {
 public:
  /// Room for max_tokens tokens of any layer of `model` (this rank's part).
  LayerBuffers(const ModelConfig& model, int64_t max_tokens, DType io_dtype, DType out_dtype);
  /// Puts the tensors of the layers on `device` as well. Once, before the first layer.
  Status use_device(Device device);
  /// Bytes the constructor would take, for the check against the machine's memory.
  static int64_t bytes(const ModelConfig& model, int64_t max_tokens, DType io_dtype,
                       DType out_dtype);

  /// Shapes the tensors for `layer` and `tokens` tokens. REQUIRES: tokens <= max_tokens.
  void shape_for(const LayerSpec& layer, int64_t tokens);
  /// Activations of tokens [first, first + ids.size()).
  void fill(const LayerActivations& activations, int64_t first, std::span<const TokenAt> ids,
            int threads);
  /// NaN in the inputs of tokens [begin, end): what padding holds must not matter.
  void poison_inputs(int64_t begin, int64_t end);
  /// NaN in the whole output: what the layer does not write shows.
  void poison_output();

  /// Inputs to the device and the output's poison with them, queued on `stream`. No-op on the CPU.
  Status upload(void* stream);
  /// The output from the device; waits for `stream`. No-op on the CPU.
  Status download(void* stream);

  // Where the layer reads and writes. `with_norm` false leaves out the norm's gate.
  KdaLayerIo kda_io(bool with_norm) const;
  LightningLayerIo lightning_io(bool with_norm) const;
  /// [tokens, HV, V] on the host.
  TensorView out() const { return out_view_; }

 private:
  static constexpr int kInputs = 4;
  TensorView placed(const TensorView& view, int i) const;

  testing::HostTensor inputs_[kInputs];
  testing::HostTensor out_;
  Device device_{};
  PinnedMemory staging_[kInputs + 1];  // with a device, where the host's views lie: inputs, output
  DeviceMemory memory_[kInputs + 1];
  TensorView views_[kInputs];  // [tokens, ...]
  TensorView out_view_;
};

}  // namespace linestate::cli
