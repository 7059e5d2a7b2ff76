#include "linestate/state/slot_pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "linestate/version.h"
#include "state/crc64.h"
#include "state/slot_pack_format.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;
using Bytes = std::vector<std::byte>;

// Two kinds of layers, K that 32 does not divide, a window whose bytes 16 does not divide.
PoolSpec spec_of(DType state = DType::kF32, DType window = DType::kBF16) {
  PoolSpec spec;
  spec.state_dtype = state;
  spec.window_dtype = window;
  spec.layers.push_back({2, StateLayout::kVK, 2, 48, 16, 33, 3});
  spec.layers.push_back({5, StateLayout::kKV, 3, 32, 32, 0, 0});
  return spec;
}

StatePool filled_pool(const PoolSpec& spec, int64_t slots, uint64_t seed, double scale = 1.0) {
  Result<StatePool> pool = StatePool::create(spec, slots);
  EXPECT_TRUE(pool.ok());
  for (const TensorView& plane : pool->planes()) testing::fill_normal(plane, seed++, scale);
  return *std::move(pool);
}

Bytes packed(const StatePool& pool, int32_t slot, int64_t position, PackScheme scheme) {
  const Result<int64_t> size = slot_pack_bytes(pool.spec(), scheme);
  EXPECT_TRUE(size.ok());
  Bytes bytes(static_cast<size_t>(*size), std::byte{0xaa});
  const Result<int64_t> written = pack_slot(pool, slot, position, scheme, bytes);
  EXPECT_TRUE(written.ok()) << written.status().to_string();
  EXPECT_EQ(*written, *size);
  return bytes;
}

std::vector<HostTensor> copy_of_pool(const StatePool& pool) {
  std::vector<HostTensor> copy;
  for (const TensorView& plane : pool.planes()) copy.push_back(testing::copy_of(plane));
  return copy;
}

ConstTensorView slot_of(const ConstTensorView& plane, int64_t slot) {
  return plane.slice(0, slot, slot + 1);
}

void expect_same_slot(const StatePool& a, int64_t slot_a, const StatePool& b, int64_t slot_b) {
  ASSERT_EQ(a.planes().size(), b.planes().size());
  for (size_t i = 0; i < a.planes().size(); ++i) {
    EXPECT_EQ(
        testing::bit_difference(slot_of(a.planes()[i], slot_a), slot_of(b.planes()[i], slot_b)), "")
        << "plane " << i;
  }
}

template <typename Value>
void poke(Bytes& bytes, size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// Makes a changed header valid again, as far as its checksum goes.
void fix_header(Bytes& bytes) {
  PackHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto table = std::span<const std::byte>(bytes).subspan(
      sizeof(header), header.num_layers * sizeof(PackLayer));
  poke(bytes, offsetof(PackHeader, header_checksum), pack_header_checksum(header, table));
}

TEST(SlotPack, ExactRoundTripHasTheBitsAndThePosition) {
  for (DType state : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType window : {DType::kF32, DType::kBF16}) {
      const StatePool from = filled_pool(spec_of(state, window), 3, 1);
      const StatePool to = filled_pool(spec_of(state, window), 4, 50);
      const std::vector<HostTensor> before = copy_of_pool(to);
      const Bytes bytes = packed(from, 1, 12345678901, PackScheme::kExact);
      const Result<int64_t> position = unpack_slot(bytes, to, 2);
      ASSERT_TRUE(position.ok()) << position.status().to_string();
      EXPECT_EQ(*position, 12345678901);
      expect_same_slot(from, 1, to, 2);
      for (size_t i = 0; i < before.size(); ++i) {
        for (int64_t s : {0, 1, 3}) {
          EXPECT_EQ(testing::bit_difference(slot_of(to.planes()[i], s),
                                            slot_of(ConstTensorView(before[i]), s)),
                    "");
        }
      }
    }
  }
}

TEST(SlotPack, ExactKeepsNanPayloads) {
  const StatePool from = filled_pool(spec_of(), 2, 1);
  const StatePool to = filled_pool(spec_of(), 2, 9);
  const uint32_t bits = 0x7fc12345u;
  std::memcpy(static_cast<char*>(from.recurrent(0).data) + 20, &bits, sizeof(bits));
  ASSERT_TRUE(unpack_slot(packed(from, 0, 1, PackScheme::kExact), to, 1).ok());
  expect_same_slot(from, 0, to, 1);
}

