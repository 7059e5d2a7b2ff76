// Reader for safetensors files: 8 bytes little-endian header length, a JSON header, then the
// tensors' bytes.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "linestate/status.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

struct Safetensors {
  std::map<std::string, std::string, std::less<>> metadata;
  /// A scalar (shape []) comes as shape [1].
  std::map<std::string, HostTensor, std::less<>> tensors;

  /// Errors: kNotFound naming the tensor.
  Result<const HostTensor*> tensor(std::string_view name) const;
  bool has(std::string_view name) const { return tensors.find(name) != tensors.end(); }
  /// Errors: kNotFound naming the key.
  Result<std::string> meta(std::string_view key) const;
};

/// dtypes BOOL, U8, I32, I64, BF16, F16, F32, F64. The tensors must cover the data without gaps or
/// overlaps, as the format demands. Errors: kDataLoss naming the tensor.
Result<Safetensors> parse_safetensors(std::string_view bytes);

/// Errors: kNotFound (no such file), kIo, and kDataLoss as above; all name the file.
Result<Safetensors> read_safetensors(const std::string& path);

}  // namespace linestate::testing
