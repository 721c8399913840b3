#pragma once
/// Untrusted JSON, read as a stream of events: no tree is built, nesting costs no stack, and a
/// reader stops by throwing.

#include <cstdint>
#include <string>
#include <string_view>

namespace lca {

/// A JSON value that is neither an object nor a list.
struct JsonScalar {
  enum class Kind { null, boolean, integer, number, text };
  Kind kind = Kind::null;
  bool boolean = false;
  std::int64_t integer = 0;  ///< a whole number that fits; others are of kind `number`
  double number = 0;         ///< of kinds `integer` and `number`
  std::string text;

  /// The value as an error message shows it, on one printable line.
  std::string describe() const;
};

/// Receives the events of one JSON text. What is not overridden is ignored.
class JsonReader {
 public:
  virtual ~JsonReader() = default;
  virtual void object_begin() {}
  virtual void object_end() {}
  virtual void list_begin() {}
  virtual void list_end() {}
  virtual void key(std::string& /*name*/) {}
  virtual void scalar(JsonScalar& /*value*/) {}
};

/// Reads all of `text`; throws Error that begins with `where` when it is not JSON. What `reader`
/// throws passes through.
void json_read(std::string_view text, std::string_view where, JsonReader& reader);

/// `text` as a JSON string, with its quotes; throws Error where it is not UTF-8.
std::string json_quote(std::string_view text);

}  // namespace lca
