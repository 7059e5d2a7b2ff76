// Memory for what verification remembers, for every layer of a model. O(tokens), not O(tokens x
// state): a few KiB a draft token and layer, where a state is 64 KiB a head.
#pragma once

#include <cstdint>
#include <memory>

#include "linestate/model_config.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

class VerifyRecords {
 public:
  /// Bytes that one draft token takes over all layers of a (sharded) model.
  static int64_t bytes_per_token(const ModelConfig& model, DType io_dtype);

  /// Room for the verify tokens of one batch, on the CPU or a CUDA device. Errors:
  /// kInvalidArgument, kResourceExhausted, kUnsupported (built without CUDA), kDevice.
  static Result<VerifyRecords> create(const ModelConfig& model, DType io_dtype, int64_t max_tokens,
                                      Device device = {});

  VerifyRecords(VerifyRecords&&) noexcept;
  VerifyRecords& operator=(VerifyRecords&&) noexcept;
  ~VerifyRecords();

  int64_t max_tokens() const;
  /// Of pool layer `index`, max_tokens long. REQUIRES: a layer of that kind.
  KdaRecord kda(int64_t index) const;
  TensorView kda_x(int64_t index) const;  // [max_tokens, channels]
  LightningRecord lightning(int64_t index) const;

 private:
  struct Impl;
  explicit VerifyRecords(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace linestate
