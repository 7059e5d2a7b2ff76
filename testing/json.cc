#include "testing/json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <unordered_set>

namespace linestate::testing {

Json::Json(bool flag) : value(flag) {}
Json::Json(double number) : value(number) {}
Json::Json(const char* text) : value(std::string(text)) {}
Json::Json(std::string_view text) : value(std::string(text)) {}
Json::Json(std::string text) : value(std::move(text)) {}
Json::Json(Array items) : value(std::move(items)) {}
Json::Json(Object members) : value(std::move(members)) {}
Json Json::array() { return Json(Array()); }
Json Json::object() { return Json(Object()); }

std::string_view Json::type_name() const {
  static constexpr std::array<std::string_view, 7> names = {
      "null", "boolean", "integer", "number", "string", "array", "object"};
  return names[value.index()];
}

const Json::Array& Json::items() const {
  static const Array none;
  const auto* array = std::get_if<Array>(&value);
  return array ? *array : none;
}

const Json::Object& Json::members() const {
  static const Object none;
  const auto* object = std::get_if<Object>(&value);
  return object ? *object : none;
}

Json& Json::push(Json item) {
  if (is_null()) value = Array();
  std::get<Array>(value).push_back(std::move(item));
  return *this;
}

Json& Json::set(std::string key, Json item) {
  if (is_null()) value = Object();
  auto& object = std::get<Object>(value);
  for (JsonMember& member : object) {
    if (member.key == key) {
      member.value = std::move(item);
      return *this;
    }
  }
  object.push_back({std::move(key), std::move(item)});
  return *this;
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

namespace {

std::string in_quotes(std::string_view key) {
  std::string out(1, '"');
  out.append(key).push_back('"');
  return out;
}

Status wrong_type(std::string_view key, const char* expected, const Json& got) {
  return Status(StatusCode::kInvalidArgument, in_quotes(key) + ": expected " + expected + ", got " +
                                                  std::string(got.type_name()));
}

/// The member as a T of the variant.
template <typename T>
Result<const T*> typed(const Json& object, std::string_view key, const char* expected) {
  Result<const Json*> member = object.get(key);
  if (!member.ok()) return member.status();
  const T* value = std::get_if<T>(&(*member)->value);
  if (value == nullptr) return wrong_type(key, expected, **member);
  return value;
}

template <typename T>
Result<T> copied(const Result<const T*>& pointer) {
  if (!pointer.ok()) return pointer.status();
  return T(**pointer);
}

}  // namespace

Result<const Json*> Json::get(std::string_view key) const {
  if (!std::holds_alternative<Object>(value)) {
    return Status(
        StatusCode::kInvalidArgument,
        in_quotes(key) + ": looked up in " + std::string(type_name()) + ", expected an object");
  }
  const Json* member = find(key);
  if (member == nullptr) return Status(StatusCode::kNotFound, in_quotes(key) + ": missing");
  return member;
}

Result<bool> Json::get_bool(std::string_view key) const {
  return copied(typed<bool>(*this, key, "a boolean"));
}

Result<int64_t> Json::get_int(std::string_view key) const {
  return copied(typed<int64_t>(*this, key, "an integer"));
}

Result<double> Json::get_double(std::string_view key) const {
  Result<const Json*> member = get(key);
  if (!member.ok()) return member.status();
  if (const auto* integer = std::get_if<int64_t>(&(*member)->value)) {
    return static_cast<double>(*integer);
  }
  return copied(typed<double>(*this, key, "a number"));
}

Result<std::string> Json::get_string(std::string_view key) const {
  return copied(typed<std::string>(*this, key, "a string"));
}

Result<const Json::Array*> Json::get_array(std::string_view key) const {
  return typed<Array>(*this, key, "an array");
}

Result<const Json::Object*> Json::get_object(std::string_view key) const {
  return typed<Object>(*this, key, "an object");
}

Result<std::vector<int64_t>> Json::get_ints(std::string_view key) const {
  Result<const Array*> array = get_array(key);
  if (!array.ok()) return array.status();
  std::vector<int64_t> out;
  for (const Json& item : **array) {
    const auto* integer = std::get_if<int64_t>(&item.value);
    if (integer == nullptr) return wrong_type(key, "an array of integers", item);
    out.push_back(*integer);
  }
  return out;
}

namespace {

/// Input that remembers how far the parser has read, so that our own errors have a position too.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    Cursor old = *this;
    ++*this;
    return old;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

/// Builds a Json from the parser's events.
class Builder {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() { return add(Json()); }
  bool boolean(bool flag) { return add(Json(flag)); }
  bool number_integer(int64_t number) { return add(Json(number)); }
  bool number_unsigned(uint64_t number) {
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return add(Json(static_cast<double>(number)));
    }
    return add(Json(static_cast<int64_t>(number)));
  }
  bool number_float(double number, const std::string&) { return add(Json(number)); }
  bool string(std::string& text) { return add(Json(std::move(text))); }
  bool binary(nlohmann::json::binary_t&) { return false; }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) return fail("repeated key " + in_quotes(name));
    open_.back().key = std::move(name);
    return true;
  }
  // Words that callers may rely on are ours: those of nlohmann change between its versions, its
  // numbers of errors do not.
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) return fail("number overflow");
    // "[json.exception.parse_error.101] parse error at line 1, column 2: <what we keep>"
    std::string_view text = error.what();
    for (const std::string_view prefix : {std::string_view("] "), std::string_view("column ")}) {
      const size_t at = text.find(prefix);
      if (at != std::string_view::npos) text.remove_prefix(at + prefix.size());
    }
    const size_t colon = text.find_first_not_of("0123456789");
    if (text.substr(colon, 2) == ": ") text.remove_prefix(colon + 2);
    return fail(std::string(text));
  }

  const std::string& error() const { return error_; }
  Json& root() { return root_; }

 private:
  struct Open {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return fail("nested deeper than " + std::to_string(max_depth_));
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json done = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(done));
  }
  bool add(Json item) {
    if (open_.empty()) {
      root_ = std::move(item);
    } else if (auto* array = std::get_if<Json::Array>(&open_.back().value.value)) {
      array->push_back(std::move(item));
    } else {
      std::get<Json::Object>(open_.back().value.value)
          .push_back({std::move(open_.back().key), std::move(item)});
    }
    return true;
  }

  int max_depth_;
  std::vector<Open> open_;
  Json root_;
  std::string error_;
};

