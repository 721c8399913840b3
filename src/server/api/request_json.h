#pragma once
/// The body of a request as JSON, and typed reading of it. Everything that is wrong is an
/// ApiException with status 400 that names the place.

#include "server/json_read.h"
#include "server/types.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::server {

/// Parses a body: an object in UTF-8 without duplicate keys, within the limits of `json_read`.
Json json_parse_body(std::string_view body);

/// A reply as text; bytes that are not UTF-8 are replaced.
std::string json_text(const Json& value);

/// A value in an error message: its JSON in ASCII, cut where long.
std::string json_shown(const Json& value);

/// Throws ApiException with status 400.
template <typename... Args>
[[noreturn]] void refuse(std::string param, fmt::format_string<Args...> text, Args&&... args) {
  ApiError error;
  error.status = 400;
  error.message = fmt::format(text, std::forward<Args>(args)...);
  error.param = std::move(param);
  throw ApiException(std::move(error));
}

/// One object of a request and where it stands. null counts as absent.
class Fields {
 public:
  /// Throws where `value` is not an object.
  Fields(const Json& value, std::string path);

  const Json& json() const { return *object_; }
  /// "messages[0].role"; `name` alone at the top.
  std::string path(std::string_view name) const;
  /// nullptr where absent or null.
  const Json* find(std::string_view name) const;
  /// Throws where absent.
  const Json& need(std::string_view name) const;

  std::optional<std::string> text(std::string_view name) const;
  std::string need_text(std::string_view name) const;
  std::optional<bool> flag(std::string_view name) const;
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least,
                                      std::int64_t most) const;
  std::optional<double> number(std::string_view name, double least, double most) const;
  std::optional<Fields> object(std::string_view name) const;
  /// The list's value; nullptr where absent.
  const Json* list(std::string_view name) const;

 private:
  const Json* object_;
  std::string path_;
};

/// An integer of a request; 3.0 counts as one.
std::int64_t json_integer(const Json& value, const std::string& path, std::int64_t least,
                          std::int64_t most);
/// "list[3]".
std::string json_at(const std::string& path, std::size_t index);

}  // namespace lca::server
