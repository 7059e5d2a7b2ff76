// The engine of src/backends/backend_engine_fixture.h on a GPU: pool, metadata, records, workspace
// and token tensors in device memory at addresses that never change, so that a captured forward
// pass may be replayed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend_engine_fixture.h"
#include "linestate/device_memory.h"
#include "linestate/device_staging.h"

namespace linestate::testing {

/// A tensor in device memory.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(Device device, int64_t bytes) : memory_(*DeviceMemory::allocate(device, bytes)) {}

  /// `host` by value in device memory, shaped like it. REQUIRES: contiguous and not larger.
  TensorView put(const ConstTensorView& host, void* stream) {
    const int64_t bytes = host.num_elements() * dtype_bytes(host.dtype);
    if (memory_.bytes() < bytes) memory_ = *DeviceMemory::allocate(device_of(), bytes);
    EXPECT_TRUE(copy_bytes({memory_.data(), device_of()}, {host.data, {}}, bytes, stream).ok());
    TensorView view;
    view.data = memory_.data();
    view.dtype = host.dtype;
    view.device = device_of();
    view.rank = host.rank;
    view.shape = host.shape;
    view.stride = host.stride;
    return view;
  }

 private:
  Device device_of() const { return {DeviceType::kCuda, 0}; }
  DeviceMemory memory_;
};

/// Any view of device memory on the host, contiguous. Waits for `stream`.
inline HostTensor download(const ConstTensorView& view, void* stream) {
  int64_t reach = 0;
  for (int32_t dim = 0; dim < view.rank; ++dim) {
    const auto d = static_cast<size_t>(dim);
    if (view.shape[d] == 0) return HostTensor(view.dtype, {0});
    reach += (view.shape[d] - 1) * view.stride[d];
  }
  std::vector<char> bytes(static_cast<size_t>((reach + 1) * dtype_bytes(view.dtype)));
  EXPECT_TRUE(copy_bytes({bytes.data(), {}}, {view.data, view.device},
                         static_cast<int64_t>(bytes.size()), stream)
                  .ok());
  ConstTensorView host = view;
  host.data = bytes.data();
  host.device = {};
  return copy_of(host);
}

class DeviceEngine {
 public:
  static constexpr int64_t kSlots = Engine::kSlots;
  static constexpr int64_t kTokens = 512;

  explicit DeviceEngine(EngineOptions options = {})
      : layers_(options.io),
        options_(std::move(options)),
        stream_(*DeviceStream::create(device())),
        pool_(*StatePool::create(engine_pool_spec(layers_, options_), kSlots, device())),
        metadata_(*ForwardMetadata::create(ForwardCapacity{16, 256, 16, 0}, device())),
        records_(*VerifyRecords::create(layers_.model(), options_.io, 256, device())),
        status_(*DeviceStatusBlock::create(device())) {
    for (DeviceTensor& tensor : tensors_) tensor = DeviceTensor(device(), kTokens * 1024 * 4);
    context_.device = device();
    context_.stream = stream_.handle();
    context_.status = status_.get();
    for (const TensorView& plane : pool_.planes()) {  // dirty memory
      const int64_t bytes = plane.num_elements() * dtype_bytes(plane.dtype);
      EXPECT_TRUE(fill_bytes({plane.data, device()}, 0xff, bytes, stream_.handle()).ok());
    }
    put_weights();
    make_workspace();
  }

  static Device device() { return {DeviceType::kCuda, 0}; }
  StatePool& pool() { return pool_; }
  void* stream() const { return stream_.handle(); }
  ForwardMetadata& metadata() { return metadata_; }
  const ExecContext& context() const { return context_; }
  DeviceStatusBlock& status() { return status_; }
  std::string flags() const {
    DeviceStatus seen;
    EXPECT_TRUE(status_.read(seen, stream_.handle()).ok());
    return seen.describe();
  }

  /// Checks the batch and brings its tokens to the device; nothing of a layer runs.
  Status prepare(const std::vector<Piece>& pieces, const StepExtras& extras = {},
                 const BatchShape& shape = {}) {
    std::vector<Row> rows;
    for (const Piece& piece : pieces) rows.push_back(piece.row);
    ForwardBatch batch;
    batch.rows = rows;
    batch.token_capacity = extras.capacity;
    batch.parent = extras.parent;
    batch.snapshots = extras.snapshots;
    batch.pre = extras.pre;
    batch.shape = shape;
    LINESTATE_RETURN_IF_ERROR(metadata_.prepare(batch, pool_, context_));
    layers_.gather(placed(pieces), metadata_.token_capacity());
    put_tokens();
    return {};
  }

  /// Both layers, queued on the stream; may be captured.
  Status forward() {
    LINESTATE_RETURN_IF_ERROR(kda().forward(0, kda_weights_, metadata_, pool_, kda_io_, context_));
    return lightning().forward(1, lightning_weights_, metadata_, pool_, lightning_io_, context_);
  }

