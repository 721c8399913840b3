// Any text as a JSON schema, and a reply that follows its grammar: the bytes after the schema
// (after a zero byte) choose. Besides the sanitizers' checks: only lca::Error is thrown, each a
// single printable line; a recogniser always has a byte that fits or is at an end; what it ends is
// JSON.

#include "fuzz/require.h"
#include "server/grammar/token_mask.h"

#include <lca/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;
using lca::server::Grammar;
using lca::server::GrammarState;
using lca::server::Json;

const lca::server::TokenMask& byte_mask() {
  static const std::string bytes = [] {
    std::string made;
    for (int i = 0; i < 256; ++i) made.push_back(static_cast<char>(i));
    return made;
  }();
  static const lca::server::TokenMask mask = [] {
    std::vector<std::string_view> tokens;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      tokens.push_back(std::string_view(bytes).substr(i, 1));
    }
    return lca::server::TokenMask(tokens);
  }();
  return mask;
}

/// Writes with the bytes that fit, the one at or after each choice.
void check_reply(const Grammar& grammar, std::string_view choices) {
  GrammarState state = grammar.start();
  lca::server::TokenBits bits;
  std::string text;
  for (const char choice : choices.substr(0, 300)) {
    byte_mask().allowed(state, bits);
    int fitting = -1;
    for (int i = 0; i < 256 && fitting < 0; ++i) {
      const int byte = (static_cast<std::uint8_t>(choice) + i) % 256;
      if ((bits[static_cast<std::size_t>(byte) / 64] >> (byte % 64) & 1U) != 0) fitting = byte;
    }
    require(fitting >= 0 || state.may_end());
    require(state.must_end() == (fitting < 0));
    if (fitting < 0) break;
    text.push_back(static_cast<char>(fitting));
    require(state.advance(std::string_view(text).substr(text.size() - 1)));
  }
  if (state.may_end()) require(Json::accept(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = text.find('\0');
  const Json schema = Json::parse(text.substr(0, zero), nullptr, false);
  if (schema.is_discarded()) return 0;
  try {
    const Grammar grammar = Grammar::from_schema(schema);
    check_reply(grammar, zero == std::string_view::npos ? "" : text.substr(zero + 1));
  } catch (const lca::Error& error) {
    check_message(error, "");
  }
  return 0;
}
