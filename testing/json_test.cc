#include "testing/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace linestate::testing {
namespace {

Json parsed(std::string_view text) {
  Result<Json> json = parse_json(text);
  EXPECT_TRUE(json.ok()) << json.status().to_string();
  return json.ok() ? std::move(*json) : Json();
}

std::string error_of(std::string_view text, int max_depth = kJsonMaxDepth) {
  Result<Json> json = parse_json(text, max_depth);
  EXPECT_FALSE(json.ok()) << text;
  if (json.ok()) return {};
  EXPECT_EQ(json.status().code(), StatusCode::kDataLoss);
  return json.status().message();
}

TEST(JsonParse, KeepsTypesAndOrder) {
  const Json json =
      parsed(R"( {"z": [1, -2, 2.0, 1e3], "a": {"t": true, "n": null}, "s": "x\n"} )");
  ASSERT_EQ(json.members().size(), 3u);
  EXPECT_EQ(json.members()[0].key, "z");
  EXPECT_EQ(json.members()[1].key, "a");
  EXPECT_EQ(json.members()[2].key, "s");
  const Json::Array& z = json.members()[0].value.items();
  ASSERT_EQ(z.size(), 4u);
  EXPECT_EQ(std::get<int64_t>(z[0].value), 1);
  EXPECT_EQ(std::get<int64_t>(z[1].value), -2);
  EXPECT_EQ(std::get<double>(z[2].value), 2.0);
  EXPECT_EQ(std::get<double>(z[3].value), 1000.0);
  EXPECT_EQ(*json.get_string("s"), "x\n");
  const Json* a = json.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(*a->get_bool("t"), true);
  ASSERT_NE(a->find("n"), nullptr);
  EXPECT_TRUE(a->find("n")->is_null());
  EXPECT_EQ(dump_json(json), R"({"z":[1,-2,2.0,1000.0],"a":{"t":true,"n":null},"s":"x\n"})");
}

TEST(JsonParse, IntegersKeepSixtyFourBits) {
  const Json json = parsed("[9223372036854775807, -9223372036854775808, 9223372036854775808]");
  EXPECT_EQ(std::get<int64_t>(json.items()[0].value), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(std::get<int64_t>(json.items()[1].value), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(std::get<double>(json.items()[2].value), 0x1p63);
}

TEST(JsonParse, ErrorsSayWhere) {
  EXPECT_EQ(error_of("{\"a\": 1,\n\"b\": tru }").substr(0, 16), "line 2, byte 18:");
  EXPECT_NE(error_of("[1, 2").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("[1] x").find("byte 5"), std::string::npos);
  EXPECT_NE(error_of("").find("unexpected end of input"), std::string::npos);
  EXPECT_NE(error_of(" \n\t\r ").find("unexpected end of input"), std::string::npos);
  EXPECT_NE(error_of("{\"k\": 1, \"k\": 2}").find("repeated key \"k\""), std::string::npos);
  EXPECT_NE(error_of("[1e999]").find("overflow"), std::string::npos);
  EXPECT_NE(error_of("\"\xff\"").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_of("[NaN]").find("byte"), std::string::npos);
  EXPECT_EQ(error_of("[1,]").find("json.exception"), std::string::npos);
}

TEST(JsonParse, DepthIsLimited) {
  EXPECT_TRUE(parse_json("[[[]]]", 3).ok());
  EXPECT_NE(error_of("[[[[]]]]", 3).find("nested deeper than 3"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("nested deeper"), std::string::npos);
}

TEST(JsonGetters, NameTheKey) {
  const Json json = parsed(R"({"n": 3, "x": 2.5, "s": "t", "list": [1, 2], "mixed": [1, "a"]})");
  EXPECT_EQ(*json.get_int("n"), 3);
  EXPECT_EQ(*json.get_double("n"), 3.0);
  EXPECT_EQ(*json.get_double("x"), 2.5);
  EXPECT_EQ(*json.get_ints("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ((*json.get_array("mixed"))->size(), 2u);
  EXPECT_EQ(json.get_int("gone").status().to_string(), "not_found: \"gone\": missing");
  EXPECT_EQ(json.get_int("x").status().to_string(),
            "invalid_argument: \"x\": expected an integer, got number");
  EXPECT_EQ(json.get_ints("mixed").status().message(),
            "\"mixed\": expected an array of integers, got string");
  EXPECT_EQ(json.get_object("list").status().message(), "\"list\": expected an object, got array");
  EXPECT_EQ(json.find("list")->get_int("q").status().message(),
            "\"q\": looked up in array, expected an object");
}

TEST(JsonDump, DoublesComeBackExactly) {
  Json list = Json::array();
  for (const double value : {0.1, 1.0 / 3.0, -0.0, 1e-310, 1.7976931348623157e308, 5e22, 3.0}) {
    list.push(value);
  }
  const Json back = parsed(dump_json(list));
  ASSERT_EQ(back.items().size(), list.items().size());
  for (size_t i = 0; i < list.items().size(); ++i) {
    const double expected = std::get<double>(list.items()[i].value);
    ASSERT_TRUE(std::holds_alternative<double>(back.items()[i].value)) << dump_json(list);
    const double got = std::get<double>(back.items()[i].value);
    EXPECT_EQ(std::memcmp(&got, &expected, sizeof got), 0) << expected;
  }
}

TEST(JsonDump, NotFiniteIsNull) {
  Json json;
  json.set("nan", std::nan("")).set("inf", std::numeric_limits<double>::infinity());
  EXPECT_EQ(dump_json(json), R"({"nan":null,"inf":null})");
}

TEST(JsonDump, BadUtf8IsReplaced) {
  EXPECT_EQ(dump_json(Json(std::string("a\xff"))), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonDump, PrettyAndReplacedMembers) {
  Json json;
  json.set("a", 1).set("b", "two").set("a", 3);
  EXPECT_EQ(dump_json(json, true), "{\n  \"a\": 3,\n  \"b\": \"two\"\n}");
}

}  // namespace
}  // namespace linestate::testing
