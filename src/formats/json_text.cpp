#include "formats/json_text.h"

#include "core/error.h"
#include "core/text.h"

#include <nlohmann/json.hpp>

#include <limits>
#include <utility>

namespace lca {
namespace {

using nlohmann::json;

/// Passes the library's events on, with all numbers in one type.
class Adapter : public json::json_sax_t {
 public:
  explicit Adapter(JsonReader& reader) : reader_(reader) {}

  bool null() override { return pass({}); }
  bool boolean(bool value) override {
    return pass({.kind = JsonScalar::Kind::boolean, .boolean = value, .text = {}});
  }
  bool number_integer(std::int64_t value) override {
    return pass({.kind = JsonScalar::Kind::integer,
                 .integer = value,
                 .number = static_cast<double>(value),
                 .text = {}});
  }
  bool number_unsigned(std::uint64_t value) override {
    if (std::in_range<std::int64_t>(value)) return number_integer(static_cast<std::int64_t>(value));
    return pass({.kind = JsonScalar::Kind::number,
                 .number = static_cast<double>(value),
                 .text = std::to_string(value)});
  }
  bool number_float(double value, const std::string& text) override {
    return pass({.kind = JsonScalar::Kind::number, .number = value, .text = text});
  }
  bool string(std::string& value) override {
    return pass({.kind = JsonScalar::Kind::text, .text = std::move(value)});
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    reader_.object_begin();
    return true;
  }
  bool key(std::string& name) override {
    reader_.key(name);
    return true;
  }
  bool end_object() override {
    reader_.object_end();
    return true;
  }
  bool start_array(std::size_t) override {
    reader_.list_begin();
    return true;
  }
  bool end_array() override {
    reader_.list_end();
    return true;
  }
  bool parse_error(std::size_t, const std::string& token, const json::exception& error) override {
    // A number beyond double is good JSON: the reader knows better which field it spoils.
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) {
      const double infinity = std::numeric_limits<double>::infinity();
      pass({.kind = JsonScalar::Kind::number, .number = infinity, .text = token});
    }
    error_ = error.what();
    return false;
  }

  /// What is wrong with the text, without the library's own tag in front.
  std::string_view error() const {
    const std::string_view text = error_;
    const std::size_t tag = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
    return tag == std::string_view::npos ? text : text.substr(tag + 2);
  }

 private:
  bool pass(JsonScalar value) {
    reader_.scalar(value);
    return true;
  }

  JsonReader& reader_;
  std::string error_ = "not JSON";
};

}  // namespace

std::string JsonScalar::describe() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return boolean ? "true" : "false";
    case Kind::integer:
      return std::to_string(integer);
    case Kind::number:
      return text_printable(text, 40);
    case Kind::text:
      break;
  }
  return "\"" + text_printable(text, 40) + "\"";
}

void json_read(std::string_view text, std::string_view where, JsonReader& reader) {
  // The library takes a zero byte for the end of the text and skips a byte order mark.
  if (text.find('\0') != std::string_view::npos) {
    fail_input("{}: bad JSON: a zero byte inside", where);
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    fail_input("{}: bad JSON: begins with a byte order mark", where);
  }
  Adapter adapter(reader);
  if (!json::sax_parse(text, &adapter)) {
    fail_input("{}: bad JSON: {}", where, text_printable(adapter.error(), 200));
  }
}

std::string json_quote(std::string_view text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail_input("\"{}\" is not UTF-8", text_printable(text));
  }
}

}  // namespace lca
