// The reader of request traces: whatever the file holds, an error that names the line, or requests
// that keep every rule of trace.h.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cli/replay/trace.h"

namespace {

using linestate::Result;
using linestate::StatusCode;
using linestate::cli::TraceRequest;

void must(bool holds) {
  if (!holds) std::abort();
}

void check_error(const linestate::Status& status) {
  must(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kInvalidArgument);
  must(!status.message().empty());
}

void check_request(const TraceRequest& request) {
  using linestate::cli::kMaxTraceTokens;
  using linestate::cli::kTraceBlockTokens;
  must(request.timestamp_ms >= 0);
  must(request.input_length >= 1 && request.input_length <= kMaxTraceTokens);
  must(request.output_length >= 1 && request.output_length <= kMaxTraceTokens);
  const int64_t blocks = (request.input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
  must(static_cast<int64_t>(request.hash_ids.size()) == blocks);
  for (const int64_t id : request.hash_ids) must(id >= 0);
  // Every token has an id, the same each time.
  for (const int64_t position :
       {int64_t{0}, request.input_length - 1, request.input_length, request.total_tokens() - 1}) {
    const auto first = linestate::cli::token_id(request, 3, position);
    const auto second = linestate::cli::token_id(request, 3, position);
    must(first == second);
  }
}

bool same(const TraceRequest& a, const TraceRequest& b) {
  return a.timestamp_ms == b.timestamp_ms && a.input_length == b.input_length &&
         a.output_length == b.output_length && a.hash_ids == b.hash_ids;
}

// The bytes as a file that only this process sees.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : file_(memfd_create("trace", MFD_CLOEXEC)) {
    must(file_ >= 0);
    while (size > 0) {
      const ssize_t wrote = write(file_, data, size);
      must(wrote > 0);
      data += wrote;
      size -= static_cast<size_t>(wrote);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(file_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<TraceRequest> line = linestate::cli::parse_trace_line(text);
  if (line.ok()) {
    check_request(*line);
  } else {
    check_error(line.status());
  }
  const MemoryFile file(data, size);
  const Result<std::vector<TraceRequest>> first = linestate::cli::read_trace(file.path(), 1);
  const Result<std::vector<TraceRequest>> all = linestate::cli::read_trace(file.path(), 0);
  if (!first.ok()) check_error(first.status());
  if (!all.ok()) {
    check_error(all.status());
    must(all.status().message().find(file.path()) == 0);  // FILE:LINE: or FILE:
    return 0;
  }
  must(!all->empty() && first.ok() && first->size() == 1 && same(first->front(), all->front()));
  int64_t before = 0;
  for (const TraceRequest& request : *all) {
    check_request(request);
    must(request.timestamp_ms >= before);
    before = request.timestamp_ms;
  }
  return 0;
}
