#include <lca/tokenizer.h>

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/state.h"
#include "formats/tokenizer/utf8.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

namespace lca {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 30;

struct WordHash : std::hash<std::string_view> {
  using is_transparent = void;
};

/// Encodes one text. Caches the ids of words, since most are repeated.
class Encoder {
 public:
  Encoder(const Tokenizer::State& state, const EncodeOptions& options, std::size_t bytes)
      : state_(state), options_(options), budget_(bytes) {}

  std::vector<std::int32_t> encode(std::string_view text) {
    const std::string clean = utf8_clean(text);
    if (!clean.empty()) fragments_encode(clean);
    return std::move(ids_);
  }

 private:
  void fragments_encode(std::string_view text) {
    std::vector<Fragment> fragments;
    state_.raw_finder.cut(text, true, options_.parse_special, fragments);
    for (const Fragment& fragment : fragments) {
      if (fragment.id >= 0) {
        ids_.push_back(fragment.id);
      } else {
        text_encode(fragment);
      }
    }
  }

  void text_encode(const Fragment& fragment) {
    std::string_view text = fragment.text;
    std::string normal;
    if (!state_.normalise.empty()) {
      normal = text_normalise(std::string(text), state_.normalise, budget_);
      text = normal;
    }
    if (text.empty()) return;
    std::vector<Fragment> parts;
    state_.normalised_finder.cut(text, fragment.is_first, options_.parse_special, parts);
    for (const Fragment& part : parts) {
      if (part.id >= 0) {
        ids_.push_back(part.id);
        continue;
      }
      words_each({part.text, part.is_first}, {state_.pre_tokenize, !state_.spells_bytes, budget_},
                 [this](std::string_view word) { word_encode(word); });
    }
  }

  void word_encode(std::string_view word) {
    constexpr std::size_t kLongestKept = 128;
    constexpr std::size_t kMostKept = 200'000;
    const bool is_kept = word.size() <= kLongestKept;
    if (is_kept) {
      if (const auto found = words_.find(word); found != words_.end()) {
        const auto [first, count] = found->second;
        for (std::size_t i = 0; i < count; ++i) ids_.push_back(ids_[first + i]);
        return;
      }
    }
    const std::size_t first = ids_.size();
    if (state_.spells_bytes) {
      spelled_.clear();
      byte_level_spell(spelled_, word);
      state_.model.encode(spelled_, ids_);
    } else {
      state_.model.encode(word, ids_);
    }
    if (is_kept && words_.size() < kMostKept)
      words_.emplace(std::string(word), std::pair(first, ids_.size() - first));
  }

  const Tokenizer::State& state_;
  const EncodeOptions& options_;
  RegexBudget budget_;
  std::vector<std::int32_t> ids_;
  std::string spelled_;
  // Where in ids_ the ids of a word stand, and how many.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, WordHash, std::equal_to<>>
      words_;
};

}  // namespace

void Tokenizer::State::check_id(std::int32_t id) const {
  if (id < 0 || id >= size()) {
    fail_input("{}: there is no token {}; there are {}", where, id, size());
  }
}

std::string_view Tokenizer::State::bytes_of(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return std::string_view(decoded).substr(decoded_begin[index],
                                          decoded_begin[index + 1] - decoded_begin[index]);
}

std::string Tokenizer::State::decode_text(std::int32_t id, RegexBudget& budget) const {
  const auto found = added_by_id.find(id);
  if (found == added_by_id.end()) return std::string(vocabulary.token(id));
  const AddedToken& token = added[found->second];
  if (!token.is_normalised) return token.text;
  return text_normalise(token.text, normalise, budget);
}

