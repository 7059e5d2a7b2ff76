// From the engine's batch to what operators read. ForwardBatch is the engine's description on the
// host; ForwardMetadata checks it once, runs the deferred slot work, and owns the tensors that all
// layers of the forward pass share. After prepare() nothing allocates, synchronises or reads
// device data on the host.
//
// CUDA. prepare() fills page-locked staging and queues one copy to the device on the context's
// stream, then the slot work. There are two stagings: only the third prepare() of an object may
// wait, for the copy of the first, and one with pre.restore, for the restored slots. A captured
// graph contains forward() and commit(), never prepare(). Before each replay prepare() is called
// with the batch that is to run, and with the BatchShape that was captured: the tensors keep their
// addresses and sizes, their values are new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/rows.h"
#include "linestate/state/slot_pack.h"
#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

/// Slot work that belongs to a batch: all layers, once, before the batch's first operator.
/// Clears come first, then copies, then restores. Allowed only in a batch with extend rows.
struct DeferredSlotWork {
  std::vector<int32_t> clear;  // slots to zero
  struct Copy {
    int32_t src = kPadSlot;
    int32_t dst = kPadSlot;
  };
  std::vector<Copy> copy;  // slot -> slot (copy on write of a shared prefix)
  /// A cold snapshot (state/slot_pack.h) comes back into `slot`, which no copy reads or writes and
  /// no other restore. An extend row of that slot starts at the pack's position.
  struct Restore {
    std::span<const std::byte> pack;  // read during prepare() only
    int32_t slot = kPadSlot;
    UnpackOptions options{};
  };
  std::vector<Restore> restore{};
  bool empty() const { return clear.empty() && copy.empty() && restore.empty(); }
};

/// A state to keep: after exactly `position` tokens of row `row`, in slot `slot`.
struct SnapshotRequest {
  int32_t row = 0;          // index into ForwardBatch::rows
  int64_t position = 0;     // absolute: start < position <= start + the row's valid tokens
  int32_t slot = kPadSlot;  // no row's slot; outside [0, P) = not wanted
};

/// Rows and tokens that one kind has in a BatchShape, and snapshot requests of its rows.
struct SegmentShape {
  int64_t rows = 0;
  int64_t tokens = 0;  // decode: as many as rows
  int64_t snapshots = 0;
};

/// A fixed layout for batches that replay one captured graph. Segments come in the order extend,
/// decode, verify; each with rows > 0 is there with exactly these sizes, whatever the batch holds.
/// The batch's rows of a kind take the first rows of its segment; the others are padding without
/// tokens. A segment's tokens begin behind those of the segments before it, live or not, so the
/// caller places token tensors by Segment::token_begin. Tokens behind a segment's last row get zero
/// output. Drafts always have parents then when the metadata has room for shape.verify.tokens
/// (chains are written out), so that one graph serves chains and trees.
struct BatchShape {
  SegmentShape extend;
  SegmentShape decode;
  SegmentShape verify;
  bool defined() const { return extend.rows + decode.rows + verify.rows > 0; }
  int64_t num_rows() const { return extend.rows + decode.rows + verify.rows; }
  int64_t num_tokens() const { return extend.tokens + decode.rows + verify.tokens; }
  int64_t num_snapshots() const { return extend.snapshots + decode.snapshots + verify.snapshots; }
};

struct ForwardBatch {
  std::span<const Row> rows;   // rows of one kind contiguous, kinds in any order; empty = idle
  int64_t token_capacity = 0;  // tokens of the caller's tensors, >= sum of rows' tokens; 0 = sum
  DeferredSlotWork pre;
  /// Parents of the verify rows' tokens, in batch order (ops/draft_tree.h); empty = chains.
  std::span<const int32_t> parent;
  /// States to keep, at most one a destination. Of extend and decode rows forward() takes them, of
  /// verify rows commit() takes those that the accepted path reaches.
  std::span<const SnapshotRequest> snapshots;
  /// Virtual to physical: [num_virtual] i32 | i64 of pool slots, read once by prepare(). When it is
  /// given, every id of the batch, in `rows`, `pre` and `snapshots`, is virtual, and operators see
  /// slot_table[id] only. A row whose id lies outside the table, or whose entry lies outside
  /// [0, P), is padding; slot work on such an id is refused. Undefined: ids are pool slots.
  ConstTensorView slot_table;  // on the host
  /// For graphs; without rows the batch has the segments that its rows make. Such a batch has no
  /// pad rows, and its rows, tokens and snapshots of each kind fit the shape.
  BatchShape shape;
};