TEST(SlotPack, BytesDependOnTheSlotAlone) {
  const StatePool a = filled_pool(spec_of(), 2, 1);
  const StatePool b = filled_pool(spec_of(), 7, 90);
  for (PackScheme scheme : {PackScheme::kExact, PackScheme::kF16, PackScheme::kInt8}) {
    ASSERT_TRUE(unpack_slot(packed(a, 1, 64, PackScheme::kExact), b, 6).ok());
    EXPECT_EQ(packed(a, 1, 64, scheme), packed(b, 6, 64, scheme)) << pack_scheme_name(scheme);
  }
}

// An engine's pool: pages that hold all layers of a slot, windows channel-major with padding.
TEST(SlotPack, AdoptedPoolsOfAnyStride) {
  const PoolSpec spec = spec_of();
  constexpr int64_t kPage = 9000;  // f32 elements
  HostTensor pages(DType::kF32, {4, kPage});
  HostTensor windows(DType::kBF16, {4, 40, 5});
  testing::fill_nan(pages);
  testing::fill_nan(windows);
  std::vector<AdoptedLayer> layers(2);
  auto plane = [&](int64_t offset, std::initializer_list<int64_t> shape,
                   std::array<int64_t, 5> stride) {
    TensorView view(static_cast<float*>(pages.data()) + offset, DType::kF32, shape);
    view.stride = stride;
    return view;
  };
  layers[0].recurrent = plane(3, {4, 2, 16, 48}, {kPage, 1000, 50, 1});
  layers[1].recurrent = plane(4000, {4, 3, 32, 32}, {kPage, 1, 3, 128});
  layers[0].conv_window = windows.view().slice(1, 0, 33).slice(2, 1, 4);
  Result<StatePool> adopted = StatePool::adopt(spec, layers);
  ASSERT_TRUE(adopted.ok()) << adopted.status().to_string();
  const HostTensor pages_before = pages.clone();

  const StatePool from = filled_pool(spec, 2, 7);
  for (PackScheme scheme : {PackScheme::kExact, PackScheme::kF16, PackScheme::kInt8}) {
    const StatePool plain = filled_pool(spec, 2, 70);
    const Bytes bytes = packed(from, 0, 192, scheme);
    ASSERT_TRUE(unpack_slot(bytes, *adopted, 3).ok());
    ASSERT_TRUE(unpack_slot(bytes, plain, 0).ok());
    expect_same_slot(plain, 0, *adopted, 3);
    if (scheme == PackScheme::kExact) {
      EXPECT_EQ(packed(*adopted, 3, 192, scheme), bytes);
    }
  }
  EXPECT_EQ(testing::bit_difference(pages.view().slice(0, 0, 3),
                                    ConstTensorView(pages_before).slice(0, 0, 3)),
            "")
      << "other slots' pages";
}

// The error promised in the header, element by element: relative to the value for f16, to the
// largest of its group for int8.
TEST(SlotPack, RoundTripErrorIsWithinTheStatedBound) {
  for (double scale : {1.0, 1e-3, 1e3, 1e-7}) {
    const StatePool from = filled_pool(spec_of(), 1, 3, scale);
    for (PackScheme scheme : {PackScheme::kF16, PackScheme::kInt8}) {
      const StatePool to = filled_pool(spec_of(), 1, 30);
      ASSERT_TRUE(unpack_slot(packed(from, 0, 64, scheme), to, 0).ok());
      EXPECT_EQ(testing::bit_difference(to.conv_window(0), from.conv_window(0)), "")
          << "windows are never quantised";
      for (int64_t layer : {0, 1}) {
        const int64_t n = from.recurrent(layer).shape[3];
        const auto* x = static_cast<const float*>(from.recurrent(layer).data);
        const auto* y = static_cast<const float*>(to.recurrent(layer).data);
        for (int64_t at = 0; at < from.recurrent(layer).num_elements(); ++at) {
          double bound = std::max(std::fabs(x[at]) * 0x1p-11, 0x1p-25);
          if (scheme == PackScheme::kInt8) {
            const int64_t begin = at - at % n + at % n / 32 * 32;
            const int64_t end = std::min(begin + 32, at - at % n + n);
            double most = 0.0;
            for (int64_t i = begin; i < end; ++i) most = std::max<double>(most, std::fabs(x[i]));
            bound = most / 253;
          }
          ASSERT_LE(std::fabs(double{x[at]} - double{y[at]}), bound)
              << pack_scheme_name(scheme) << " layer " << layer << " element " << at;
        }
      }
    }
  }
}

