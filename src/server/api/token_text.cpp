#include "server/api/token_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lca::server {

namespace {

/// A token as a key: text, or its bytes spelt out where they are part of a character.
std::string token_key(std::string_view bytes) {
  if (utf8_valid(bytes)) return std::string(bytes);
  std::string key = "bytes:";
  for (const char c : bytes) key += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return key;
}

Json byte_list(std::string_view bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Json token_entry(const TokenText& token) {
  return {{"token", token.bytes},
          {"logprob", logprob_number(token.logprob.value_or(0))},
          {"bytes", byte_list(token.bytes)}};
}

}  // namespace

bool utf8_valid(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) return false;
    }
    if (length > 2) {  // overlong forms, surrogates, beyond U+10FFFF
      const auto second = static_cast<unsigned char>(bytes[i + 1]);
      if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
          (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

std::int64_t utf8_starts(std::string_view bytes) {
  return std::ranges::count_if(
      bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

double logprob_number(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

Json token_logprobs(std::span<const TokenDetail> tokens) {
  Json list = Json::array();
  for (const TokenDetail& token : tokens) {
    Json entry = token_entry(token);
    Json top = Json::array();
    for (const TokenText& each : token.top) top.push_back(token_entry(each));
    entry["top_logprobs"] = std::move(top);
    list.push_back(std::move(entry));
  }
  return list;
}

Json legacy_logprobs(std::span<const TokenDetail> tokens, std::int64_t& offset) {
  Json texts = Json::array();
  Json numbers = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenDetail& token : tokens) {
    texts.push_back(token_key(token.bytes));
    offsets.push_back(offset);
    offset += utf8_starts(token.bytes);
    if (!token.logprob) {  // the first token of a text
      numbers.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    numbers.push_back(logprob_number(*token.logprob));
    Json top = Json::object();
    for (const TokenText& each : token.top) {
      // Two ids may spell the same: the likelier one stays.
      const std::string key = token_key(each.bytes);
      if (!top.contains(key)) top[key] = logprob_number(each.logprob.value_or(0));
    }
    if (const std::string key = token_key(token.bytes); !top.contains(key)) {
      top[key] = logprob_number(*token.logprob);
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(numbers)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace lca::server
