// JSON as a small value: what the file readers parse and what the tools print. Members keep their
// order, so that output is stable.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "linestate/status.h"

namespace linestate::testing {

struct JsonMember;

struct Json {
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value;

  Json() = default;             // null
  Json(bool flag);              // NOLINT: implicit on purpose
  Json(double number);          // NOLINT: implicit on purpose
  Json(const char* text);       // NOLINT: implicit on purpose
  Json(std::string_view text);  // NOLINT: implicit on purpose
  Json(std::string text);       // NOLINT: implicit on purpose
  template <std::signed_integral Integer>
  Json(Integer number);  // NOLINT: implicit on purpose
  Json(Array items);     // NOLINT: implicit on purpose
  Json(Object members);  // NOLINT: implicit on purpose
  static Json array();
  static Json object();

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
  /// "null", "boolean", "integer", "number", "string", "array" or "object".
  std::string_view type_name() const;

  /// Items of an array, members of an object; empty for anything else.
  const Array& items() const;
  const Object& members() const;

  /// Appends to an array (a null becomes one). REQUIRES: array or null.
  Json& push(Json item);
  /// Appends a member or replaces the one of that name (a null becomes an object).
  /// REQUIRES: object or null.
  Json& set(std::string key, Json item);

  /// Null pointer when this is no object or has no such member.
  const Json* find(std::string_view key) const;

  // Members by type. Errors: kNotFound when absent, kInvalidArgument when of another type; both
  // name the key.
  Result<const Json*> get(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_double(std::string_view key) const;  // an integer will do
  Result<std::string> get_string(std::string_view key) const;
  Result<const Array*> get_array(std::string_view key) const;
  Result<const Object*> get_object(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;  // an array of integers
};

struct JsonMember {
  std::string key;
  Json value;
};

template <std::signed_integral Integer>
Json::Json(Integer number) : value(static_cast<int64_t>(number)) {}

inline constexpr int kJsonMaxDepth = 64;

/// One JSON value and nothing behind it but white space. Integers outside int64 become doubles.
/// Errors: kDataLoss with line and byte (from 1): syntax, a repeated key, deeper than max_depth.
Result<Json> parse_json(std::string_view text, int max_depth = kJsonMaxDepth);

/// Doubles come back exactly when parsed again; NaN and infinities become null. `pretty` indents
/// by two spaces. Text that is not UTF-8 is replaced, never an error.
std::string dump_json(const Json& json, bool pretty = false);

}  // namespace linestate::testing
