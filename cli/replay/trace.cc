#include "cli/replay/trace.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "testing/fill.h"
#include "testing/json.h"

namespace linestate::cli {
namespace {

using testing::hash64;
using testing::Json;

// Keeps ids of output tokens apart from ids of input tokens.
constexpr uint64_t kOutputStream = 0x6f757470757473ull;

Status bad_field(const std::string& field, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, field + ": " + what);
}

Result<int64_t> integer_field(const Json& line, const char* name, int64_t low, int64_t high) {
  const Json* member = line.find(name);
  if (member == nullptr) return bad_field(name, "missing");
  const int64_t* number = std::get_if<int64_t>(&member->value);
  if (number == nullptr) {
    return bad_field(name, "expected an integer, got " + testing::dump_json(*member));
  }
  if (*number < low || *number > high) {
    return bad_field(name, "expected " + std::to_string(low) + " to " + std::to_string(high) +
                               ", got " + std::to_string(*number));
  }
  return *number;
}

Result<std::vector<int64_t>> hash_id_field(const Json& line, int64_t input_length) {
  const Json* member = line.find("hash_ids");
  if (member == nullptr) return bad_field("hash_ids", "missing");
  const auto* items = std::get_if<Json::Array>(&member->value);
  if (items == nullptr) {
    return bad_field("hash_ids",
                     "expected an array of integers, got " + testing::dump_json(*member));
  }
  const int64_t blocks = (input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (static_cast<int64_t>(items->size()) < blocks) {
    return bad_field("hash_ids", "expected " + std::to_string(blocks) + " ids for " +
                                     std::to_string(input_length) + " input tokens, got " +
                                     std::to_string(items->size()));
  }
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i) {
    const Json& item = (*items)[static_cast<size_t>(i)];
    const int64_t* id = std::get_if<int64_t>(&item.value);
    if (id == nullptr || *id < 0) {
      return bad_field("hash_ids[" + std::to_string(i) + "]",
                       "expected an integer >= 0, got " + testing::dump_json(item));
    }
    ids.push_back(*id);
  }
  return ids;
}

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Status check_readable(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Status(StatusCode::kIo, "cannot read trace " + path + ": " + std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) {
    return Status(StatusCode::kIo, "cannot read trace " + path + ": it is a directory");
  }
  return {};
}

}  // namespace

Result<TraceRequest> parse_trace_line(std::string_view line) {
  Result<Json> json = testing::parse_json(line);
  if (!json.ok()) return Status(StatusCode::kDataLoss, "not JSON: " + json.status().message());
  if (!std::holds_alternative<Json::Object>(json->value)) {
    return Status(StatusCode::kInvalidArgument,
                  "expected a JSON object, got " + std::string(json->type_name()));
  }
  TraceRequest request;
  constexpr int64_t kMaxTimestampMs = int64_t{1} << 50;
  Result<int64_t> timestamp = integer_field(*json, "timestamp", 0, kMaxTimestampMs);
  if (!timestamp.ok()) return timestamp.status();
  Result<int64_t> input = integer_field(*json, "input_length", 1, kMaxTraceTokens);
  if (!input.ok()) return input.status();
  Result<int64_t> output = integer_field(*json, "output_length", 1, kMaxTraceTokens);
  if (!output.ok()) return output.status();
  Result<std::vector<int64_t>> ids = hash_id_field(*json, *input);
  if (!ids.ok()) return ids.status();
  request.timestamp_ms = *timestamp;
  request.input_length = *input;
  request.output_length = *output;
  request.hash_ids = std::move(ids).value();
  return request;
}

Result<std::vector<TraceRequest>> read_trace(const std::string& path, int64_t limit) {
  LINESTATE_RETURN_IF_ERROR(check_readable(path));
  std::ifstream file(path);
  if (!file) {
    return Status(StatusCode::kIo, "cannot read trace " + path + ": " + std::strerror(errno));
  }
  std::vector<TraceRequest> requests;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (blank(line)) continue;
    const std::string where = path + ":" + std::to_string(number) + ": ";
    Result<TraceRequest> request = parse_trace_line(line);
    if (!request.ok()) {
      return Status(request.status().code(), where + request.status().message());
    }
    if (!requests.empty() && request->timestamp_ms < requests.back().timestamp_ms) {
      return Status(StatusCode::kInvalidArgument, where + "timestamp: expected at least " +
                                                      std::to_string(requests.back().timestamp_ms) +
                                                      " (the request before), got " +
                                                      std::to_string(request->timestamp_ms));
    }
    requests.push_back(std::move(request).value());
    if (limit > 0 && static_cast<int64_t>(requests.size()) == limit) return requests;
  }
  if (file.bad()) return Status(StatusCode::kIo, "cannot read trace " + path);
  if (requests.empty()) {
    return Status(StatusCode::kInvalidArgument, path + ": the trace holds no request");
  }
  return requests;
}

uint64_t token_id(const TraceRequest& request, int64_t index, int64_t position) {
  if (position < request.input_length) {
    const auto block = static_cast<size_t>(position / kTraceBlockTokens);
    const auto place = static_cast<uint64_t>(position % kTraceBlockTokens);
    return hash64(hash64(static_cast<uint64_t>(request.hash_ids[block])) + place);
  }
  return hash64(hash64(static_cast<uint64_t>(index) ^ kOutputStream) +
                static_cast<uint64_t>(position));
}

}  // namespace linestate::cli
