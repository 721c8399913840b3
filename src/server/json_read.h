#pragma once
/// JSON that a client or a model wrote, read in time linear in its length whatever it holds.

#include "server/types.h"

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace lca::server {

/// Deepest nesting of what clients write, most keys of one object (looking up a key in a `Json`
/// takes linear time), and most values in all (one takes up to 50 bytes, and two in text).
inline constexpr int kJsonDepth = 64;
inline constexpr std::size_t kJsonKeys = 512;
inline constexpr std::size_t kJsonValues = std::size_t{1} << 22;

struct JsonLimits {
  int depth = kJsonDepth;
  std::size_t keys = kJsonKeys;
  std::size_t values = kJsonValues;
  bool unique = true;  ///< a key that comes twice is a fault; else its last value counts
};

/// Of what a model wrote: writing a `Json` takes stack for each level.
inline constexpr JsonLimits kJsonOfModel = {
    .depth = 512,
    .keys = std::numeric_limits<std::size_t>::max(),
    .unique = false,
};

struct JsonRead {
  Json value = nullptr;
  std::string fault = {};  ///< goes on after "the body "; empty: there is none
};

/// Reads one value in UTF-8.
JsonRead json_read(std::string_view text, const JsonLimits& limits = {});

/// Reads the arguments of a tool call as a client sends them: the text of an object; nothing but
/// white space is an empty one. Models write keys twice: those are no fault.
JsonRead json_read_arguments(std::string_view text);

}  // namespace lca::server
