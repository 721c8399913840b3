#pragma once
/// Splits a reply into text and tool calls while it is being written.

#include "server/tools/json_scan.h"
#include "server/tools/tool_format.h"
#include "server/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// A part of a reply: text, or a call.
struct ReplyPart {
  std::string text = {};
  std::optional<ToolCallPiece> call = {};  ///< whole: id, name and all arguments
};

/// Reads a reply piece by piece; how it is cut does not change what comes out. Only what may still
/// become a call is withheld. A call is one of an offered tool with arguments that are a JSON
/// object; all else, broken calls too, is text. Whitespace between and after calls is dropped. One
/// thread at a time.
class ToolReader {
 public:
  /// `names`: the tools offered. The n-th call's id is `id_prefix` and n, from 0.
  ToolReader(ToolFormat format, std::vector<std::string> names, std::string id_prefix);

  /// A piece of the reply, with the tokens of `tool_reply_marks` spelled in it.
  std::vector<ReplyPart> push(std::string_view piece);
  /// The end of the reply: what was withheld.
  std::vector<ReplyPart> finish();
  /// Calls so far.
  int calls() const { return calls_; }

 private:
  enum class State : std::uint8_t {
    start,    // Llama: nothing but whitespace so far
    text,     // looking for a tag
    opened,   // in a call, before its object
    object,   // in the object of a call
    python,   // in NAME.call(…)
    between,  // after a call: whitespace, its end tag, or another call
  };

  bool step();
  bool step_start(std::string_view rest);
  bool step_text(std::string_view rest);
  bool step_opened();
  bool step_object();
  bool step_python();
  bool step_between(std::string_view rest);
  void open(std::size_t from, std::size_t object);
  void give_up();
  void text_out(std::size_t count);
  void call_out(ToolCall call, std::size_t end);

  ToolFormat format_;
  std::vector<std::string> names_;
  std::string id_prefix_;
  std::string_view tag_;
  State state_;
  bool is_tagged_ = false;  // the model has said that a call follows
  bool is_ended_ = false;   // no more pieces come
  std::string buffer_;      // what has not been decided, from `from_` on
  std::size_t from_ = 0;
  std::size_t object_ = 0;  // of a call: where its object begins, or is expected
  std::size_t at_ = 0;      // of a call: how far it has been read
  JsonScan scan_;
  int calls_ = 0;
  std::vector<ReplyPart> out_;
};

}  // namespace lca::server