TEST(SlotPack, RelativeRmsErrorIsTheStatedOne) {
  PoolSpec spec;
  spec.layers.push_back({0, StateLayout::kVK, 4, 128, 128, 0, 0});
  const StatePool from = filled_pool(spec, 1, 11);
  const StatePool to = filled_pool(spec, 1, 12);
  auto error = [&](PackScheme scheme) {
    EXPECT_TRUE(unpack_slot(packed(from, 0, 64, scheme), to, 0).ok());
    const double rel = testing::compare(to.recurrent(0), from.recurrent(0)).rel;
    RecordProperty(std::string(pack_scheme_name(scheme)), std::to_string(rel));
    return rel;
  };
  EXPECT_EQ(error(PackScheme::kExact), 0.0);
  EXPECT_NEAR(error(PackScheme::kF16), 2.1e-4, 0.05e-4);
  EXPECT_NEAR(error(PackScheme::kInt8), 5.4e-3, 0.1e-3);
}

TEST(SlotPack, Int8EdgeGroups) {
  const StatePool from = filled_pool(spec_of(), 1, 1);
  const StatePool to = filled_pool(spec_of(), 1, 2);
  auto* x = static_cast<float*>(from.recurrent(0).data);  // rows of 48: groups of 32 and 16
  std::fill(x, x + 32, -0.0f);                            // zeros
  std::fill(x + 32, x + 48, 0x1p-149f);                   // the scale is no positive f32
  for (int i = 0; i < 32; ++i) x[48 + i] = std::numeric_limits<float>::max() * (i % 2 ? 1 : -1);
  for (int i = 0; i < 16; ++i) x[80 + i] = 0x1p-140f * static_cast<float>(i);
  ASSERT_TRUE(unpack_slot(packed(from, 0, 1, PackScheme::kInt8), to, 0).ok());
  const auto* y = static_cast<const float*>(to.recurrent(0).data);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(y[i], 0.0f);
  for (int i = 32; i < 48; ++i) EXPECT_LE(std::fabs(y[i] - x[i]), 0x1p-143f);
  for (int i = 48; i < 80; ++i) {
    EXPECT_TRUE(std::isfinite(y[i]));
    EXPECT_NEAR(y[i] / x[i], 1.0, 1e-6);
  }
  for (int i = 80; i < 96; ++i) EXPECT_LE(std::fabs(y[i] - x[i]), 0x1p-143f + x[95] / 253);
}

