#pragma once
/// JSON as Python's json.dumps writes it, which is what chat templates print.

#include "server/types.h"

#include <string>

namespace lca::server {

/// `indent` < 0: one line with ", " and ": "; else lines, indented so. Other scripts stay as they
/// are. Throws Error (bad input) where values are nested too deep.
std::string python_json(const Json& value, int indent = -1);
/// A text as a JSON string, with its quotes.
std::string python_json_string(std::string_view text);

}  // namespace lca::server
