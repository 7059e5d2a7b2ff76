#include "cli/replay/output_sum.h"

#include <cstring>

#include "testing/fill.h"

namespace linestate::cli {
namespace {

using testing::hash64;

uint64_t hash_bytes(const char* bytes, int64_t count) {
  uint64_t hash = 0xcbf29ce484222325ull;
  while (count > 0) {
    uint64_t word = 0;
    const int64_t n = count < 8 ? count : 8;
    std::memcpy(&word, bytes, static_cast<size_t>(n));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
    bytes += n;
    count -= n;
  }
  return hash;
}

}  // namespace

void OutputSum::add(const BuiltBatch& batch, std::span<const TraceRequest> trace, int64_t layer,
                    const ConstTensorView& out) {
  const int64_t token_bytes = out.stride[0] * dtype_bytes(out.dtype);
  for (const BatchRow& row : batch.requests) {
    const int64_t input = trace[static_cast<size_t>(row.request)].input_length;
    for (int64_t i = 0; i < row.advance(); ++i) {
      const int64_t position = row.row.start + i;
      if (position + 1 < input) continue;
      const auto* token = static_cast<const char*>(out.data) + row.token_at(i) * token_bytes;
      const uint64_t place = hash64(
          hash64(hash64(static_cast<uint64_t>(row.request)) + static_cast<uint64_t>(position)) +
          static_cast<uint64_t>(layer));
      sum_ += hash64(place ^ hash_bytes(token, token_bytes));
    }
  }
}

}  // namespace linestate::cli
