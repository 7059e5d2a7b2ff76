// Row n of a batch as a kernel on the CPU sees it. Follows include/linestate/rows.h.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "linestate/rows.h"

namespace linestate {

struct RowInfo {
  int64_t slot = -1;
  bool live = false;        // slot in [0, P)
  bool fresh = false;       // select zeros instead of the slot's bytes
  int64_t start = 0;        // tokens already in the slot
  int64_t token_begin = 0;  // first token of the row
  int64_t tokens = 0;       // tokens of the row, placeholders included
  int64_t valid = 0;        // real tokens, 0 for padding
};

/// REQUIRES: check_prefill_rows passed.
inline RowInfo read_prefill_row(const RowTensors& rows, int64_t n, int64_t num_slots) {
  RowInfo row;
  row.slot = load_index(rows.slot, n);
  row.live = row.slot >= 0 && row.slot < num_slots;
  row.start = load_index(rows.start, n);
  row.fresh = row.start == 0;
  row.token_begin = load_index(rows.query_start_loc, n);
  row.tokens = load_index(rows.query_start_loc, n + 1) - row.token_begin;
  row.valid = rows.num_valid.defined() ? load_index(rows.num_valid, n) : row.tokens;
  if (!row.live) row.valid = 0;
  return row;
}

/// REQUIRES: check_decode_rows passed.
inline RowInfo read_decode_row(const RowTensors& rows, int64_t n, int64_t num_slots) {
  RowInfo row;
  row.slot = load_index(rows.slot, n);
  row.live = row.slot >= 0 && row.slot < num_slots;
  row.start = rows.start.defined() ? load_index(rows.start, n) : 1;
  row.fresh = row.start == 0;
  row.token_begin = n;
  row.tokens = 1;
  row.valid = rows.num_valid.defined() ? load_index(rows.num_valid, n) : 1;
  if (!row.live) row.valid = 0;
  return row;
}

/// First token behind the last row: tokens from here to the capacity get zero output.
inline int64_t end_of_rows(const RowTensors& rows) {
  return load_index(rows.query_start_loc, rows.slot.shape[0]);
}

}  // namespace linestate
