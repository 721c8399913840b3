#pragma once
/// Headers of a request, whose names are compared without case.

#include "server/types.h"

#include <algorithm>
#include <string_view>

namespace lca::server {

inline char letter_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Equal but for the case of ASCII letters.
inline bool text_same_letters(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, letter_lower, letter_lower);
}

/// The value of the first header of that name; empty where there is none.
inline std::string_view header_value(const HttpRequest& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (text_same_letters(key, name)) return value;
  }
  return {};
}

}  // namespace lca::server
