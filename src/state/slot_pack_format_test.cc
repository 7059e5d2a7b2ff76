#include "state/slot_pack_format.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

namespace linestate {
namespace {

// The tables of the document against the structs.
TEST(SlotPackFormat, DocumentAndCodeAgree) {
  std::ifstream file(std::string(LINESTATE_SOURCE_DIR) + "/docs/formats/slot_pack.md");
  ASSERT_TRUE(file.good());
  std::ostringstream documented;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    int64_t offset = 0;
    int64_t size = 0;
    std::string bar;
    std::string field;
    if (cells >> bar >> offset >> bar >> size >> bar >> field) {
      documented << offset << " " << size << " " << field << "\n";
    }
  }
  std::ostringstream coded;
#define LINESTATE_FIELD(type, field) \
  coded << offsetof(type, field) << " " << sizeof(type::field) << " " << #field << "\n"
  LINESTATE_FIELD(PackHeader, magic);
  LINESTATE_FIELD(PackHeader, format_version);
  LINESTATE_FIELD(PackHeader, numerics_version);
  LINESTATE_FIELD(PackHeader, total_bytes);
  LINESTATE_FIELD(PackHeader, position);
  LINESTATE_FIELD(PackHeader, num_layers);
  LINESTATE_FIELD(PackHeader, state_dtype);
  LINESTATE_FIELD(PackHeader, window_dtype);
  LINESTATE_FIELD(PackHeader, scheme);
  LINESTATE_FIELD(PackHeader, reserved_39);
  LINESTATE_FIELD(PackHeader, group);
  LINESTATE_FIELD(PackHeader, reserved_44);
  LINESTATE_FIELD(PackHeader, reserved_48);
  LINESTATE_FIELD(PackHeader, header_checksum);
  LINESTATE_FIELD(PackLayer, layer_id);
  LINESTATE_FIELD(PackLayer, layout);
  LINESTATE_FIELD(PackLayer, reserved_5);
  LINESTATE_FIELD(PackLayer, heads);
  LINESTATE_FIELD(PackLayer, k_dim);
  LINESTATE_FIELD(PackLayer, v_dim);
  LINESTATE_FIELD(PackLayer, conv_channels);
  LINESTATE_FIELD(PackLayer, conv_tail);
  LINESTATE_FIELD(PackLayer, recurrent_offset);
  LINESTATE_FIELD(PackLayer, recurrent_bytes);
  LINESTATE_FIELD(PackLayer, window_offset);
  LINESTATE_FIELD(PackLayer, window_bytes);
  LINESTATE_FIELD(PackLayer, recurrent_checksum);
  LINESTATE_FIELD(PackLayer, window_checksum);
#undef LINESTATE_FIELD
  EXPECT_EQ(documented.str(), coded.str());
}

}  // namespace
}  // namespace linestate
