// One slot in one buffer: the recurrent state and the convolution windows of all layers, with a
// header that says what they are. For checkpoints to host memory or disk, cold prefix snapshots,
// and moving a request to another process. docs/formats/slot_pack.md describes every byte.
//
// The buffer does not depend on the pool's strides, only on its spec: any pool of the same layers
// takes it, created or adopted. A tensor-parallel rank packs its own heads; ranks of another size
// need state/slot_transfer.h.
//
//   std::vector<std::byte> cold(*slot_pack_bytes(pool.spec(), PackScheme::kInt8));
//   pack_slot(pool, slot, *pool.snapshot_position(slot), PackScheme::kInt8, cold);
//   ...
//   Result<int64_t> position = unpack_slot(cold, pool, other_slot);
//   pool.mark_snapshot(other_slot, *position);
//
// A pool of a CUDA device needs staging: host memory of the caller's (PinnedMemory is fastest) and
// the stream that the slot's work is on. Nothing else is allocated or waited for, except that
// packing from a pool with replay rings passes the slot's id to the device for the fold.
//
// Thread-safety: no state of its own; two calls may run at once unless they write the same slot,
// buffer or staging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

/// How the recurrent state is stored. Windows are always stored exactly.
///   scheme  bytes a value  error of a value x, m = largest |x| of its group
///   exact   the pool's     none: bit for bit, NaN payloads too
///   f16     2              |x| 2^-11, and 2^-25 where that is more (|x| < 2^-14)
///   int8    1 + 1/8        m / 253, and 2^-143 where that is more (a group is 32 neighbours along
///                          the contiguous dimension)
/// Relative RMS error of normally distributed values: f16 2.1e-4, int8 5.4e-3. A state that goes
/// into a bf16 or f16 pool is rounded to that dtype as well.
enum class PackScheme : uint8_t { kExact, kF16, kInt8 };
/// "exact", "f16", "int8".
std::string_view pack_scheme_name(PackScheme scheme);

/// Bytes that pack_slot writes for one slot of such a pool.
/// Errors: kInvalidArgument (spec or scheme breaks a rule).
Result<int64_t> slot_pack_bytes(const PoolSpec& spec, PackScheme scheme);

/// Where the bytes of a device pool's slot pass through. Not looked at for a pool on the CPU.
struct SlotStaging {
  void* stream = nullptr;         // of the pool's device; copies are queued on it
  std::span<std::byte> buffer{};  // host memory, at least slot_staging_bytes(pool)
};
/// Bytes of staging for one slot; 0 for a pool on the CPU.
int64_t slot_staging_bytes(const StatePool& pool);

/// Packs `slot`, which holds the state after `position` tokens, into `out`, and returns the bytes
/// written. The slot is only read, but for pending records of a replay ring, which are folded into
/// its state first. Deterministic: equal slots give equal bytes.
/// `out` need not be aligned and may be larger; it must not overlap the pool or the staging. For a
/// device pool it waits until the stream has passed its copies.
/// Errors: kInvalidArgument (slot outside [0, P), position < 0, scheme, `out` too small),
/// kFailedPrecondition (pool memory released; a value that the scheme cannot hold, with its layer:
/// beyond f16's range, or not finite for int8). After an error `out` is no valid pack.
Result<int64_t> pack_slot(const StatePool& pool, int32_t slot, int64_t position, PackScheme scheme,
                          std::span<std::byte> out, const SlotStaging& staging = {});

struct UnpackOptions {
  /// Takes a pack of a pool with another state dtype, rounding to nearest even. Window dtypes must
  /// agree in any case.
  bool allow_state_dtype_change = false;
  /// Takes a pack that another numerics version wrote. The state is right, but a run that goes on
  /// from it need not have the bits of a run that never moved.
  bool allow_other_numerics = false;
};

/// Restores a pack into `slot` and returns the token position it stands for. Bytes of `buffer`
/// behind the pack are not looked at. Everything is checked, checksums too, before the first write:
/// on any error the slot is as it was. Other slots are never touched. A replay ring of the slot is
/// empty afterwards. For a device pool the slot is written by copies queued on the stream: it waits
/// for nothing, and the staging must stay as it is until the stream has passed.
/// Errors: kDataLoss naming the field (damaged, truncated or not a pack), kInvalidArgument naming
/// what differs from the pool (layers, dtypes) or a bad slot, kFailedPrecondition (numerics
/// version; pool memory released; a value beyond f16's range for an f16 pool).
Result<int64_t> unpack_slot(std::span<const std::byte> buffer, const StatePool& pool, int32_t slot,
                            const UnpackOptions& options = {}, const SlotStaging& staging = {});

/// unpack_slot in two halves, for a caller that checks several packs before it writes any: what
/// ForwardBatch::pre.restore does.
class SlotUnpack {
 public:
  /// Refuses what unpack_slot refuses. Buffer and pool must outlive run().
  static Result<SlotUnpack> check(std::span<const std::byte> buffer, const StatePool& pool,
                                  int32_t slot, const UnpackOptions& options = {},
                                  const SlotStaging& staging = {});
  /// Tokens that the pack stands for.
  int64_t position() const;
  /// Writes the slot. On the CPU it needs no memory and cannot fail. Errors: kDevice.
  Status run() const;

 private:
  struct Impl;
  explicit SlotUnpack(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

struct SlotPackInfo {
  int64_t position = 0;
  PackScheme scheme = PackScheme::kExact;
  int32_t numerics_version = 0;
  int64_t total_bytes = 0;
  PoolSpec spec;  // of the pool it came from
};

/// What a buffer holds, without a pool. Checks all of it, checksums too.
/// Errors: kDataLoss naming the field.
Result<SlotPackInfo> read_slot_pack(std::span<const std::byte> buffer);

}  // namespace linestate
