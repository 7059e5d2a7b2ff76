// The safetensors reader: damaged input is an error, never a crash; what it takes is whole.
#include <cstdlib>
#include <string_view>

#include "testing/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const linestate::Result<linestate::testing::Safetensors> file =
      linestate::testing::parse_safetensors(bytes);
  if (!file.ok()) {
    if (file.status().code() != linestate::StatusCode::kDataLoss) std::abort();
    return 0;
  }
  size_t total = 0;
  for (const auto& [name, tensor] : file->tensors) {
    if (!file->has(name) || tensor.bytes() < 0) std::abort();
    if (tensor.num_elements() > 0) tensor.at(tensor.num_elements() - 1);
    total += static_cast<size_t>(tensor.bytes());
  }
  if (total > size) std::abort();
  return 0;
}