nlohmann::ordered_json to_nlohmann(const Json& json) {
  using Out = nlohmann::ordered_json;
  if (const auto* flag = std::get_if<bool>(&json.value)) return Out(*flag);
  if (const auto* integer = std::get_if<int64_t>(&json.value)) return Out(*integer);
  if (const auto* number = std::get_if<double>(&json.value)) return Out(*number);
  if (const auto* text = std::get_if<std::string>(&json.value)) return Out(*text);
  if (std::holds_alternative<Json::Array>(json.value)) {
    Out out = Out::array();
    for (const Json& item : json.items()) out.push_back(to_nlohmann(item));
    return out;
  }
  if (std::holds_alternative<Json::Object>(json.value)) {
    Out out = Out::object();
    for (const JsonMember& member : json.members()) out[member.key] = to_nlohmann(member.value);
    return out;
  }
  return Out();
}

}  // namespace

Result<Json> parse_json(std::string_view text, int max_depth) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  const char* furthest = begin;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Status(StatusCode::kDataLoss, "line 1, byte 1: unexpected end of input");
  }
  Builder builder(max_depth);
  if (nlohmann::json::sax_parse(Cursor(begin, &furthest), Cursor(end, &furthest), &builder)) {
    return std::move(builder.root());
  }
  const auto line = 1 + std::count(begin, furthest, '\n');
  const auto byte = std::max<std::ptrdiff_t>(furthest - begin, 1);
  return Status(StatusCode::kDataLoss, "line " + std::to_string(line) + ", byte " +
                                           std::to_string(byte) + ": " + builder.error());
}

std::string dump_json(const Json& json, bool pretty) {
  return to_nlohmann(json).dump(pretty ? 2 : -1, ' ', false,
                                nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace linestate::testing
