#include "eval/chat_prompt.h"

#include <string>

#include "core/error.h"

namespace lca::eval {
namespace {

/// Stands for the gap: characters for private use, which no tokenizer changes and no task contains.
constexpr std::string_view kGap = "\uE0F0\uE0F1\uE0F2";

constexpr EncodeOptions kNoSpecial{.add_special = false, .parse_special = false};

void ids_append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, ChatTemplate chat)
    : tokenizer_(tokenizer), chat_(std::move(chat)) {
  const std::vector<std::int32_t> ids = tokenizer_.encode("a", kNoSpecial);
  leads_ = !ids.empty() && tokenizer_.bytes(ids.front()).starts_with(' ');
}

std::vector<std::int32_t> ChatPrompt::encode_inside(std::string_view text) const {
  if (leads_ && text.starts_with(' ')) text.remove_prefix(1);
  return text.empty() ? std::vector<std::int32_t>() : tokenizer_.encode(text, kNoSpecial);
}

std::vector<std::int32_t> ChatPrompt::encode(std::string_view text, std::string_view prefix) const {
  const bool plain = chat_.format() == ChatFormat::plain;
  const ChatMessage message{ChatMessage::Role::user,
                            std::string(text) + std::string(plain ? prefix : "")};
  std::vector<std::int32_t> ids = chat_.prompt({&message, 1});
  if (!plain) ids_append(ids, encode_inside(prefix));
  return ids;
}

std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> ChatPrompt::encode_around(
    std::string_view before, std::string_view after, std::string_view prefix) const {
  const std::vector<std::int32_t> ids =
      encode(std::string(before) + std::string(kGap) + std::string(after), prefix);
  std::string bytes;
  std::vector<std::size_t> begins;  // of each id in `bytes`
  for (const std::int32_t id : ids) {
    begins.push_back(bytes.size());
    bytes += tokenizer_.bytes(id);
  }
  begins.push_back(bytes.size());
  const std::size_t gap = bytes.find(kGap), end = gap + kGap.size();
  if (gap == std::string::npos || bytes.find(kGap, gap + 1) != std::string::npos) {
    fail_incompatible(
        "the model's tokenizer or chat format changes characters for private use, so that a long "
        "text cannot be put into a prompt token by token; choose another chat format");
  }
  std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> halves;
  bool reached = false;  // the gap; an id without bytes may stand at its beginning
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!reached && begins[i + 1] <= gap) {
      halves.first.push_back(ids[i]);
      continue;
    }
    reached = true;
    if (begins[i] >= end) {
      halves.second.push_back(ids[i]);
      continue;
    }
    // It holds a part of the gap, and maybe text beside it.
    if (begins[i] < gap) {
      ids_append(halves.first, encode_inside(bytes.substr(begins[i], gap - begins[i])));
    }
    if (begins[i + 1] > end) {
      ids_append(halves.second, encode_inside(bytes.substr(end, begins[i + 1] - end)));
    }
  }
  return halves;
}

}  // namespace lca::eval
