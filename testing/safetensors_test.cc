#include "testing/safetensors.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace linestate::testing {
namespace {

/// A file with this header and `data_bytes` bytes 0, 1, 2, ... of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i & 0xff);
  return out;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  std::ostringstream out;
  out << '"' << name << "\":{\"dtype\":\"" << dtype << "\",\"shape\":" << shape
      << ",\"data_offsets\":" << offsets << '}';
  return out.str();
}

/// "{first,second}"
std::string header_of(const std::string& first, const std::string& second = {}) {
  std::ostringstream out;
  out << '{' << first << (second.empty() ? "" : ",") << second << '}';
  return out.str();
}

TEST(Safetensors, ReadsEveryDtype) {
  std::ostringstream members;
  members << "\"__metadata__\":{\"op\":\"x\",\"note\":\"\"}," << entry("b", "BOOL", "[2]", "[0,2]")
          << ',' << entry("u", "U8", "[2]", "[2,4]") << ',' << entry("i", "I32", "[1]", "[4,8]")
          << ',' << entry("l", "I64", "[1,1]", "[8,16]") << ','
          << entry("h", "BF16", "[2]", "[16,20]") << ',' << entry("f16", "F16", "[2]", "[20,24]")
          << ',' << entry("f", "F32", "[]", "[24,28]") << ',' << entry("d", "F64", "[1]", "[28,36]")
          << ',' << entry("none", "F32", "[0,7]", "[36,36]");
  const std::string header = header_of(members.str()) + "   ";
  const Result<Safetensors> file = parse_safetensors(file_of(header, 36));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(*file->meta("op"), "x");
  EXPECT_EQ(file->meta("seed").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(file->tensors.size(), 9u);
  EXPECT_EQ((*file->tensor("b"))->dtype(), DType::kBool);
  EXPECT_EQ((*file->tensor("b"))->at(1), 1.0);
  EXPECT_EQ((*file->tensor("u"))->at(0), 2.0);
  EXPECT_EQ((*file->tensor("i"))->at(0), double{0x07060504});
  EXPECT_EQ((*file->tensor("l"))->shape(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ((*file->tensor("f"))->shape(), (std::vector<int64_t>{1}));
  EXPECT_EQ((*file->tensor("none"))->num_elements(), 0);
  EXPECT_EQ(file->tensor("gone").status().message(), "tensor \"gone\": not in the file");
}

TEST(Safetensors, EmptyFileOfTensors) {
  const Result<Safetensors> file = parse_safetensors(file_of("{}", 0));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_TRUE(file->tensors.empty());
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* expected;  // part of the message
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t data_bytes) {
  return file_of(header_of(entry("w", dtype, shape, offsets)), data_bytes);
}

std::string with_length(std::string bytes, uint64_t length) {
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  return bytes;
}

std::string two(const std::string& first, const std::string& second, size_t data_bytes) {
  return file_of(header_of(entry("w", "U8", "[4]", first), entry("x", "U8", "[4]", second)),
                 data_bytes);
}

std::vector<Malformed> malformed_files() {
  const std::string good = one("F32", "[2]", "[0,8]", 8);
  const char* w = "tensor \"w\"";
  return {
      {"Empty", "", "shorter than"},
      {"SevenBytes", good.substr(0, 7), "shorter than"},
      {"HeaderCut", good.substr(0, 20), "header of"},
      {"LengthPastEnd", with_length(good, good.size() - 7), "header of"},
      {"LengthHuge", with_length(good, ~uint64_t{0}), "header of 18446744073709551615"},
      {"LengthSigned", with_length(good, uint64_t{1} << 63), "header of"},
      {"LengthZero", with_length(good, 0), "header: "},
      {"LengthShort", with_length(good, 10), "header: "},
      {"NotJson", file_of("hello", 0), "header: line 1"},
      {"NotAnObject", file_of("[1]", 0), "expected an object, got array"},
      {"DeepHeader", file_of(std::string(1000, '['), 0), "nested deeper"},
      {"MetadataIsAList", file_of("{\"__metadata__\":[]}", 0), "__metadata__"},
      {"MetadataHoldsANumber", file_of("{\"__metadata__\":{\"n\":1}}", 0), "\"n\" is no string"},
      {"RepeatedTensor",
       file_of(header_of(entry("w", "U8", "[1]", "[0,1]"), entry("w", "U8", "[1]", "[1,2]")), 2),
       "repeated key \"w\""},
      {"EntryIsANumber", file_of("{\"w\":3}", 0), w},
      {"NoDtype", file_of("{\"w\":{\"shape\":[0],\"data_offsets\":[0,0]}}", 0), w},
      {"NoShape", file_of("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0), w},
      {"NoOffsets", file_of("{\"w\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0), w},
      {"UnknownDtype", one("F8_E4M3", "[8]", "[0,8]", 8), w},
      {"FractionalSize", one("U8", "[1.5]", "[0,1]", 1), w},
      {"NegativeSize", one("F32", "[-2]", "[0,8]", 8), "negative size -2"},
      {"TwoNegativeSizes", one("F32", "[-2,-1]", "[0,8]", 8), "negative size"},
      {"NegativeBehindZero", one("F32", "[0,-1]", "[0,0]", 0), "negative size"},
      {"SizeOverflow", one("F32", "[4611686018427387904,2]", "[0,8]", 8), "overflows"},
      {"SizeOverflowToEight", one("U8", "[4294967296,4294967296,8]", "[0,8]", 8), "overflows"},
      {"OverflowBehindZero", one("U8", "[0,9223372036854775807,9]", "[0,0]", 0), "overflows"},
      {"SizeBeyondInt64", one("U8", "[9223372036854775808]", "[0,8]", 8), w},
      {"RankNine", one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1), "rank 9"},
      {"ShapeTooSmall", one("F32", "[1]", "[0,8]", 8), "need 4 bytes, data_offsets give 8"},
      {"ShapeTooLarge", one("F32", "[3]", "[0,8]", 8), "need 12 bytes"},
      {"WrongDtype", one("F64", "[2]", "[0,8]", 8), "need 16 bytes"},
      {"OneOffset", one("F32", "[2]", "[8]", 8), "expected 2 numbers"},
      {"ThreeOffsets", one("F32", "[2]", "[0,8,8]", 8), "expected 2 numbers"},
      {"NegativeOffset", one("F32", "[2]", "[-8,0]", 8), "bytes [-8, 0)"},
      {"OffsetsReversed", one("F32", "[0]", "[8,0]", 8), "bytes [8, 0)"},
      {"EndBehindFile", one("F32", "[2]", "[0,8]", 7), "with 7 bytes of data"},
      {"OffsetsFarAway", one("U8", "[8]", "[9223372036854775799,9223372036854775807]", 8), w},
      {"Truncated", good.substr(0, good.size() - 1), "with 7 bytes of data"},
      {"TrailingBytes", good + "x", "1 bytes behind tensor \"w\""},
      {"DataWithoutTensors", file_of("{}", 3), "3 bytes behind the header"},
      {"Overlap", two("[0,4]", "[2,6]", 6), "tensor \"x\": overlaps"},
      {"SameBytes", two("[0,4]", "[0,4]", 4), "overlaps"},
      {"Gap", two("[0,4]", "[5,9]", 9), "tensor \"x\": leaves a gap"},
      {"GapAtTheFront", one("U8", "[4]", "[1,5]", 5), "begins at byte 1, expected 0"},
      {"BooleanTwo", one("BOOL", "[3]", "[0,3]", 3), "not 0 or 1"},
  };
}

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsDataLoss) {
  const Result<Safetensors> file = parse_safetensors(GetParam().bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << file.status().to_string();
  EXPECT_NE(file.status().message().find(GetParam().expected), std::string::npos)
      << file.status().message();
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedSafetensors, ::testing::ValuesIn(malformed_files()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, EveryCutOfAGoodFileIsDataLoss) {
  const std::string good =
      file_of(header_of(entry("w", "F32", "[2]", "[0,8]"), entry("x", "U8", "[3]", "[8,11]")), 11);
  ASSERT_TRUE(parse_safetensors(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    const Result<Safetensors> file = parse_safetensors(good.substr(0, size));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(Safetensors, FileErrorsNameTheFile) {
  const Result<Safetensors> missing = read_safetensors("/nonexistent/a.safetensors");
  EXPECT_EQ(missing.status().to_string(), "not_found: /nonexistent/a.safetensors: no such file");
  const std::string folder = std::filesystem::temp_directory_path().string();
  EXPECT_EQ(read_safetensors(folder).status().code(), StatusCode::kIo);
  const std::string path = ::testing::TempDir() + "linestate_damaged.safetensors";
  std::ofstream(path, std::ios::binary) << one("F32", "[2]", "[0,8]", 7);
  const Result<Safetensors> damaged = read_safetensors(path);
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(damaged.status().message().find(path + ": tensor \"w\""), 0u)
      << damaged.status().message();
  std::remove(path.c_str());
}

TEST(Safetensors, ReadsEveryGoldenFile) {
  int count = 0;
  for (const auto& item :
       std::filesystem::directory_iterator(LINESTATE_SOURCE_DIR "/tests/golden")) {
    if (item.path().extension() != ".safetensors") continue;
    const Result<Safetensors> file = read_safetensors(item.path().string());
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_TRUE(file->meta("op").ok());
    EXPECT_FALSE(file->tensors.empty());
    ++count;
  }
  EXPECT_EQ(count, 36);
}

}  // namespace
}  // namespace linestate::testing
