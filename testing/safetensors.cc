#include "testing/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

#include "testing/json.h"

namespace linestate::testing {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxFileRank = 8;

Status data_loss(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }

Status tensor_loss(std::string_view name, const std::string& what) {
  return data_loss("tensor \"" + std::string(name) + "\": " + what);
}

std::optional<DType> dtype_of(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> names[] = {
      {"BOOL", DType::kBool}, {"U8", DType::kU8},   {"I32", DType::kI32}, {"I64", DType::kI64},
      {"BF16", DType::kBF16}, {"F16", DType::kF16}, {"F32", DType::kF32}, {"F64", DType::kF64}};
  for (const auto& [text, dtype] : names) {
    if (text == name) return dtype;
  }
  return std::nullopt;
}

struct Entry {
  std::string_view name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Bytes of the shape, or an error when negative sizes or an overflow hide in it.
Result<int64_t> byte_size(const Entry& entry) {
  if (entry.shape.size() > kMaxFileRank) {
    return tensor_loss(entry.name, "rank " + std::to_string(entry.shape.size()) + ", at most " +
                                       std::to_string(kMaxFileRank));
  }
  int64_t bytes = dtype_bytes(entry.dtype);
  bool empty = false;
  for (int64_t size : entry.shape) {
    if (size < 0) return tensor_loss(entry.name, "negative size " + std::to_string(size));
    if (size == 0) empty = true;
    if (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size) {
      return tensor_loss(entry.name, "shape overflows 64 bits");
    }
    if (size > 0) bytes *= size;
  }
  return empty ? 0 : bytes;
}

Result<Entry> read_entry(const JsonMember& member, int64_t data_bytes) {
  Entry entry;
  entry.name = member.key;
  Result<std::string> dtype = member.value.get_string("dtype");
  if (!dtype.ok()) return tensor_loss(entry.name, dtype.status().message());
  const std::optional<DType> known = dtype_of(*dtype);
  if (!known) return tensor_loss(entry.name, "dtype " + *dtype + " is not read here");
  entry.dtype = *known;
  Result<std::vector<int64_t>> shape = member.value.get_ints("shape");
  if (!shape.ok()) return tensor_loss(entry.name, shape.status().message());
  entry.shape = std::move(*shape);
  Result<std::vector<int64_t>> offsets = member.value.get_ints("data_offsets");
  if (!offsets.ok()) return tensor_loss(entry.name, offsets.status().message());
  if (offsets->size() != 2) return tensor_loss(entry.name, "data_offsets: expected 2 numbers");
  entry.begin = (*offsets)[0];
  entry.end = (*offsets)[1];
  if (entry.begin < 0 || entry.end < entry.begin || entry.end > data_bytes) {
    return tensor_loss(entry.name, "bytes [" + std::to_string(entry.begin) + ", " +
                                       std::to_string(entry.end) + ") of a file with " +
                                       std::to_string(data_bytes) + " bytes of data");
  }
  Result<int64_t> bytes = byte_size(entry);
  if (!bytes.ok()) return bytes.status();
  if (*bytes != entry.end - entry.begin) {
    return tensor_loss(entry.name, "dtype and shape need " + std::to_string(*bytes) +
                                       " bytes, data_offsets give " +
                                       std::to_string(entry.end - entry.begin));
  }
  return entry;
}

Status read_metadata(const Json& json, Safetensors& file) {
  if (!std::holds_alternative<Json::Object>(json.value)) {
    return data_loss("__metadata__: expected an object, got " + std::string(json.type_name()));
  }
  for (const JsonMember& member : json.members()) {
    const auto* text = std::get_if<std::string>(&member.value.value);
    if (text == nullptr) return data_loss("__metadata__: \"" + member.key + "\" is no string");
    file.metadata[member.key] = *text;
  }
  return {};
}

/// In file order the tensors must follow each other exactly.
Status check_cover(std::vector<Entry>& entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at) {
      return tensor_loss(
          entry.name, std::string(entry.begin < at ? "overlaps" : "leaves a gap to") +
                          " the tensor before it: begins at byte " + std::to_string(entry.begin) +
                          ", expected " + std::to_string(at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    const std::string last =
        entries.empty() ? "the header"
                        : "tensor \"" + std::string(entries.back().name) + "\", the last one,";
    return data_loss(std::to_string(data_bytes - at) + " bytes behind " + last +
                     " belong to no tensor");
  }
  return {};
}

Result<HostTensor> copy_tensor(const Entry& entry, std::string_view data) {
  HostTensor tensor(entry.dtype, entry.shape.empty() ? std::vector<int64_t>{1} : entry.shape);
  const std::string_view bytes =
      data.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  if (entry.dtype == DType::kBool) {
    for (char byte : bytes) {
      if (byte != 0 && byte != 1) return tensor_loss(entry.name, "a boolean that is not 0 or 1");
    }
  }
  return tensor;
}

}  // namespace

Result<const HostTensor*> Safetensors::tensor(std::string_view name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    return Status(StatusCode::kNotFound, "tensor \"" + std::string(name) + "\": not in the file");
  }
  return &found->second;
}

Result<std::string> Safetensors::meta(std::string_view key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return Status(StatusCode::kNotFound, "metadata \"" + std::string(key) + "\": not in the file");
  }
  return found->second;
}

Result<Safetensors> parse_safetensors(std::string_view bytes) {
  if (bytes.size() < 8) return data_loss("shorter than the 8 bytes of a header length");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = (length << 8) | static_cast<unsigned char>(bytes[i]);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) || length > bytes.size() - 8) {
    return data_loss("header of " + std::to_string(length) + " bytes in a file of " +
                     std::to_string(bytes.size()));
  }
  const std::string_view data = bytes.substr(8 + static_cast<size_t>(length));
  const auto data_bytes = static_cast<int64_t>(data.size());
  Result<Json> header = parse_json(bytes.substr(8, static_cast<size_t>(length)));
  if (!header.ok()) return data_loss("header: " + header.status().message());
  if (!std::holds_alternative<Json::Object>(header->value)) {
    return data_loss("header: expected an object, got " + std::string(header->type_name()));
  }
  Safetensors file;
  std::vector<Entry> entries;
  for (const JsonMember& member : header->members()) {
    if (member.key == "__metadata__") {
      LINESTATE_RETURN_IF_ERROR(read_metadata(member.value, file));
      continue;
    }
    Result<Entry> entry = read_entry(member, data_bytes);
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(*entry));
  }
  LINESTATE_RETURN_IF_ERROR(check_cover(entries, data_bytes));
  for (const Entry& entry : entries) {
    Result<HostTensor> tensor = copy_tensor(entry, data);
    if (!tensor.ok()) return tensor.status();
    file.tensors.emplace(entry.name, std::move(*tensor));
  }
  return file;
}

Result<Safetensors> read_safetensors(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error);
  if (!std::filesystem::exists(kind)) {
    return Status(StatusCode::kNotFound, path + ": no such file");
  }
  if (std::filesystem::is_directory(kind)) return Status(StatusCode::kIo, path + ": a directory");
  std::ifstream stream(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream.is_open() || stream.bad()) return Status(StatusCode::kIo, path + ": cannot be read");
  Result<Safetensors> file = parse_safetensors(bytes);
  if (!file.ok()) return Status(file.status().code(), path + ": " + file.status().message());
  return file;
}

}  // namespace linestate::testing