TEST(SlotPack, SchemesRefuseWhatTheyCannotHold) {
  const StatePool pool = filled_pool(spec_of(), 1, 1);
  auto* x = static_cast<float*>(pool.recurrent(1).data);
  auto attempt = [&](float value, PackScheme scheme) {
    x[77] = value;
    Bytes out(static_cast<size_t>(*slot_pack_bytes(pool.spec(), scheme)));
    const Status status = pack_slot(pool, 0, 64, scheme, out).status();
    if (!status.ok()) {
      EXPECT_EQ(read_slot_pack(out).status().code(), StatusCode::kDataLoss);
    }
    return status;
  };
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(attempt(65504.0f, PackScheme::kF16).ok());
  EXPECT_TRUE(attempt(inf, PackScheme::kF16).ok()) << "f16 has infinities";
  EXPECT_TRUE(attempt(nan, PackScheme::kF16).ok());
  const Status wide = attempt(7e4f, PackScheme::kF16);
  EXPECT_EQ(wide.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(wide.message().find("layers[1].recurrent: expected values that scheme f16"),
            std::string::npos)
      << wide.message();
  EXPECT_EQ(attempt(inf, PackScheme::kInt8).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(attempt(nan, PackScheme::kInt8).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(attempt(nan, PackScheme::kExact).ok());
}

TEST(SlotPack, AnotherStateDtypeOnlyOnRequest) {
  UnpackOptions allow;
  allow.allow_state_dtype_change = true;
  for (DType source : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType target : {DType::kF32, DType::kBF16, DType::kF16}) {
      if (source == target) continue;
      const StatePool from = filled_pool(spec_of(source), 1, 1);
      const StatePool to = filled_pool(spec_of(target), 1, 2);
      const std::vector<HostTensor> before = copy_of_pool(to);
      const Bytes bytes = packed(from, 0, 64, PackScheme::kExact);
      const Status refused = unpack_slot(bytes, to, 0).status();
      EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(refused.message().find("buffer.state_dtype: expected"), std::string::npos);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(testing::bit_difference(to.planes()[i], before[i]), "");
      }
      ASSERT_TRUE(unpack_slot(bytes, to, 0, allow).ok());
      for (int64_t layer : {0, 1}) {
        const HostTensor rounded = testing::cast_of(from.recurrent(layer), target);
        EXPECT_EQ(testing::bit_difference(to.recurrent(layer), rounded), "");
      }
    }
  }
  const StatePool wide = filled_pool(spec_of(), 1, 1, 1e6);
  const StatePool narrow = filled_pool(spec_of(DType::kF16), 1, 2);
  const std::vector<HostTensor> before = copy_of_pool(narrow);
  for (PackScheme scheme : {PackScheme::kExact, PackScheme::kInt8}) {
    const Status status = unpack_slot(packed(wide, 0, 64, scheme), narrow, 0, allow).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("in the range of f16"), std::string::npos) << status.message();
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(testing::bit_difference(narrow.planes()[i], before[i]), "") << "half written";
  }
}

TEST(SlotPack, AnyOtherModelIsRefusedByName) {
  const StatePool from = filled_pool(spec_of(), 1, 1);
  const Bytes bytes = packed(from, 0, 64, PackScheme::kExact);
  struct Case {
    PoolSpec spec;
    const char* text;
  };
  std::vector<Case> cases(9, Case{spec_of(), ""});
  cases[0].spec.layers[0].layer_id = 3;
  cases[0].text = "buffer.layers[0].layer_id: expected 3 as in the pool, got 2";
  cases[1].spec.layers[1].layout = StateLayout::kVK;
  cases[1].text = "buffer.layers[1].layout: expected 0 as in the pool, got 1";
  cases[2].spec.layers[0].heads = 4;
  cases[2].text = "buffer.layers[0].heads: expected 4";
  cases[3].spec.layers[0].k_dim = 16;
  cases[3].text = "buffer.layers[0].k_dim: expected 16";
  cases[4].spec.layers[0].v_dim = 48;
  cases[4].text = "buffer.layers[0].v_dim: expected 48";
  cases[5].spec.layers[0].conv_channels = 99;
  cases[5].text = "buffer.layers[0].conv_channels: expected 99";
  cases[6].spec.layers[0].conv_tail = 1;
  cases[6].text = "buffer.layers[0].conv_tail: expected 1";
  cases[7].spec.layers.pop_back();
  cases[7].text = "buffer.num_layers: expected 1 as in the pool, got 2";
  cases[8].spec.window_dtype = DType::kF32;
  cases[8].text = "buffer.window_dtype: expected f32 as in the pool, got bf16";
  UnpackOptions all;
  all.allow_state_dtype_change = all.allow_other_numerics = true;
  for (const Case& item : cases) {
    const StatePool to = filled_pool(item.spec, 1, 2);
    const std::vector<HostTensor> before = copy_of_pool(to);
    const Status status = unpack_slot(bytes, to, 0, all).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << item.text;
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(testing::bit_difference(to.planes()[i], before[i]), "");
    }
  }
}

TEST(SlotPack, AnotherNumericsVersionOnlyOnRequest) {
  const StatePool pool = filled_pool(spec_of(), 2, 1);
  Bytes bytes = packed(pool, 0, 64, PackScheme::kExact);
  poke(bytes, offsetof(PackHeader, numerics_version), uint32_t{kNumericsVersion + 1});
  fix_header(bytes);
  const Status status = unpack_slot(bytes, pool, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("buffer.numerics_version: expected"), std::string::npos);
  UnpackOptions allow;
  allow.allow_other_numerics = true;
  EXPECT_EQ(*unpack_slot(bytes, pool, 1, allow), 64);
  expect_same_slot(pool, 0, pool, 1);
}

