// Time of a token mask, step by step through JSON texts, for the tokenizers given as arguments:
// per step the recogniser's advance and TokenMask::apply on a row of logits. Prints a table.
//
//   bench_token_mask TOKENIZER[:IDS]…
//
// With IDS the vocabulary is filled up to so many ids with joined pairs of its own tokens.
// "first" is the first text with an empty cache, the others are later ones.

#include "server/grammar/token_mask.h"

#include <lca/error.h>
#include <lca/tokenizer.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using lca::server::Grammar;
using lca::server::GrammarState;
using lca::server::Json;
using lca::server::TokenMask;
using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  Grammar grammar;
  std::string text;
};

std::vector<Case> cases_make() {
  const std::string words =
      "the quick brown fox jumps over the lazy dog and says \\\"hello\\\", again; ";
  std::string prose;
  for (int i = 0; i < 6; ++i) prose += words;
  const Json person =
      Json::parse(R"({"type":"object","properties":{"name":{"type":"string","maxLength":40},
    "age":{"type":"integer","minimum":0,"maximum":130},"role":{"enum":["reader","writer","editor"]},
    "tags":{"type":"array","items":{"type":"string"},"maxItems":5},"note":{"type":"string"},
    "friend":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
    "required":["name","age","role","tags","note","friend"],"additionalProperties":false})");
  const std::string inner =
      R"({"name": "Ada Lovelace", "age": 36, "role": "writer", "tags": ["first", "notes on engines"],)"
      R"( "note": ")" +
      words + R"(", "friend": )";
  Json wide{{"type", "object"},
            {"properties", Json::object()},
            {"additionalProperties", {{"type", "string"}}}};
  std::string wide_text = "{";
  for (int i = 0; i < 200; ++i) {
    wide["properties"]["property_" + std::to_string(i)] = Json{{"type", "string"}};
    if (i % 20 == 7) wide_text += "\"property_" + std::to_string(i) + "\": \"some value\", ";
  }
  wide_text += R"("property_of_its_own": "another value"})";
  return {{"any object", Grammar::json_object(),
           R"({"title": ")" + prose + R"(", "list": [1, 2.5, true, {"a": null}]})"},
          {"schema, recursive", Grammar::from_schema(person), inner + inner + "null}}"},
          {"200 optional properties", Grammar::from_schema(wide), wide_text}};
}

struct Times {
  std::vector<double> apply;
  double advance = 0;
};

std::vector<std::string> tokens_make(const lca::Tokenizer& tokenizer, std::size_t count) {
  std::vector<std::string> made(static_cast<std::size_t>(tokenizer.size()));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokenizer.is_special(id)) made[i] = tokenizer.bytes(id);
  }
  std::mt19937_64 random(1);
  const std::size_t own = made.size();
  while (made.size() < count) made.push_back(made[random() % own] + made[random() % own]);
  return made;
}

Times text_time(const TokenMask& mask, const lca::Tokenizer& tokenizer, const Case& one) {
  Times times;
  std::vector<float> logits(mask.vocabulary().size());
  const std::vector<std::int32_t> ends = {0};
  GrammarState state = one.grammar.start();
  for (const std::int32_t id : tokenizer.encode(one.text, {.parse_special = false})) {
    std::fill(logits.begin(), logits.end(), 1.0F);
    const auto start = Clock::now();
    mask.apply(state, logits, ends);
    const auto masked = Clock::now();
    if (!state.advance(tokenizer.bytes(id))) {
      throw lca::Error(lca::ErrorKind::internal, std::string("refused: ") + one.name);
    }
    times.apply.push_back(std::chrono::duration<double, std::micro>(masked - start).count());
    times.advance += std::chrono::duration<double, std::micro>(Clock::now() - masked).count();
  }
  times.advance /= static_cast<double>(times.apply.size());
  std::sort(times.apply.begin(), times.apply.end());
  return times;
}

void table_print(const std::string& argument) {
  const std::size_t colon = argument.find(':');
  const lca::Tokenizer tokenizer = lca::Tokenizer::open(argument.substr(0, colon));
  const std::size_t ids = colon == std::string::npos ? 0 : std::stoul(argument.substr(colon + 1));
  const std::vector<std::string> tokens = tokens_make(tokenizer, ids);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto start = Clock::now();
  const TokenMask mask(views);
  const double made = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  std::printf("\n%s; %zu ids, %u nodes, tree made in %.0f ms\n\n", tokenizer.describe().c_str(),
              tokens.size(), mask.vocabulary().node_count(), made);
  std::printf(
      "| text | steps | mask, median µs | p95 | max | first text: median | max | advance µs |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Case& one : cases_make()) {
    const TokenMask fresh(views);
    const Times first = text_time(fresh, tokenizer, one);
    Times later = text_time(fresh, tokenizer, one);
    for (int i = 0; i < 4; ++i) {
      const Times again = text_time(fresh, tokenizer, one);
      if (again.apply[again.apply.size() / 2] < later.apply[later.apply.size() / 2]) later = again;
    }
    const auto at = [](const Times& times, double part) {
      return times
          .apply[static_cast<std::size_t>(part * static_cast<double>(times.apply.size() - 1))];
    };
    std::printf("| %s | %zu | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f |\n", one.name,
                first.apply.size(), at(later, 0.5), at(later, 0.95), at(later, 1), at(first, 0.5),
                at(first, 1), later.advance);
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    for (int i = 1; i < count; ++i) table_print(arguments[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
