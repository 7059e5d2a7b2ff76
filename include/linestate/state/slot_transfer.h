// Where a pool's bytes lie, for engines that move state between machines themselves (RDMA, NVLink,
// a tiered cache): enough to register the memory once and then to copy one slot, or only some of
// its heads, without any call into the library. A peer with another tensor-parallel size takes the
// heads that are its own.
//
// A slot of a part is `heads` heads; a head is `runs_per_head` runs of `run_bytes` contiguous
// bytes. Head h of slot s:
//   for r in [0, runs_per_head):
//     run at base + s * slot_stride_bytes + h * head_stride_bytes + r * run_stride_bytes
// Rank r of size n owns global heads [r * H / n, (r + 1) * H / n) of each part (tp_shard.h), with
// that part's own H: key heads for the q and k windows, value heads for the rest. Local head h is
// the (h - first own head)-th.
//
// The pool must hold plain slots while they move: replay rings are folded first, and a position
// travels beside the bytes (StatePool::snapshot_position).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

enum class TransferPart : uint8_t {
  kRecurrent,  // [V, K] or [K, V] of a head, by order
  kConvQ,      // [K, W-1] of a key head
  kConvK,      // [K, W-1] of a key head
  kConvV,      // [V, W-1] of a value head
};
/// "recurrent", "conv_q", "conv_k", "conv_v".
std::string_view transfer_part_name(TransferPart part);

/// Which index of a head's matrix moves fastest in memory.
enum class TransferOrder : uint8_t {
  kLastFastest,   // as the shape is written: K for [V, K], V for [K, V], taps for a window
  kFirstFastest,  // the transposed matrix: for a window, channels (pools that the library creates)
};

struct TransferDescriptor {
  int32_t layer_id = 0;  // global decoder layer
  TransferPart part = TransferPart::kRecurrent;
  DType dtype = DType::kF32;
  StateLayout layout = StateLayout::kVK;  // of the recurrent part
  TransferOrder order = TransferOrder::kLastFastest;

  Device device{};                // whose memory it is
  void* base = nullptr;           // of slot 0, head 0
  int64_t num_slots = 0;          // P
  int64_t slot_stride_bytes = 0;  // between slots; may be more than a slot of this part
  int64_t bytes_per_slot = 0;     // of this part: heads * bytes_per_head

  int64_t heads = 0;              // of this rank
  int64_t head_stride_bytes = 0;  // between heads
  int64_t bytes_per_head = 0;     // runs_per_head * run_bytes
  int64_t runs_per_head = 1;      // 1: a head is contiguous
  int64_t run_bytes = 0;
  int64_t run_stride_bytes = 0;  // between runs of a head; 0 with one run
  /// All heads of a slot form one run.
  bool slot_contiguous() const {
    return runs_per_head == 1 && (heads == 1 || head_stride_bytes == bytes_per_head);
  }
};

/// One descriptor a part and layer, in the pool's order of layers: recurrent, then conv_q, conv_k
/// and conv_v for a layer with a window. Together they name every byte of every slot once. Valid
/// until the memory is released or the pool goes; any device.
/// Errors: kFailedPrecondition (memory released), kInvalidArgument (conv_channels is not
/// 2*H*K + HV*V for a whole H, the layer is named), kUnsupported (an adopted plane in which neither
/// index of a head's matrix is contiguous, or whose strides run backwards).
Result<std::vector<TransferDescriptor>> transfer_descriptors(const StatePool& pool);

/// Ok when heads of `a` and `b` are the same bytes, so that head i of one may be copied run by run
/// onto head j of the other: layer, part, dtype, layout, order and runs agree. Heads and strides
/// may differ. Errors: kInvalidArgument naming the field.
Status check_transferable(const TransferDescriptor& a, const TransferDescriptor& b);

}  // namespace linestate
