#include "server/tools/tool_call_read.h"

#include "server/tools/python_json.h"

#include <algorithm>
#include <array>

namespace lca::server {
namespace {

constexpr std::string_view kCallOpen = ".call(";

bool is_name(std::span<const std::string> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string_view key_of(const JsonScan::Member& member, std::string_view text) {
  return text.substr(member.key, member.key_end - member.key);
}

/// The value of the first member called so, as written; empty where there is none.
std::string_view member_find(const JsonScan& scan, std::string_view text, std::string_view key) {
  for (const JsonScan::Member& member : scan.members()) {
    if (key_of(member, text) == key) {
      return text.substr(member.value, member.value_end - member.value);
    }
  }
  return {};
}

/// Without making it: keys are looked up in linear time, and a reply may have thousands.
bool is_object_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{' && Json::accept(text);
}

std::optional<std::string> string_of(std::string_view value) {
  if (!value.starts_with('"')) return std::nullopt;
  const Json parsed = Json::parse(value, nullptr, false);
  if (!parsed.is_string()) return std::nullopt;
  return parsed.get<std::string>();
}

/// The arguments as the text of an object. Models also write none, null, or the object as a string.
std::optional<std::string> arguments_of(std::string_view value) {
  if (value.empty() || value == "null") return "{}";
  if (value.front() == '{') return std::string(value);
  std::optional<std::string> inside = string_of(value);
  if (!inside || !is_object_text(*inside)) return std::nullopt;
  return inside;
}

std::optional<ToolCall> call_from(const JsonScan& scan, std::string_view text,
                                  std::span<const std::string> names, bool is_outer) {
  const std::string_view function = member_find(scan, text, "function");
  if (is_outer && !function.empty() && function.front() == '{') {
    JsonScan inner;
    for (const char c : function) inner.feed(c);
    return call_from(inner, function, names, false);
  }
  std::string_view named = member_find(scan, text, "name");
  if (named.empty()) named = function;
  const std::optional<std::string> name = named.empty() ? std::nullopt : string_of(named);
  if (!name || !is_name(names, *name)) return std::nullopt;
  std::string_view given = member_find(scan, text, "arguments");
  if (given.empty()) given = member_find(scan, text, "parameters");
  std::optional<std::string> arguments = arguments_of(given);
  if (!arguments) return std::nullopt;
  return ToolCall{.id = {}, .name = *name, .arguments = *std::move(arguments)};
}

// --- NAME.call(…) ------------------------------------------------------------------------------

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

std::string_view blank_skip(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text;
}

/// Takes "argument=" from the front.
std::optional<std::string> argument_take(std::string_view& text) {
  const auto end = static_cast<std::size_t>(std::ranges::find_if_not(text, is_word) - text.begin());
  const std::string_view rest = blank_skip(text.substr(end));
  if (end == 0 || !rest.starts_with('=')) return std::nullopt;
  std::string name(text.substr(0, end));
  text = blank_skip(rest.substr(1));
  return name;
}

/// Whether a quote before `rest` ends a value: values are written without escapes, so only what
/// follows can tell.
bool is_value_end(std::string_view rest) {
  rest = blank_skip(rest);
  if (rest.starts_with(')')) return blank_skip(rest.substr(1)).empty();
  if (!rest.starts_with(',')) return false;
  rest = blank_skip(rest.substr(1));
  return argument_take(rest).has_value();
}

/// Takes a value from the front.
std::optional<Json> value_take(std::string_view& text) {
  const char quote = text.empty() ? '\0' : text.front();
  if (quote == '"' || quote == '\'') {
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (text[at] != quote || !is_value_end(text.substr(at + 1))) continue;
      Json value = std::string(text.substr(1, at - 1));
      text.remove_prefix(at + 1);
      return value;
    }
    return std::nullopt;
  }
  const std::size_t end = std::min(text.find_first_of(",)"), text.size());
  std::string_view word = text.substr(0, end);
  while (!word.empty() && blank_skip(word.substr(word.size() - 1)).empty()) word.remove_suffix(1);
  if (word == "True") word = "true";
  if (word == "False") word = "false";
  if (word == "None") word = "null";
  Json value = Json::parse(word, nullptr, false);
  if (value.is_discarded() || value.is_structured()) return std::nullopt;
  text.remove_prefix(end);
  return value;
}

}  // namespace

bool tool_call_possible(const JsonScan& scan, std::string_view text,
                        std::span<const std::string> names, bool is_tagged) {
  constexpr std::array<std::string_view, 6> kKnown = {"name",     "parameters", "arguments",
                                                      "function", "type",       "id"};
  if (scan.members().empty()) return true;
  const JsonScan::Member& last = scan.members().back();
  if (last.key_end == 0) return true;
  const std::string_view key = key_of(last, text);
  if (!is_tagged && std::ranges::find(kKnown, key) == kKnown.end()) return false;
  if (key != "name" || last.value_end == 0) return true;
  const auto name = string_of(text.substr(last.value, last.value_end - last.value));
  return name && is_name(names, *name);
}

std::optional<ToolCall> tool_call_json(const JsonScan& scan, std::string_view text,
                                       std::span<const std::string> names) {
  // The scan does not look at character encodings and the size of numbers.
  if (scan.status() != JsonScan::Status::done || !is_object_text(text)) {
    return std::nullopt;
  }
  return call_from(scan, text, names, true);
}

bool tool_call_python_possible(std::string_view text, std::span<const std::string> names) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    const std::string opening = name + std::string(kCallOpen);
    return text.starts_with(opening) || std::string_view(opening).starts_with(text);
  });
}

std::optional<ToolCall> tool_call_python(std::string_view text,
                                         std::span<const std::string> names) {
  const std::size_t open = text.find(kCallOpen);
  if (open == std::string_view::npos || !is_name(names, text.substr(0, open))) return std::nullopt;
  std::string_view rest = blank_skip(text.substr(open + kCallOpen.size()));
  Json arguments = Json::object();
  while (!rest.starts_with(')')) {
    if (!arguments.empty()) {
      if (!rest.starts_with(',')) return std::nullopt;
      rest = blank_skip(rest.substr(1));
    }
    const std::optional<std::string> name = argument_take(rest);
    if (!name) return std::nullopt;
    std::optional<Json> value = value_take(rest);
    if (!value || arguments.contains(*name)) return std::nullopt;
    arguments[*name] = *std::move(value);
    rest = blank_skip(rest);
  }
  if (!blank_skip(rest.substr(1)).empty()) return std::nullopt;
  return ToolCall{
      .id = {}, .name = std::string(text.substr(0, open)), .arguments = python_json(arguments)};
}

}  // namespace lca::server