/// Rows [row_begin, row_end) of one kind and their tokens [token_begin, token_end).
/// `rows` holds this segment's tensors, its query_start_loc counted from the segment's first token.
struct Segment {
  RowKind kind = RowKind::kPad;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t token_begin = 0;
  int64_t token_end = 0;
  RowTensors rows;
  ConstTensorView parent;  // verify: [tokens] i32; undefined = chains
  SnapshotPlan snapshots;  // of this segment's rows, counted from row_begin; undefined = none
  TensorView taken;        // [M] u8, what commit reports for `snapshots`; undefined = none

  // Decode rows of a pool with replay rings; undefined without.
  ConstTensorView replay_pending;   // [rows] i32, records before this token
  ConstTensorView replay_flush;     // [rows] u8, 1 = this token writes the state
  ConstTensorView snapshot_source;  // [M] i32, slots of the rows in `snapshots`
};

/// Room of a ForwardMetadata.
struct ForwardCapacity {
  int64_t rows = 0;           // >= 1
  int64_t verify_tokens = 0;  // tokens of verify rows in batches that pass `parent`
  int64_t snapshots = 0;      // snapshot requests
  int64_t slot_work = 0;      // clears, and as many copies, of ForwardBatch::pre on a CUDA device;
                              // 0 = as many as rows. The CPU takes any number.
};

class ForwardMetadata {
 public:
  /// Buffers for batches of up to this size. Two objects are independent: two batches may be
  /// alive at once. Errors: kInvalidArgument, kResourceExhausted, kUnsupported (built without CUDA,
  /// an external device), kDevice.
  static Result<ForwardMetadata> create(const ForwardCapacity& capacity, Device device = {});
  /// Rows only: drafts are chains, no snapshots.
  static Result<ForwardMetadata> create(int64_t max_rows, Device device = {});

  ForwardMetadata(ForwardMetadata&&) noexcept;
  ForwardMetadata& operator=(ForwardMetadata&&) noexcept;
  ~ForwardMetadata();

  /// Checks the batch; folds the replay rings of slots that prefill, verify or copy will read; runs
  /// the deferred slot work; refills the buffers in place; advances the cursors of decode rows. On
  /// error nothing has happened: pool and metadata are as before; on a device, an error behind the
  /// copy of the batch leaves the metadata idle. Errors: kInvalidArgument naming
  /// the row and field (kinds not contiguous, a decode row without exactly one token, negative or
  /// too many tokens, num_valid > tokens, duplicate live slots after translation, bad parents, a
  /// batch that its shape does not hold, pool, metadata and context on different devices, a
  /// snapshot position outside its row, deferred work without extend rows or on bad slots, a bad
  /// slot table, more than the capacity); of pre.restore what unpack_slot reports, with its index;
  /// kResourceExhausted; kFailedPrecondition (the stream is being captured); kDevice (the device's
  /// own failure).
  Status prepare(const ForwardBatch& batch, const StatePool& pool, const ExecContext& context);

  Device device() const;
  int64_t num_rows() const;        // rows of the batch, padding included; those of a shape
  int64_t num_tokens() const;      // sum of the rows' tokens; those of a shape
  int64_t token_capacity() const;  // first dimension of the caller's token tensors
  int64_t num_prefills() const;    // extend rows, without those that only a shape adds
  int64_t num_decodes() const;     // decode rows, likewise
  int64_t num_prefill_tokens() const;
  bool idle() const { return num_rows() == 0; }

  /// Whether ForwardBatch::snapshots[i] was taken: of an extend or decode row true once forward()
  /// ran, of a verify row what commit() reported; on a CUDA device false until read_taken().
  /// REQUIRES: i < the requests of the batch.
  bool snapshot_taken(size_t i) const;
  /// Fetches what commit() reported; waits for the context's stream. No-op on the CPU.
  Status read_taken(const ExecContext& context);

  /// The segment of a kind, or null.
  const Segment* find_segment(RowKind kind) const;

  /// Segments in batch order, at most one a kind; empty for an idle batch. Tokens
  /// [num_tokens(), token_capacity()) belong to no segment: their output is zero.
  std::span<const Segment> segments() const;
  /// The whole batch: slot [N] i32 (translated), query_start_loc [N+1] i64, start [N] i64,
  /// num_valid [N] i32.
  const RowTensors& rows() const;

 private:
  struct Impl;
  explicit ForwardMetadata(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace linestate
