#pragma once
/// Helpers of the grammar's tests.

#include "server/grammar/grammar.h"
#include "server/grammar/token_mask.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lca::test {

/// Whether the whole text is in the grammar.
inline bool accepts(const server::Grammar& grammar, std::string_view text) {
  server::GrammarState state = grammar.start();
  return state.advance(text) && state.may_end();
}

inline bool begins(const server::Grammar& grammar, std::string_view text) {
  return grammar.start().advance(text);
}

inline server::Grammar schema_grammar(std::string_view text) {
  return server::Grammar::from_schema(server::Json::parse(text));
}

/// All single bytes, and random pieces of what JSON is made of: characters cut in two, escapes,
/// quotes in the middle.
inline std::vector<std::string> small_vocabulary(std::uint64_t seed) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 256; ++i) tokens.emplace_back(1, static_cast<char>(i));
  const std::vector<std::string> pieces = {
      "{",    "}",      "[",    "]",    "\"",       ":",        ",",  " ",    "\n",   "a",
      "b",    "é",      "\xc3", "\xa9", "\xf0\x9f", "\x98\x80", "\\", "\\u",  "d83d", "\\ude00",
      "n",    "0",      "1",    "25",   "-",        ".",        "e",  "true", "null", "false",
      "\": ", "\", \"", "\"}",  "],",   "  ",       "x",        "z"};
  std::mt19937_64 random(seed);
  for (int i = 0; i < 600; ++i) {
    std::string made;
    for (std::size_t k = 1 + random() % 4; k > 0; --k) made += pieces[random() % pieces.size()];
    tokens.push_back(std::move(made));
  }
  tokens.emplace_back();        // an id without bytes
  tokens.push_back("{\"a\":");  // two ids with the same bytes
  tokens.push_back("{\"a\":");
  return tokens;
}

inline std::vector<std::string_view> views(const std::vector<std::string>& tokens) {
  return {tokens.begin(), tokens.end()};
}

}  // namespace lca::test
