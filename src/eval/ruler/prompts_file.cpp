#include "eval/ruler/prompts_file.h"

#include "core/error.h"
#include "core/text.h"
#include "eval/ruler/source_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace lca::eval {
namespace {

using PromptJson = nlohmann::ordered_json;

constexpr std::int64_t kLongestPrompt = std::int64_t{1} << 40;

/// The whole number `name`, or `fallback` where there is none; negative: it must be there.
std::int64_t prompt_number(const PromptJson& line, const char* name, std::int64_t lowest,
                           std::int64_t fallback, const std::string& where) {
  const auto found = line.find(name);
  if (found == line.end() && fallback >= 0) return fallback;
  if (found != line.end() && found->is_number_integer()) {
    const auto value = found->get<std::int64_t>();
    if (value >= lowest && value <= kLongestPrompt) return value;
  }
  fail_input("{}: \"{}\" must be a whole number from {}", where, name, lowest);
}

RulerScore prompt_score(const PromptJson& line, const RulerTask* task, const std::string& where) {
  if (!line.contains("score") && task != nullptr) return task->score;
  const std::string& text = json_text(line, "score", where);
  if (text == "all") return RulerScore::all;
  if (text == "part") return RulerScore::part;
  fail_input("{}: \"score\" is all or part, not \"{}\"", where, text_printable(text));
}

RulerPrompt prompt_parse(const PromptJson& line, const std::string& where) {
  RulerPrompt prompt;
  prompt.task = json_text(line, "task", where);
  const RulerTask* task = ruler_task_find(prompt.task);
  prompt.length = prompt_number(line, "length", 1, -1, where);
  prompt.max_tokens =
      prompt_number(line, "max_new_tokens", 1, task == nullptr ? -1 : task->max_tokens, where);
  prompt.score = prompt_score(line, task, where);
  prompt.sample.input = json_text(line, "input", where);
  if (line.contains("answer_prefix"))
    prompt.sample.prefix = json_text(line, "answer_prefix", where);
  for (const PromptJson& each : json_list(line, "outputs", where)) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
      fail_input("{}: \"outputs\" must be texts", where);
    }
    prompt.sample.outputs.push_back(each.get<std::string>());
  }
  if (prompt.sample.outputs.empty()) fail_input("{}: \"outputs\" is empty", where);
  return prompt;
}

}  // namespace

std::string text_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

nlohmann::ordered_json ruler_prompt_json(const RulerPrompt& prompt) {
  return {{"task", prompt.task},
          {"length", prompt.length},
          {"index", prompt.index},
          {"input", prompt.sample.input},
          {"answer_prefix", prompt.sample.prefix},
          {"outputs", prompt.sample.outputs},
          {"max_new_tokens", prompt.max_tokens},
          {"score", prompt.score == RulerScore::all ? "all" : "part"},
          {"tokens", prompt.sample.tokens}};
}

std::vector<RulerPrompt> ruler_prompts_read(const std::filesystem::path& path) {
  const std::string text = source_read(path);
  std::vector<RulerPrompt> prompts;
  std::map<std::pair<std::string, std::int64_t>, std::size_t> counts;
  std::set<std::tuple<std::string, std::int64_t, std::size_t>> seen;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", path_printable(path.string()), number + 1);
    const PromptJson json = PromptJson::parse(line, nullptr, false);
    if (!json.is_object()) fail_input("{}: is no JSON object", where);
    RulerPrompt prompt = prompt_parse(json, where);
    std::size_t& count = counts[{prompt.task, prompt.length}];
    prompt.index = static_cast<std::size_t>(
        prompt_number(json, "index", 0, static_cast<std::int64_t>(count), where));
    ++count;
    if (!seen.emplace(prompt.task, prompt.length, prompt.index).second) {
      fail_input("{}: sample {} of {} at {} is there twice", where, prompt.index,
                 text_printable(prompt.task), prompt.length);
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) fail_input("{}: holds no prompts", path_printable(path.string()));
  return prompts;
}

}  // namespace lca::eval