TEST(SlotPack, EveryDamagedByteAndEveryTruncationIsFound) {
  const StatePool from = filled_pool(spec_of(), 1, 1);
  const StatePool to = filled_pool(spec_of(), 1, 2);
  const std::vector<HostTensor> before = copy_of_pool(to);
  std::map<std::string, int> named;
  for (PackScheme scheme : {PackScheme::kExact, PackScheme::kInt8}) {
    const Bytes good = packed(from, 0, 64, scheme);
    auto expect_damaged = [&](const Bytes& bytes, const std::string& how) {
      const Status status = unpack_slot(bytes, to, 0).status();
      ASSERT_EQ(status.code(), StatusCode::kDataLoss) << how << ": " << status.message();
      ASSERT_EQ(status.message().substr(0, 11), "slot pack: ") << how;
      const std::string rest = status.message().substr(11);
      ++named[rest.substr(0, rest.find(": "))];
    };
    for (size_t at = 0; at < good.size(); ++at) {
      Bytes bytes = good;
      bytes[at] ^= static_cast<std::byte>(1u << (at % 8));
      ASSERT_NO_FATAL_FAILURE(expect_damaged(bytes, "byte " + std::to_string(at)));
    }
    for (size_t size = 0; size < good.size(); size += size < 300 ? 1 : 37) {
      // A vector of exactly this size: a sanitizer sees every read behind it.
      ASSERT_NO_FATAL_FAILURE(
          expect_damaged(Bytes(good.begin(), good.begin() + size), "size " + std::to_string(size)));
    }
  }
  for (const char* field :
       {"header", "magic", "format_version", "total_bytes", "num_layers", "header_checksum",
        "layers[0].recurrent", "layers[0].window", "layers[1].recurrent"}) {
    EXPECT_GT(named[field], 0) << field;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(testing::bit_difference(to.planes()[i], before[i]), "") << "half written";
  }
}

