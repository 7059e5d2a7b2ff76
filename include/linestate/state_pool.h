// The state pool: P slots, and for every linear layer a recurrent state and (KDA) a convolution
// window per slot. One slot is one request's whole memory of the past.
//
// Life of a slot:  allocate -> rows with start = 0 select zeros, so nothing is cleared here ->
// retire(event) -> reusable once the event has passed. free() is retire with no event.
//
// Layout is a property of the pool and part of every view it hands out:
//   KDA recurrent state        [P, HV, V, K]   (K contiguous)
//   Lightning recurrent state  [P, H, K, V]    (V contiguous)
//   convolution window         [P, channels, W-1], channels q | k | v, oldest input first
// Strides are explicit and 64-bit; adopted pools may place slots and layers as the engine likes.
//
// Thread-safety: the slot table has one owner thread. Views may be read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/model_config.h"
#include "linestate/ops/replay_ring.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

enum class StateLayout : uint8_t {
  kVK,  // [.., V, K], what KDA kernels read
  kKV,  // [.., K, V], what Lightning kernels read
};

/// What one slot holds for one layer.
struct LayerState {
  int32_t layer_id = 0;
  StateLayout layout = StateLayout::kVK;
  int64_t heads = 0;  // HV
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  int64_t conv_channels = 0;  // 0 = no window
  int64_t conv_tail = 0;      // W - 1
};

/// Buffered decode, see ops/replay_ring.h. The rings are the library's memory, also of adopted
/// pools.
struct ReplaySpec {
  int64_t length = 1;         // R, 1..kMaxReplayLength; 1 = every token writes the state
  DType dtype = DType::kF32;  // of the records: f32 | f16
  std::vector<std::vector<float>> slopes;  // by layer: [H] of Lightning layers, else empty
};

struct PoolSpec {
  std::vector<LayerState> layers;
  DType state_dtype = DType::kF32;    // f32 | bf16 | f16
  DType window_dtype = DType::kBF16;  // the io dtype, or f32
  ReplaySpec replay;
};

/// The pool a (sharded) model needs. `model` is what shard_model returned.
PoolSpec make_pool_spec(const ModelConfig& model, DType state_dtype, DType window_dtype);

/// Bytes one slot takes over all layers.
int64_t bytes_per_slot(const PoolSpec& spec);
/// Slots that fit `budget_bytes`; 0 when not even one does.
int64_t max_slots(const PoolSpec& spec, int64_t budget_bytes);

/// Memory of one layer that the engine owns. Views must stay valid while the pool lives.
struct AdoptedLayer {
  TensorView recurrent;    // [P, heads, V, K] or [P, heads, K, V] by layout, any slot stride
  TensorView conv_window;  // [P, channels, W-1], any strides; undefined without a window
};

/// Something that is done at some later point of a stream; the pool polls, it never blocks. For a
/// cudaEvent_t: {DeviceEvent::passed, event} (device_staging.h).
struct SlotEvent {
  bool (*done)(void* handle) = nullptr;  // null = already done
  void* handle = nullptr;
};

class StatePool {
 public:
  /// Memory of the library's own, not cleared (fresh rows need no clearing), on the CPU or a CUDA
  /// device. create, adopt, release and rebind are the only calls that may wait for the device, and
  /// whoever frees a pool that a stream still uses synchronises first.
  /// Errors: kInvalidArgument (spec, num_slots < 1), kResourceExhausted (bytes asked, named),
  /// kUnsupported (built without CUDA, an external device), kDevice.
  static Result<StatePool> create(const PoolSpec& spec, int64_t num_slots, Device device = {});
  /// The engine's memory: one AdoptedLayer per spec layer, all of the same P.
  /// Errors: kInvalidArgument naming layer and tensor (shape, dtype, device, overlapping slots;
  /// memory that the CUDA device it is said to be on does not know).
  static Result<StatePool> adopt(const PoolSpec& spec, std::span<const AdoptedLayer> layers);

  StatePool(StatePool&&) noexcept;
  StatePool& operator=(StatePool&&) noexcept;
  ~StatePool();

  int64_t num_slots() const;
  int64_t num_layers() const;
  const PoolSpec& spec() const;
  Device device() const;

  /// Views of layer `index` (0-based among the pool's layers, not the decoder's).
  /// REQUIRES: 0 <= index < num_layers(), memory bound.
  TensorView recurrent(int64_t index) const;
  /// Undefined view when the layer has no window.
  TensorView conv_window(int64_t index) const;
  /// Every plane of every layer, recurrent then window, for state_clear and state_copy.
  std::span<const TensorView> planes() const;

  /// True when spec().replay.length > 1: decode goes through the rings.
  bool has_replay() const;
  /// Pending records of layer `index`. REQUIRES: has_replay().
  const ReplayRing& replay_ring(int64_t index) const;
  /// [P] i32, pending records of every slot, shared by the layers. REQUIRES: has_replay().
  TensorView replay_cursor() const;
  /// Empties the rings of `slots` [n] i32 | i64 into the state, all layers; padding ids are
  /// skipped. ForwardMetadata::prepare does it where a batch needs it; call it before reading,
  /// copying or transferring a slot by other means. No-op without rings. `slots` lies on the pool's
  /// device; the work is queued on the context's stream.
  Status fold(const ConstTensorView& slots, const ExecContext& context) const;

  /// Lowest-numbered slot that is free and whose event has passed.
  /// Errors: kResourceExhausted when every slot is taken or still in flight.
  Result<int32_t> allocate();
  /// Errors: kInvalidArgument when the slot is not allocated (double free, never allocated).
  Status free(int32_t slot);
  /// As free, but the slot is handed out again only after `event`.
  Status retire(int32_t slot, SlotEvent event);
  bool allocated(int32_t slot) const;
  int64_t free_slots() const;       // allocatable now
  int64_t in_flight_slots() const;  // retired, event pending

  /// Records that `slot` holds the state after exactly `position` tokens. allocate, free, retire
  /// and release_memory forget it; whoever advances the slot with an operator calls clear_snapshot.
  /// Errors: kInvalidArgument (slot not allocated, position < 1).
  Status mark_snapshot(int32_t slot, int64_t position);
  /// Forgets the mark; harmless without one. Errors: kInvalidArgument (slot not allocated).
  Status clear_snapshot(int32_t slot);
  /// Tokens the snapshot in `slot` stands for. Errors: kInvalidArgument (slot outside [0, P)),
  /// kFailedPrecondition (the slot holds no snapshot).
  Result<int64_t> snapshot_position(int32_t slot) const;

  /// Gives the memory back (created pools only) and makes every slot's content undefined.
  /// Slots stay allocated. No stream may still use them. Errors: kFailedPrecondition when adopted
  /// or already released.
  Status release_memory();
  /// Allocates anew after release_memory. Errors as create.
  Status rebind_memory();
  /// False between release_memory and rebind_memory.
  bool memory_bound() const;

 private:
  struct Impl;
  explicit StatePool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace linestate