  Status run(const std::vector<Piece>& pieces, const StepExtras& extras = {},
             const BatchShape& shape = {}) {
    LINESTATE_RETURN_IF_ERROR(prepare(pieces, extras, shape));
    return forward();
  }

  /// Accepted nodes where the commits read them; -1 for rows that only a shape adds.
  void accept(std::vector<int32_t> nodes) {
    const Segment* segment = metadata_.find_segment(RowKind::kVerify);
    nodes.resize(static_cast<size_t>(segment->row_end - segment->row_begin), -1);
    accepted_ = tensors_[9].put(i32_tensor(nodes).view(), stream());
  }
  Status commit() {
    LINESTATE_RETURN_IF_ERROR(kda().commit(
        0, metadata_, pool_, {records_.kda(0), records_.kda_x(0), accepted_}, context_));
    return lightning().commit(1, lightning_weights_, metadata_, pool_,
                              {records_.lightning(1), accepted_}, context_);
  }

  std::vector<HostTensor> outputs(int64_t begin, int64_t end) const {
    std::vector<HostTensor> out;
    out.push_back(download(kda_io_.out.slice(0, begin, end), stream()));
    out.push_back(download(lightning_io_.out.slice(0, begin, end), stream()));
    return out;
  }
  std::vector<HostTensor> slot(int64_t s) const {
    std::vector<HostTensor> out;
    for (const TensorView& plane : pool_.planes()) {
      out.push_back(download(plane.slice(0, s, s + 1), stream()));
    }
    return out;
  }

 private:
  KdaBackend kda() const { return *KdaBackend::create(layers_.model()); }
  LightningBackend lightning() const { return *LightningBackend::create(layers_.model()); }

  // Pieces with placeholders behind each kind, so that its tokens lie where its segment begins.
  std::vector<Piece> placed(const std::vector<Piece>& pieces) const {
    std::vector<Piece> all;
    for (const Segment& segment : metadata_.segments()) {
      int64_t at = segment.token_begin;
      for (const Piece& piece : pieces) {
        if (piece.row.kind != segment.kind) continue;
        all.push_back(piece);
        at += piece.row.tokens;
      }
      Piece rest;
      rest.row.tokens = static_cast<int32_t>(segment.token_end - at);
      if (rest.row.tokens > 0) all.push_back(rest);
    }
    return all;
  }

  void put_weights() {
    const KdaLayerWeights kda_host = layers_.kda_weights();
    const LightningLayerWeights lightning_host = layers_.lightning_weights();
    const auto put = [&](ConstTensorView& device, const ConstTensorView& host) {
      weights_.emplace_back();
      device = weights_.back().put(host, stream());
    };
    put(kda_weights_.conv_weight, kda_host.conv_weight);
    put(kda_weights_.conv_bias, kda_host.conv_bias);
    put(kda_weights_.A_log, kda_host.A_log);
    put(kda_weights_.dt_bias, kda_host.dt_bias);
    put(kda_weights_.norm_weight, kda_host.norm_weight);
    put(lightning_weights_.slopes, lightning_host.slopes);
    put(lightning_weights_.norm_weight, lightning_host.norm_weight);
  }

  void put_tokens() {
    const KdaLayerIo kda = layers_.kda_io();
    const LightningLayerIo lightning = layers_.lightning_io();
    kda_io_.qkv = tensors_[0].put(kda.qkv, stream());
    kda_io_.gate = tensors_[1].put(kda.gate, stream());
    kda_io_.beta = tensors_[2].put(kda.beta, stream());
    kda_io_.z = tensors_[3].put(kda.z, stream());
    kda_io_.out = tensors_[4].put(kda.out, stream());
    kda_io_.record = records_.kda(0);
    kda_io_.record_x = records_.kda_x(0);
    lightning_io_.q = tensors_[5].put(lightning.q, stream());
    lightning_io_.k = tensors_[6].put(lightning.k, stream());
    lightning_io_.v = tensors_[7].put(lightning.v, stream());
    lightning_io_.gate = tensors_[8].put(lightning.gate, stream());
    lightning_io_.out = tensors_[10].put(lightning.out, stream());
    lightning_io_.record = records_.lightning(1);
  }

  void make_workspace() {
    const int64_t bytes = std::max(*kda().workspace_bytes(kTokens, pool_, context_),
                                   *lightning().workspace_bytes(kTokens, pool_, context_));
    workspace_ = *DeviceMemory::allocate(device(), bytes);
    context_.workspace = {workspace_.data(), bytes};
  }

  TwoLayers layers_;
  EngineOptions options_;
  DeviceStream stream_;
  StatePool pool_;
  ForwardMetadata metadata_;
  VerifyRecords records_;
  DeviceStatusBlock status_;
  ExecContext context_;
  DeviceMemory workspace_;
  std::vector<DeviceTensor> weights_;
  DeviceTensor tensors_[11];
  KdaLayerWeights kda_weights_;
  LightningLayerWeights lightning_weights_;
  KdaLayerIo kda_io_;
  LightningLayerIo lightning_io_;
  TensorView accepted_;
};

}  // namespace linestate::testing