// Headers that a bug or a foreign writer made, with a checksum that holds.
TEST(SlotPack, ImpossibleHeadersWithGoodChecksumsAreRefusedByField) {
  const StatePool pool = filled_pool(spec_of(), 1, 1);
  const Bytes good = packed(pool, 0, 64, PackScheme::kInt8);
  const size_t layer = sizeof(PackHeader);
  struct Case {
    size_t at;
    int bytes;
    int64_t value;
    const char* text;
  };
  const Case cases[] = {
      {offsetof(PackHeader, position), 8, -1, "position: expected >= 0, got -1"},
      {offsetof(PackHeader, numerics_version), 4, -1, "numerics_version"},
      {offsetof(PackHeader, state_dtype), 1, 3, "state_dtype: expected 0 to 2, got 3"},
      {offsetof(PackHeader, window_dtype), 1, 7, "window_dtype: expected 0 to 2, got 7"},
      {offsetof(PackHeader, scheme), 1, 3, "scheme: expected 0 to 2, got 3"},
      {offsetof(PackHeader, scheme), 1, 1, "group: expected 0, got 32"},
      {offsetof(PackHeader, group), 4, 16, "group: expected 32, got 16"},
      {offsetof(PackHeader, reserved_39), 1, 1, "reserved"},
      {offsetof(PackHeader, reserved_44), 4, 1, "reserved"},
      {offsetof(PackHeader, reserved_48), 8, 1, "reserved"},
      {offsetof(PackHeader, total_bytes), 8, 400, "total_bytes: expected"},
      {layer + offsetof(PackLayer, layout), 1, 2, "layers[0].layout: expected 0 or 1, got 2"},
      {layer + offsetof(PackLayer, reserved_5), 1, 1, "layers[0].reserved"},
      {layer + offsetof(PackLayer, heads), 8, 0, "layers[0].heads: expected 1 to"},
      {layer + offsetof(PackLayer, heads), 8, int64_t{1} << 62, "layers[0].heads"},
      {layer + offsetof(PackLayer, heads), 8, 1 << 20, "layers[0].recurrent_bytes: expected"},
      {layer + offsetof(PackLayer, k_dim), 8, 17, "layers[0].k_dim"},
      {layer + offsetof(PackLayer, v_dim), 8, -16, "layers[0].v_dim"},
      {layer + offsetof(PackLayer, conv_channels), 8, 0, "layers[0]: expected conv_channels"},
      {layer + offsetof(PackLayer, conv_tail), 8, 4, "layers[0].conv_tail"},
      {layer + offsetof(PackLayer, recurrent_offset), 8, 0, "layers[0].recurrent_offset"},
      {layer + offsetof(PackLayer, recurrent_bytes), 8, INT64_MAX, "layers[0].recurrent_bytes"},
      {layer + offsetof(PackLayer, window_offset), 8, -16, "layers[0].window_offset"},
      {layer + offsetof(PackLayer, window_bytes), 8, 0, "layers[0].window_bytes"},
  };
  for (const Case& item : cases) {
    Bytes bytes = good;
    std::memcpy(bytes.data() + item.at, &item.value, static_cast<size_t>(item.bytes));
    fix_header(bytes);
    const Status status = read_slot_pack(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << item.text;
    EXPECT_NE(status.message().find(item.text), std::string::npos)
        << status.message() << " for " << item.text;
  }
}

TEST(SlotPack, PaddingWithAGoodChecksumMustStillBeZero) {
  const StatePool pool = filled_pool(spec_of(), 1, 1);
  Bytes bytes = packed(pool, 0, 64, PackScheme::kExact);
  PackLayer layer;
  std::memcpy(&layer, bytes.data() + sizeof(PackHeader), sizeof(layer));
  ASSERT_GT(layer.window_bytes, 33 * 3 * 2);
  const auto place = std::span(bytes).subspan(static_cast<size_t>(layer.window_offset),
                                              static_cast<size_t>(layer.window_bytes));
  place.back() = std::byte{1};
  layer.window_checksum = crc64(place);
  poke(bytes, sizeof(PackHeader), layer);
  fix_header(bytes);
  const Status status = read_slot_pack(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("layers[0].window: expected zeros behind"), std::string::npos)
      << status.message();
}

TEST(SlotPack, InfoSaysWhatIsInside) {
  const StatePool pool = filled_pool(spec_of(DType::kBF16, DType::kF32), 1, 1);
  Bytes bytes = packed(pool, 0, 640, PackScheme::kInt8);
  bytes.resize(bytes.size() + 100);  // an engine's buffer may be larger
  const Result<SlotPackInfo> info = read_slot_pack(bytes);
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->position, 640);
  EXPECT_EQ(info->scheme, PackScheme::kInt8);
  EXPECT_EQ(info->numerics_version, kNumericsVersion);
  EXPECT_EQ(info->total_bytes, static_cast<int64_t>(bytes.size()) - 100);
  EXPECT_EQ(info->spec.state_dtype, DType::kBF16);
  EXPECT_EQ(info->spec.window_dtype, DType::kF32);
  ASSERT_EQ(info->spec.layers.size(), 2u);
  EXPECT_EQ(info->spec.layers[0].conv_channels, 33);
  EXPECT_EQ(info->spec.layers[1].layer_id, 5);
  EXPECT_EQ(*unpack_slot(bytes, pool, 0), 640);
}

TEST(SlotPack, UnalignedBuffers) {
  const StatePool from = filled_pool(spec_of(), 1, 1);
  for (PackScheme scheme : {PackScheme::kExact, PackScheme::kF16, PackScheme::kInt8}) {
    const Bytes good = packed(from, 0, 64, scheme);
    Bytes shifted(good.size() + 3);
    ASSERT_TRUE(pack_slot(from, 0, 64, scheme, std::span(shifted).subspan(3)).ok());
    EXPECT_TRUE(std::equal(good.begin(), good.end(), shifted.begin() + 3));
    const StatePool to = filled_pool(spec_of(), 1, 2);
    const StatePool to_shifted = filled_pool(spec_of(), 1, 2);
    ASSERT_TRUE(unpack_slot(good, to, 0).ok());
    ASSERT_TRUE(unpack_slot(std::span<const std::byte>(shifted).subspan(3), to_shifted, 0).ok());
    expect_same_slot(to, 0, to_shifted, 0);
  }
}

