#pragma once
/// Notices where a reply that may have calls begins one.

#include "server/tools/tool_format.h"

#include <cstddef>
#include <string_view>

namespace lca::server {

/// Reads a reply byte by byte until a call begins: what `ToolReader` would take for one, whole or
/// broken. Copies are small.
class ToolWatch {
 public:
  explicit ToolWatch(ToolFormat format);

  /// Takes a byte; whether a call begins with it. Nothing is fed after that.
  bool feed(char c);
  /// What a call's grammar has behind it by then.
  std::string_view written() const { return written_; }
  /// Whether a call may begin within a few bytes of any kind, not by the whole tag alone.
  bool is_near() const { return is_start_ || matched_ > 0; }

 private:
  std::string_view tag_;
  std::string_view written_;
  std::size_t matched_ = 0;  // bytes of the tag
  bool is_start_;            // Llama: nothing but blanks so far, so that a brace begins a call
  bool is_tag_written_;      // the grammar of a call begins with the tag
};

}  // namespace lca::server
