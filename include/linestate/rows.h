// The row contract. Every operator, the metadata and every plug-in speak about a batch in these
// terms, and only in these.
//
// A batch holds N rows (sequences) and T packed tokens. Row n owns tokens
// [query_start_loc[n], query_start_loc[n+1]) of every token tensor and one pool slot.
//
// - A slot outside [0, P) is padding: nothing is read or written in any pool, its output is zero.
// - start = 0 is a fresh row: the slot's old bytes are not looked at (selected away, so NaN in
//   them does not matter). A fresh row without tokens leaves its slot zero.
// - start > 0 without tokens leaves the slot bit-identical.
// - Output of tokens at and beyond num_valid, and behind query_start_loc[N], is zero.
// - Live slots are distinct within a batch.
#pragma once

#include <cstdint>

#include "linestate/tensor.h"

namespace linestate {

/// Chunk grid: chunk borders are absolute multiples of this many tokens in the sequence.
inline constexpr int64_t kChunkTokens = 64;

/// Any id outside [0, P) is padding; this is the one to use.
inline constexpr int32_t kPadSlot = -1;

/// A field of the row, never inferred from a length.
enum class RowKind : uint8_t {
  kExtend,  // prefill, fresh or resumed, any number of tokens
  kDecode,  // exactly one token
  kVerify,  // draft tokens; committed state is not touched
  kPad,     // placeholder of a fixed-size batch
};

/// "extend", "decode", "verify", "pad".
const char* row_kind_name(RowKind kind);

/// One row as the host describes it.
struct Row {
  int32_t slot = kPadSlot;
  RowKind kind = RowKind::kPad;
  int64_t start = 0;           // tokens the slot already holds; 0 = fresh
  int32_t tokens = 0;          // this call's tokens
  int32_t num_valid = -1;      // real tokens among them, the rest are placeholders; -1 = all
  int32_t accepted_node = -1;  // for commit: node id, -1 = none
  bool force_flush = false;    // decode with a replay ring: write the state at this token
};

/// The rows of one call as operators read them: tensors on the operator's device, so that a
/// captured graph sees new values at replay. Any stride is accepted.
struct RowTensors {
  ConstTensorView slot;             // [N] i32 | i64
  ConstTensorView query_start_loc;  // [N+1] i32 | i64, from 0, monotone; not read by decode ops
  ConstTensorView start;            // [N] i32 | i64; undefined in decode ops = every row resumes
  ConstTensorView num_valid;        // [N] i32 | i64; undefined = every token is valid
};

/// States to keep at token positions, in the order the caller likes. Entry m asks that, after
/// exactly `position[m]` tokens of row `row[m]`, the state (and the convolution window) be copied
/// to slot `slot[m]` of the same pool, in the pool's dtype. Positions are absolute in the sequence,
/// any value in (start, start + valid tokens]; multiples of kChunkTokens are cheapest. Taking a
/// snapshot never changes an output or the row's own state.
///
/// An entry is not taken, and its destination keeps its bytes, when the slot lies outside [0, P)
/// (not wanted), the row is padding, or the position is not reached (raises kSnapshotNotTaken).
/// Destinations are distinct and are no row's slot: refused on host ids.
struct SnapshotPlan {
  ConstTensorView row;       // [M] i32 | i64, index into the call's rows; undefined = no snapshots
  ConstTensorView position;  // [M] i32 | i64
  ConstTensorView slot;      // [M] i32 | i64
  bool defined() const { return row.defined(); }
};

}  // namespace linestate