TEST(SlotPack, RefusesBadArgumentsByName) {
  StatePool pool = filled_pool(spec_of(), 2, 1);
  Bytes out(static_cast<size_t>(*slot_pack_bytes(pool.spec(), PackScheme::kExact)));
  auto message = [&](int32_t slot, int64_t position, PackScheme scheme, size_t size) {
    const Status status =
        pack_slot(pool, slot, position, scheme, std::span(out).first(size)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  const PackScheme exact = PackScheme::kExact;
  EXPECT_NE(message(2, 0, exact, out.size()).find("slot: expected 0 to 1, got 2"),
            std::string::npos);
  EXPECT_NE(message(-1, 0, exact, out.size()).find("slot"), std::string::npos);
  EXPECT_NE(message(0, -1, exact, out.size()).find("position: expected >= 0"), std::string::npos);
  EXPECT_NE(message(0, 0, exact, out.size() - 1).find("out: expected at least"), std::string::npos);
  EXPECT_NE(message(0, 0, static_cast<PackScheme>(3), out.size()).find("scheme: expected"),
            std::string::npos);
  EXPECT_EQ(slot_pack_bytes({}, exact).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(slot_pack_bytes(pool.spec(), static_cast<PackScheme>(9)).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(pack_slot(pool, 0, 0, exact, out).ok());
  EXPECT_EQ(unpack_slot(out, pool, 2).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(pool.release_memory().ok());
  EXPECT_EQ(pack_slot(pool, 0, 0, exact, out).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(unpack_slot(out, pool, 0).status().code(), StatusCode::kFailedPrecondition);
}

// The file was written by another program that knows only the document: value i of a layer is
// ((37 i) mod 101 - 50) / 64, value i of the window i / 8.
TEST(SlotPack, ReadsAPackWrittenFromTheDocument) {
  PoolSpec spec;
  spec.layers.push_back({0, StateLayout::kVK, 1, 48, 16, 3, 3});
  spec.layers.push_back({1, StateLayout::kKV, 1, 16, 16, 0, 0});
  struct Case {
    const char* file;
    DType dtype;
    int64_t position;
  };
  for (const Case& item :
       {Case{"exact_f16", DType::kF16, 128}, Case{"exact_f32", DType::kF32, 64},
        Case{"exact_bf16", DType::kBF16, 192}, Case{"f16_of_f32", DType::kF32, 64},
        Case{"int8_of_f32", DType::kF32, 64}}) {
    std::ifstream file(
        std::string(LINESTATE_SOURCE_DIR) + "/tests/fuzz_corpus/fuzz_slot_pack/" + item.file,
        std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const auto pack = std::as_bytes(std::span(bytes));
    spec.state_dtype = item.dtype;
    const StatePool pool = filled_pool(spec, 1, 1);
    const Result<int64_t> position = unpack_slot(pack, pool, 0);
    ASSERT_TRUE(position.ok()) << item.file << ": " << position.status().to_string();
    EXPECT_EQ(*position, item.position);
    const double tolerance = std::string(item.file) == "int8_of_f32" ? 0.79 / 253 : 0.0;
    for (int64_t layer : {0, 1}) {
      const HostTensor state = testing::copy_of(pool.recurrent(layer));
      for (int64_t i = 0; i < state.num_elements(); ++i) {
        ASSERT_NEAR(state.at(i), static_cast<double>(i * 37 % 101 - 50) / 64, tolerance)
            << item.file << " layer " << layer << " value " << i;
      }
    }
    const HostTensor window = testing::copy_of(pool.conv_window(0));
    for (int64_t i = 0; i < 9; ++i) ASSERT_EQ(window.at(i), static_cast<double>(i) / 8);
    // And the writer here makes the same bytes.
    if (tolerance == 0.0) {
      const PackScheme scheme =
          std::string(item.file) == "f16_of_f32" ? PackScheme::kF16 : PackScheme::kExact;
      const Bytes again = packed(pool, 0, item.position, scheme);
      EXPECT_TRUE(std::equal(again.begin(), again.end(), pack.begin(), pack.end())) << item.file;
    }
  }
}

}  // namespace
}  // namespace linestate
