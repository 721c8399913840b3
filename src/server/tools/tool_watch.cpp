#include "server/tools/tool_watch.h"

namespace lca::server {

ToolWatch::ToolWatch(ToolFormat format)
    : tag_(tool_call_tag(format)),
      is_start_(format == ToolFormat::llama31),
      is_tag_written_(format == ToolFormat::qwen25) {}

bool ToolWatch::feed(char c) {
  if (is_start_) {
    // A list is no call of the grammar, but the reader takes it for calls: it is to be refused.
    if (c == '{' || c == '[') {
      written_ = c == '{' ? "{" : "[";
      return true;
    }
    is_start_ = c == ' ' || c == '\t' || c == '\r' || c == '\n';
  }
  if (tag_.empty()) return false;
  // No tag has its first byte twice, so what failed to match can only begin again.
  matched_ = c == tag_[matched_] ? matched_ + 1 : c == tag_[0] ? 1 : 0;
  if (matched_ < tag_.size()) return false;
  if (is_tag_written_) written_ = tag_;
  return true;
}

}  // namespace lca::server
