// tokenizer_from_tables: the tables of a GGUF file.

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/state.h"
#include "formats/tokenizer/utf8.h"

#include <cmath>
#include <limits>
#include <utility>

namespace lca {
namespace {

enum TokenType : std::int64_t { kNormal = 1, kUnknown, kControl, kUser, kUnused, kByte };

constexpr const char* kSpaceSymbol = "\xe2\x96\x81";  // U+2581

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// The letters DeepSeek's first tokenizer knows: those with an upper and a lower case.
constexpr const char* kDeepSeekLetters =
    R"(\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293)"
    R"(\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c)"
    R"(\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5)"
    R"(\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77)"
    R"(\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59)"
    R"(\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc)"
    R"(\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107)"
    R"(\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139)"
    R"(\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee)"
    R"(\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e)"
    R"(\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\x{10400}-\x{1044f})"
    R"(\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2})"
    R"(\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr const char* kDeepSeekPunctuation =
    R"(\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+)";
constexpr const char* kDeepSeekEastAsian = R"([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)";

SplitStep isolate(const char* pattern, const Tokenizer::State& state) {
  return {Regex(pattern, state.where), SplitBehaviour::isolated, false};
}

/// A file that names no pre-tokenizer ("default" is no name of one either) is split as GPT-2 does
/// where that may be right, with a warning; where the architecture is known to split otherwise it
/// is refused, because every long number and every language but English would come out wrong.
void pre_tokenizer_missing(const GgufTokenizer& tables, Tokenizer::State& state) {
  const std::string_view architecture = tables.architecture;
  if (architecture == "gpt2") return;
  if (architecture == "qwen2" || architecture == "deepseek2") {
    fail_input(
        "{}: tokenizer.ggml.pre is {}, and {} models split text in a way of their own; convert the "
        "model again",
        state.where, tables.pre.empty() ? "missing" : "\"default\"", architecture);
  }
  state.warnings.push_back(fmt::format(
      "{}: tokenizer.ggml.pre is {}: text is split as GPT-2 does, which may not be how the model "
      "was trained; convert the model again",
      state.where, tables.pre.empty() ? "missing" : "\"default\""));
}

/// The pre-tokenizer a file names. The steps end in the byte-level alphabet.
void pre_tokenizer_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  const std::string_view name = tables.pre;
  auto& steps = state.pre_tokenize;
  bool splits = false;  // by GPT-2's expression
  if (name == "smollm" || name == "starcoder" || name == "refact") {
    steps.emplace_back(DigitsStep{true});
    splits = true;
  } else if (name.empty() || name == "default") {
    pre_tokenizer_missing(tables, state);
    splits = true;
  } else if (name == "gpt-2") {
    splits = true;
  } else if (name == "qwen2" || name == "deepseek-r1-qwen") {
    state.normalise.emplace_back(NormalForm::nfc);
    steps.emplace_back(isolate(kQwen2Pattern, state));
  } else if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    steps.emplace_back(isolate(kLlama3Pattern, state));
    state.model.ignore_merges = true;
  } else if (name == "deepseek-llm") {
    steps.emplace_back(isolate("[\\r\\n]", state));
    steps.emplace_back(isolate(kDeepSeekLetters, state));
    steps.emplace_back(isolate(kDeepSeekPunctuation, state));
    steps.emplace_back(isolate("\\s+$", state));
    steps.emplace_back(isolate(kDeepSeekEastAsian, state));
    steps.emplace_back(DigitsStep{true});
  } else if (name == "deepseek-coder") {
    steps.emplace_back(isolate("[\\r\\n]", state));
    steps.emplace_back(isolate("\\s?\\p{L}+", state));
    steps.emplace_back(isolate("\\s?\\p{P}+", state));
    steps.emplace_back(isolate(kDeepSeekEastAsian, state));
    steps.emplace_back(DigitsStep{true});
  } else {
    fail_input(
        "{}: tokenizer.ggml.pre \"{}\" is not supported; gpt-2, smollm, starcoder, refact, qwen2, "
        "deepseek-r1-qwen, deepseek-llm, deepseek-coder, llama-bpe, llama3 and llama-v3 are",
        state.where, text_printable(name));
  }
  steps.emplace_back(ByteLevelStep{false, splits});
}

void merges_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  if (tables.merges.empty()) {
    fail_input("{}: tokenizer.ggml.merges is missing or empty; convert the model again",
               state.where);
  }
  state.model.merges_reserve(tables.merges.size());
  for (const std::string_view line : tables.merges) {
    // A token may be a space itself only where it is spelled in the byte-level alphabet.
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == line.size()) {
      fail_input("{}: \"{}\" in tokenizer.ggml.merges is not two tokens", state.where,
                 text_printable(line));
    }
    state.model.merge_add(line.substr(0, space), line.substr(space + 1), state.where);
  }
}