void Tokenizer::State::finish() {
  std::int64_t count = vocabulary.size();
  const std::int64_t limit =
      largest_token_id(vocabulary.size() + static_cast<std::int64_t>(added.size()));
  constexpr std::size_t kLongestAdded = 4096;  // looking for one takes time in its length
  for (const AddedToken& token : added) {
    if (token.id < 0 || token.id > limit) {
      fail_input("{}: added token \"{}\" has the id {}, in a vocabulary of {} tokens", where,
                 text_printable(token.text), token.id, vocabulary.size());
    }
    if (token.text.size() > kLongestAdded) {
      fail_input("{}: added token \"{}\" is longer than {} bytes", where,
                 text_printable(token.text), kLongestAdded);
    }
    count = std::max<std::int64_t>(count, token.id + 1);
  }
  is_special.assign(static_cast<std::size_t>(count), 0);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    added_by_id[token.id] = i;
    added_by_text[token.text] = token.id;
    is_special[static_cast<std::size_t>(token.id)] = token.is_special ? 1 : 0;
  }
  // Rewriting must not turn a small file into a large tokenizer.
  std::size_t bytes_left = vocabulary.bytes();
  for (const AddedToken& token : added) bytes_left += token.text.size();
  RegexBudget budget(bytes_left);
  bytes_left = grown_limit(bytes_left);
  const auto account = [&](std::size_t bytes) {
    if (bytes > bytes_left) fail_input("{}: its replacements make tokens too long", where);
    bytes_left -= bytes;
  };
  for (const auto& [id, i] : added_by_id) {
    if (added[i].is_normalised) {
      const std::string spelling = decode_text(id, budget);
      account(spelling.size());
      normalised_finder.add(added[i], spelling);
    } else {
      raw_finder.add(added[i], added[i].text);
    }
  }
  for (const auto* ids : {&prefix, &suffix})
    std::ranges::for_each(*ids, [&](auto id) { check_id(id); });
  if (begin) check_id(*begin);
  if (end) check_id(*end);
  spells_bytes =
      !pre_tokenize.empty() && std::holds_alternative<ByteLevelStep>(pre_tokenize.back());

  decoded_begin.reserve(is_special.size() + 1);
  for (std::int64_t id = 0; id < count; ++id) {
    decoded_begin.push_back(decoded.size());
    const std::string text = decode_text(static_cast<std::int32_t>(id), budget);
    const std::string bytes = decoder.bytes_of(text, false, budget);
    account(bytes.size());
    decoded += bytes;
  }
  decoded_begin.push_back(decoded.size());
  most_bytes = most_token_bytes(*this);
}

void decoded_strip(const TokenDecoder& decoder, std::string& text, std::size_t& left) {
  if (text.empty()) return;
  std::size_t size = 0;
  while (left > 0 && std::string_view(text).substr(size).starts_with(decoder.strip_character)) {
    size += decoder.strip_character.size();
    --left;
  }
  if (size < text.size()) left = 0;
  text.erase(0, size);
}

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  if (text.size() > kLongestText) {
    fail_input("a text of {} bytes is too long for the tokenizer; {} is the most", text.size(),
               kLongestText);
  }
  return guarded([&] {
    std::vector<std::int32_t> ids = Encoder(*state_, options, text.size()).encode(text);
    if (options.add_special) {
      ids.insert(ids.begin(), state_->prefix.begin(), state_->prefix.end());
      ids.insert(ids.end(), state_->suffix.begin(), state_->suffix.end());
    }
    return ids;
  });
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool with_special) const {
  return guarded([&] {
    StreamDecoder decoder(*this, with_special);
    std::string text;
    for (const std::int32_t id : ids) text += decoder.push(id);
    return text + decoder.finish();
  });
}

std::int64_t Tokenizer::size() const { return state_->size(); }

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  const auto found = state_->added_by_text.find(token);
  if (found != state_->added_by_text.end()) return found->second;
  const std::int32_t id = state_->vocabulary.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::token(std::int32_t id) const {
  const auto found = state_->added_by_id.find(id);
  if (found != state_->added_by_id.end()) return state_->added[found->second].text;
  return state_->vocabulary.token(id);
}

std::string_view Tokenizer::bytes(std::int32_t id) const {
  state_->check_id(id);
  return state_->bytes_of(id);
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < size() && state_->is_special[static_cast<std::size_t>(id)] != 0;
}

const std::vector<std::int32_t>& Tokenizer::prefix() const { return state_->prefix; }
const std::vector<std::int32_t>& Tokenizer::suffix() const { return state_->suffix; }
std::optional<std::int32_t> Tokenizer::begin_token() const { return state_->begin; }
std::optional<std::int32_t> Tokenizer::end_token() const { return state_->end; }

std::string Tokenizer::describe() const {
  return fmt::format("{} BPE, {} tokens",
                     state_->spells_bytes ? "byte-level" : "SentencePiece-style", size());
}

const std::vector<std::string>& Tokenizer::warnings() const { return state_->warnings; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool with_special)
    : state_(tokenizer.state_),
      with_special_(with_special),
      strip_left_(state_->decoder.strip_count) {}

std::string StreamDecoder::push(std::int32_t id) {
  state_->check_id(id);
  if (!with_special_ && state_->is_special[static_cast<std::size_t>(id)] != 0) return {};
  if (!first_) pending_ += state_->decoder.separator;
  if (first_ && state_->decoder.first_differs()) {
    RegexBudget budget(0);
    pending_ += state_->decoder.bytes_of(state_->decode_text(id, budget), true, budget);
  } else {
    pending_ += state_->bytes_of(id);
  }
  first_ = false;
  const std::size_t whole = pending_.size() - utf8_cut_bytes(pending_);
  std::string text = utf8_clean(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  decoded_strip(state_->decoder, text, strip_left_);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = utf8_clean(pending_);
  pending_.clear();
  decoded_strip(state_->decoder, text, strip_left_);
  return text;
}

}  // namespace lca
