// Request traces: JSON lines as the Mooncake project publishes them, one request a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linestate/status.h"

namespace linestate::cli {

/// Tokens per entry of hash_ids; the last block of a request may be partial.
inline constexpr int64_t kTraceBlockTokens = 512;
/// Longest input or output that a line may ask for.
inline constexpr int64_t kMaxTraceTokens = int64_t{1} << 24;

struct TraceRequest {
  int64_t timestamp_ms = 0;
  int64_t input_length = 0;   // tokens, >= 1
  int64_t output_length = 0;  // tokens, >= 1
  /// One id per block of the input; equal ids = equal prefix up to and including that block.
  std::vector<int64_t> hash_ids;

  int64_t total_tokens() const { return input_length + output_length; }
};

/// One line. Unknown members are ignored; ids beyond the input's blocks are dropped.
/// Errors: kDataLoss (not JSON), kInvalidArgument naming the field, what was expected and what
/// came.
Result<TraceRequest> parse_trace_line(std::string_view line);

/// The first `limit` requests of a file (0 = all), in file order. Blank lines are allowed;
/// timestamps may not go back. Lines behind the limit are not looked at.
/// Errors: kIo, kInvalidArgument "FILE:LINE: field: ..." for the first bad line and for a file
/// without requests.
Result<std::vector<TraceRequest>> read_trace(const std::string& path, int64_t limit);

/// Id of the token at `position` of request number `index`: a function of the block's hash id and
/// the place in the block for the input, of (index, position) for the output.
uint64_t token_id(const TraceRequest& request, int64_t index, int64_t position);

}  // namespace linestate::cli
