#include "linestate/tp_shard.h"

#include "base/message.h"

namespace linestate {

Status TpShard::validate() const try {
  if (size < 1) return invalid_argument("tp size: expected at least 1, got ", size);
  if (rank < 0 || rank >= size) {
    return invalid_argument("tp rank: expected 0 to ", size - 1, ", got ", rank);
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<HeadRange> TpShard::heads(int64_t num_heads, const char* what) const try {
  LINESTATE_RETURN_IF_ERROR(validate());
  if (num_heads < 1) return invalid_argument(what, ": expected at least 1, got ", num_heads);
  if (num_heads % size != 0) {
    return invalid_argument(what, ": expected a multiple of the tp size ", size, ", got ",
                            num_heads);
  }
  const int64_t local = num_heads / size;
  return HeadRange{rank * local, (rank + 1) * local};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
