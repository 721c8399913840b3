#pragma once
/// Checks of all fuzz targets, besides those of the sanitizers.

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/text.h"

#include <lca/error.h>

namespace lca::fuzz {

/// Aborts if the condition is false.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Checks that an error is about the input, and a single printable line that begins with `start`.
inline void check_message(const Error& error, std::string_view start = "") {
  const std::string line = error.what();
  require(error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::incompatible);
  require(!line.empty() && line.size() < 4000);
  require(line.starts_with(start));
  require(text_printable(line, line.size()) == line);
}

}  // namespace lca::fuzz
