#include "server/tools/tool_reader.h"

#include "server/tools/tool_call_read.h"

#include <algorithm>
#include <utility>

namespace lca::server {
namespace {

/// A call longer than this is text: something must bound what is withheld.
constexpr std::size_t kHeldMost = std::size_t{1} << 20;

std::size_t blank_count(std::string_view text, std::string_view blanks = " \t\r\n") {
  return std::min(text.find_first_not_of(blanks), text.size());
}

/// How much of the end of `text` may be the beginning of `tag`.
std::size_t tail_count(std::string_view text, std::string_view tag) {
  std::size_t count = std::min(text.size(), tag.size() - 1);
  while (count > 0 && !tag.starts_with(text.substr(text.size() - count))) --count;
  return count;
}

}  // namespace

ToolReader::ToolReader(ToolFormat format, std::vector<std::string> names, std::string id_prefix)
    : format_(names.empty() ? ToolFormat::none : format),
      names_(std::move(names)),
      id_prefix_(std::move(id_prefix)),
      tag_(tool_call_tag(format_)),
      state_(format_ == ToolFormat::llama31 ? State::start : State::text) {}

std::vector<ReplyPart> ToolReader::push(std::string_view piece) {
  buffer_ += piece;
  while (step()) {
  }
  buffer_.erase(0, from_);
  object_ -= std::min(object_, from_);
  at_ -= std::min(at_, from_);
  from_ = 0;
  return std::exchange(out_, {});
}

std::vector<ReplyPart> ToolReader::finish() {
  is_ended_ = true;
  return push({});
}

/// Decides about the next bytes; false: more bytes are needed.
bool ToolReader::step() {
  const std::string_view rest = std::string_view(buffer_).substr(from_);
  if (rest.empty()) return false;
  switch (state_) {
    case State::start:
      return step_start(rest);
    case State::text:
      return step_text(rest);
    case State::opened:
      return step_opened();
    case State::object:
      return step_object();
    case State::python:
      return step_python();
    case State::between:
      return step_between(rest);
  }
  return false;
}

bool ToolReader::step_start(std::string_view rest) {
  const std::size_t blank = blank_count(rest);
  const std::string_view first = rest.substr(blank);
  if (first.empty() && !is_ended_) return false;
  if (first.starts_with('{') || first.starts_with('[')) {
    is_tagged_ = false;
    open(from_, from_ + blank);
  } else if (first.starts_with(tag_)) {
    is_tagged_ = true;
    from_ += blank + tag_.size();
    open(from_, from_);
  } else if (!is_ended_ && tag_.starts_with(first)) {
    return false;
  } else {
    state_ = State::text;
  }
  return true;
}

bool ToolReader::step_text(std::string_view rest) {
  const std::size_t tag = tag_.empty() ? std::string_view::npos : rest.find(tag_);
  if (tag == std::string_view::npos && (is_ended_ || tag_.empty())) {
    text_out(rest.size());
    return false;
  }
  std::size_t count = tag != std::string_view::npos ? tag : rest.size() - tail_count(rest, tag_);
  // Qwen's template writes a line break between a text and a call; it belongs to neither.
  if (format_ == ToolFormat::qwen25 && count > 0 && rest[count - 1] == '\n') --count;
  text_out(count);
  if (tag == std::string_view::npos) return false;
  is_tagged_ = true;
  if (format_ == ToolFormat::llama31) {
    from_ += tag_.size();  // a special token: not text even where no call follows
    open(from_, from_);
  } else {
    open(from_, from_ + (tag - count) + tag_.size());
  }
  return true;
}

/// `from`: where the text begins that the call replaces.
void ToolReader::open(std::size_t from, std::size_t object) {
  from_ = from;
  object_ = at_ = object;
  state_ = State::opened;
}

/// What was taken for a call is text. Its inside is read again: another tag may be there.
void ToolReader::give_up() {
  state_ = State::text;
  if (format_ == ToolFormat::qwen25) text_out(object_ - from_);
}

bool ToolReader::step_opened() {
  const std::size_t object = object_ + blank_count(std::string_view(buffer_).substr(object_));
  if (object == buffer_.size()) {
    if (is_ended_) give_up();
    return is_ended_;
  }
  const char c = buffer_[object];
  if (c == '[' && format_ == ToolFormat::llama31) {
    // A list of calls: one object after the other.
    const std::size_t first =
        object + 1 + blank_count(std::string_view(buffer_).substr(object + 1));
    if (first == buffer_.size() && !is_ended_) return false;
    if (first == buffer_.size() || buffer_[first] != '{') {
      give_up();
      return true;
    }
    at_ = first;
  } else if (c == '{') {
    at_ = object;
  } else if (format_ == ToolFormat::llama31 && is_tagged_) {
    at_ = object;
    state_ = State::python;
    return true;
  } else {
    give_up();
    return true;
  }
  // For give_up, a tag ends where it was found; for the scan, the object begins at its brace.
  if (format_ == ToolFormat::llama31) object_ = at_;
  scan_ = JsonScan();
  state_ = State::object;
  return true;
}

bool ToolReader::step_object() {
  const std::string_view all = buffer_;
  const std::size_t begin =
      format_ == ToolFormat::llama31 ? object_ : object_ + blank_count(all.substr(object_));
  while (at_ < all.size()) {
    const JsonScan::Status status = scan_.feed(all[at_++]);
    const std::string_view text = all.substr(begin, at_ - begin);
    if (status == JsonScan::Status::bad || at_ - from_ > kHeldMost ||
        !tool_call_possible(scan_, text, names_, is_tagged_)) {
      give_up();
      return true;
    }
    if (status == JsonScan::Status::more) continue;
    if (std::optional<ToolCall> call = tool_call_json(scan_, text, names_)) {
      call_out(*std::move(call), at_);
    } else {
      give_up();
    }
    return true;
  }
  if (is_ended_) give_up();
  return is_ended_;
}

bool ToolReader::step_python() {
  const std::string_view text = std::string_view(buffer_).substr(at_);
  if (!tool_call_python_possible(text, names_) || text.size() > kHeldMost) {
    give_up();
    return true;
  }
  if (!is_ended_) return false;
  if (std::optional<ToolCall> call = tool_call_python(text, names_)) {
    call_out(*std::move(call), buffer_.size());
  } else {
    give_up();
  }
  return true;
}

bool ToolReader::step_between(std::string_view rest) {
  const bool is_qwens = format_ == ToolFormat::qwen25;
  // Llama separates calls by ; or writes them as a list.
  const std::size_t blank = blank_count(rest, is_qwens ? " \t\r\n" : " \t\r\n;,]");
  const std::string_view next = rest.substr(blank);
  const auto may_be = [&](std::string_view tag) { return !is_ended_ && tag.starts_with(next); };
  if (next.empty()) {
    if (is_ended_) from_ = buffer_.size();
    return false;
  }
  if (is_qwens && next.starts_with(qwen25::kCallEnd)) {
    from_ += blank + qwen25::kCallEnd.size();
    return true;
  }
  if (next.starts_with(tag_)) {
    is_tagged_ = true;
    if (is_qwens) {
      open(from_, from_ + blank + tag_.size());
    } else {
      from_ += blank + tag_.size();
      open(from_, from_);
    }
    return true;
  }
  if (next.starts_with('{')) {
    open(from_, from_ + blank);
    return true;
  }
  if (may_be(tag_) || (is_qwens && may_be(qwen25::kCallEnd))) return false;
  if (is_qwens && is_ended_ && qwen25::kCallEnd.starts_with(next)) {  // cut in its end tag
    from_ = buffer_.size();
    return false;
  }
  state_ = State::text;
  return true;
}

void ToolReader::text_out(std::size_t count) {
  if (count == 0) return;
  if (out_.empty() || out_.back().call) out_.emplace_back();
  out_.back().text.append(buffer_, from_, count);
  from_ += count;
}

void ToolReader::call_out(ToolCall call, std::size_t end) {
  ToolCallPiece piece{.index = calls_,
                      .id = id_prefix_ + std::to_string(calls_),
                      .name = std::move(call.name),
                      .arguments = std::move(call.arguments)};
  ++calls_;
  out_.push_back({.text = {}, .call = std::move(piece)});
  from_ = end;
  state_ = State::between;
}

}  // namespace lca::server
