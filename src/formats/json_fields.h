#pragma once
/// One JSON object as a list of named values, for configuration files: scalars are ready, objects
/// and lists are kept as text until they are read.

#include "formats/json_text.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// The minimum of a field that takes numbers above 0.
inline constexpr double kSmallestPositive = std::numeric_limits<double>::min();

/// A value of the object.
struct JsonField {
  enum class Kind : std::uint8_t { scalar, object, list };
  std::string name;
  Kind kind = Kind::scalar;
  JsonScalar scalar;  ///< of kind `scalar`
  std::string text;   ///< of kinds `object` and `list`: the same JSON without white space

  bool is_null() const { return kind == Kind::scalar && scalar.kind == JsonScalar::Kind::null; }
  /// The value as an error message shows it, on one printable line.
  std::string describe() const;
};

/// A checked object; no name appears twice. What asks for a value of a type throws Error that
/// begins with the object's `where` and names field and value where it is of another one.
class JsonFields {
 public:
  /// Reads all of `text`; throws Error that begins with `where`.
  static JsonFields parse(std::string_view text, std::string_view where);

  const std::string& where() const { return where_; }
  /// All values in the order of the file.
  const std::vector<JsonField>& all() const { return fields_; }
  /// The value of that name, or null.
  const JsonField* find(std::string_view name) const;
  /// Whether there is such a value, and it is not JSON's null.
  bool has(std::string_view name) const;

  /// The integer, or `fallback` where there is no such field. JSON's null is an error.
  std::int64_t integer(std::string_view name, std::int64_t fallback, std::int64_t minimum,
                       std::int64_t maximum) const;
  /// The integer, or nothing where the field is absent or null.
  std::optional<std::int64_t> integer_if(std::string_view name, std::int64_t minimum,
                                         std::int64_t maximum) const;
  /// A finite number from `minimum` on; as above.
  double number(std::string_view name, double fallback, double minimum) const;
  std::optional<double> number_if(std::string_view name, double minimum) const;
  bool boolean(std::string_view name, bool fallback) const;
  std::optional<bool> boolean_if(std::string_view name) const;
  /// The text, or nothing where the field is absent or null.
  std::optional<std::string> text_if(std::string_view name) const;
  /// The object, or nothing where the field is absent or null.
  std::optional<JsonFields> object_if(std::string_view name) const;
  /// A list of scalars, or nothing where the field is absent or null.
  std::optional<std::vector<JsonScalar>> list_if(std::string_view name) const;
  /// A list of finite numbers, or nothing where the field is absent or null.
  std::optional<std::vector<double>> numbers_if(std::string_view name) const;

  /// Throws Error: the field must be `wanted`, not what it is.
  [[noreturn]] void fail(const JsonField& field, std::string_view wanted) const;

 private:
  const JsonField* find_value(std::string_view name) const;  // neither absent nor null

  std::string where_;
  std::vector<JsonField> fields_;
  std::vector<std::size_t> by_name_;  // indices of fields_, sorted by name
};

}  // namespace lca