void byte_level_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  pre_tokenizer_set(tables, state);
  merges_set(tables, state);
  state.decoder.steps.emplace_back(ByteLevelDecode{});
}

void sentence_piece_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  if (tables.scores.empty()) {
    fail_input("{}: tokenizer.ggml.scores is missing; convert the model again", state.where);
  }
  std::vector<std::optional<float>> scores(tables.scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::int64_t type = tables.types.empty() ? std::int64_t{kNormal} : tables.types[i];
    if (std::isnan(tables.scores[i])) {
      fail_input("{}: tokenizer.ggml.scores[{}] is not a number", state.where, i);
    }
    if (type == kNormal || type == kUser || type == kUnused) {
      scores[i] = static_cast<float>(tables.scores[i]);
    }
  }
  const bool has_prefix = tables.add_space_prefix.value_or(true);
  const Regex space = Regex::literal(" ", state.where);
  if (has_prefix) state.normalise.emplace_back(PrependStep{kSpaceSymbol});
  state.normalise.emplace_back(ReplaceStep{space, kSpaceSymbol, 1});
  BpeModel& model = state.model;
  model.scores_set(std::move(scores));
  model.byte_fallback_set();
  model.fuse_unknown = true;
  model.has_unknown = tables.unknown.has_value();
  if (tables.unknown) model.unknown = static_cast<std::int32_t>(*tables.unknown);

  state.decoder.steps.emplace_back(ReplaceStep{Regex::literal(kSpaceSymbol, state.where), " "});
  state.decoder.steps.emplace_back(ByteFallbackDecode{});
  if (has_prefix) {
    state.decoder.strip_character = " ";
    state.decoder.strip_count = 1;
  }
}

void added_tokens_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  for (std::size_t i = 0; i < tables.types.size(); ++i) {
    const std::int64_t type = tables.types[i];
    if ((type != kControl && type != kUser && type != kUnknown) || tables.tokens[i].empty()) {
      continue;
    }
    AddedToken token;
    token.id = static_cast<std::int32_t>(i);
    token.text = tables.tokens[i];
    token.is_special = type != kUser;
    state.added.push_back(std::move(token));
  }
}

std::optional<std::int32_t> token_id(std::optional<std::int64_t> id, std::string_view name,
                                     const GgufTokenizer& tables, std::string_view where) {
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<std::int64_t>(tables.tokens.size())) {
    fail_input("{}: tokenizer.ggml.{} is {}, but there are {} tokens", where, name, *id,
               tables.tokens.size());
  }
  return static_cast<std::int32_t>(*id);
}

void ends_set(const GgufTokenizer& tables, Tokenizer::State& state) {
  const std::string_view where = state.where;
  state.begin = token_id(tables.begin, "bos_token_id", tables, where);
  state.end = token_id(tables.end, "eos_token_id", tables, where);
  token_id(tables.unknown, "unknown_token_id", tables, where);
  const bool begins = tables.model == "llama" || tables.pre == "llama-bpe" ||
                      tables.pre == "llama3" || tables.pre == "llama-v3";
  if (tables.add_begin.value_or(begins) && state.begin) state.prefix.push_back(*state.begin);
  if (tables.add_end.value_or(false) && state.end) state.suffix.push_back(*state.end);
}

}  // namespace

Tokenizer tokenizer_from_tables(const GgufTokenizer& tables, std::string_view where) {
  auto state = std::make_shared<Tokenizer::State>();
  state->where = where;
  const std::size_t count = tables.tokens.size();
  if (count == 0) fail_input("{}: tokenizer.ggml.tokens is missing or empty", where);
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail_input("{}: tokenizer.ggml.tokens has {} entries, too many", where, count);
  }
  const auto check_size = [&](std::string_view name, std::size_t size) {
    if (size == 0 || size == count) return;
    fail_input("{}: tokenizer.ggml.{} has {} entries for {} tokens", where, name, size, count);
  };
  check_size("scores", tables.scores.size());
  check_size("token_type", tables.types.size());

  for (std::size_t i = 0; i < count; ++i) {
    state->vocabulary.add(tables.tokens[i], static_cast<std::int64_t>(i));
  }
  state->vocabulary.index(where, true);
  state->model.where = where;
  ends_set(tables, *state);
  added_tokens_set(tables, *state);
  if (tables.model == "gpt2") {
    byte_level_set(tables, *state);
  } else if (tables.model == "llama") {
    sentence_piece_set(tables, *state);
  } else {
    fail_input("{}: tokenizer.ggml.model \"{}\" is not supported; gpt2 and llama are", where,
               text_printable(tables.model));
  }
  state->finish();
  return Tokenizer(std::move(state));
}

}  // namespace lca
