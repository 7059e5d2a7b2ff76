// Where and how an operator runs: device, threads or stream, scratch memory, error block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "linestate/tensor.h"

namespace linestate {

/// Scratch memory of the caller. Operators use nothing else and allocate nothing; ask the
/// operator's `*_workspace_bytes` for the size. Contents before and after a call are undefined.
struct Workspace {
  void* data = nullptr;  // aligned to 64 bytes
  int64_t bytes = 0;
};

/// What an operator noticed in data that the host may not have looked at. Bits of
/// DeviceStatus::flags.
enum class DeviceFlag : uint32_t {
  kSlotOutOfRange = 1u << 0,    // a slot id >= P; the row was treated as padding
  kBadOffsets = 1u << 1,        // query_start_loc or num_valid broke its contract; row skipped
  kBadParent = 1u << 2,         // a verify tree with parent[i] >= i
  kBadAcceptedNode = 1u << 3,   // accepted_node outside the row's nodes; row not committed
  kDuplicateSlot = 1u << 4,     // two live rows, or a row and a snapshot, share a slot (CUDA)
  kSnapshotNotTaken = 1u << 5,  // a snapshot position the row did not reach
  kStateOverflow = 1u << 6,     // a finite state value became infinite in the pool's dtype
  kNonFinite = 1u << 7,         // NaN or infinity in an output (only when checked, see below)
};
inline constexpr int kDeviceFlagCount = 8;

/// Sticky error block, written by operators with atomic operations and never cleared by them.
/// 64 bytes, so that one copy or one poll reads it whole. Zero-filled plus first_row = -1 is the
/// clean state: reset() before first use.
struct alignas(64) DeviceStatus {
  std::atomic<uint32_t> flags{0};
  std::atomic<int32_t> first_row[kDeviceFlagCount];  // lowest row that raised each flag, -1 = none
  std::atomic<int32_t> overflow_slot{-1};            // of the first kStateOverflow
  std::atomic<int32_t> overflow_layer{-1};
  uint32_t reserved[5] = {};

  DeviceStatus() { reset(); }
  void reset();
  bool raised(DeviceFlag flag) const {
    return (flags.load(std::memory_order_relaxed) & static_cast<uint32_t>(flag)) != 0;
  }
  /// Row that first raised `flag`, -1 when none did.
  int32_t row_of(DeviceFlag flag) const;
  /// One line per raised flag; empty when clean.
  std::string describe() const;
};
static_assert(sizeof(DeviceStatus) == 64);

/// Passed to every operator. Operators are re-entrant as long as two calls running at the same
/// time use different contexts, different workspaces and different pool slots.
struct ExecContext {
  Device device{};
  int32_t num_threads = 0;  // CPU: threads to use, 0 = all OpenMP offers. Never changes bits
  void* stream = nullptr;   // CUDA: cudaStream_t; unused on the CPU
  Workspace workspace{};
  DeviceStatus* status = nullptr;  // optional, memory the device can write
  bool check_finite = false;       // raise kNonFinite; costs one read of the output
  bool strict = false;             // a fallback is kUnsupported instead of counted and logged
  // With a status block a CUDA operator looks for rows that share a slot, in a launch of its own:
  bool slots_checked = false;  // true: the host has looked, as ForwardMetadata::prepare does
  /// CUDA, sm_90 and up, where an operator offers it (kda_decode, kda_decode_step,
  /// lightning_decode): its kernel may start, and read rows, pool slots and weights, while the
  /// kernel launched before it on the stream still runs. Everything else waits. Same bits.
  /// REQUIRES: that kernel writes none of the three for this call, and if it lets this one start
  /// early, nothing before it that it has not waited for does.
  bool overlap = false;
};

}  // namespace linestate
