#include "eval/haystack.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace lca::eval {
namespace {

// What begins with a token.
constexpr std::uint8_t kNoCut = 0, kWord = 1, kSentence = 2;

/// A sentence may be this many tokens from where it is wanted; else a word is taken.
constexpr std::int64_t kNear = 96;
/// Fewer are no text.
constexpr std::size_t kFewestTokens = 16;

bool hay_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/// Whether a sentence ends with these bytes: a full stop, question or exclamation mark, and maybe
/// closing quotes or brackets.
bool hay_sentence_ends(std::string_view bytes) {
  constexpr std::string_view kClosing[] = {"\"", "'", ")", "]", "*", "_", "\u201d", "\u2019"};
  for (bool stripped = true; stripped;) {
    stripped = false;
    for (const std::string_view mark : kClosing) {
      if (!bytes.ends_with(mark)) continue;
      bytes.remove_suffix(mark.size());
      stripped = true;
    }
  }
  return bytes.ends_with('.') || bytes.ends_with('!') || bytes.ends_with('?');
}

}  // namespace

std::string_view haystack_noise() {
  return "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
         "again.";
}

std::string text_squeezed(std::string_view text) {
  std::string squeezed;
  squeezed.reserve(text.size());
  bool blank = false;
  for (const char c : text) {
    if (hay_blank(c)) {
      blank = true;
      continue;
    }
    if (blank && !squeezed.empty()) squeezed += ' ';
    blank = false;
    squeezed += c;
  }
  return squeezed;
}

Haystack::Haystack(const ChatPrompt& prompt, std::span<const std::string> texts, ThreadPool* pool)
    : prompt_(prompt), built_in_(texts.empty()) {
  const std::string noise(haystack_noise());
  if (built_in_) texts = {&noise, 1};
  std::vector<std::vector<std::int32_t>> encoded(texts.size());
  const auto encode = [&](std::int64_t task, int) {
    const auto i = static_cast<std::size_t>(task);
    const std::string squeezed = text_squeezed(texts[i]);
    // As it is after another sentence, so that texts can be joined and facts put before them.
    if (!squeezed.empty()) encoded[i] = prompt_.encode_inside(" " + squeezed);
  };
  if (pool != nullptr) {
    pool->run(std::ssize(texts), encode);
  } else {
    for (std::int64_t i = 0; i < std::ssize(texts); ++i) encode(i, 0);
  }
  for (const std::vector<std::int32_t>& ids : encoded) text_add(ids);
  if (ids_.size() < kFewestTokens) {
    fail_input(
        "the texts hold {} tokens, too few to hide something among them; at least {} are "
        "needed",
        ids_.size(), kFewestTokens);
  }
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    if (cuts_[i] == kSentence) starts_.push_back(static_cast<std::int64_t>(i));
  }
}

void Haystack::text_add(const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return;
  begins_.push_back(tokens());
  std::string last;  // bytes before the token
  for (const std::int32_t id : ids) {
    const std::string_view bytes = prompt_.tokenizer().bytes(id);
    std::uint8_t cut = kNoCut;
    if (last.empty()) {
      cut = kSentence;
    } else if (bytes.starts_with(' ')) {
      cut = hay_sentence_ends(last) ? kSentence : kWord;
    }
    cuts_.push_back(cut);
    last += bytes;
    constexpr std::size_t kKept = 16;
    if (last.size() > kKept) last.erase(0, last.size() - kKept);
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

std::size_t Haystack::at(std::int64_t place) const {
  return static_cast<std::size_t>(place % tokens());
}

/// Where a piece of `tokens` tokens begins: at a sentence of the text, so that the piece ends
/// inside the text if that is long enough.
std::int64_t Haystack::start(std::int64_t tokens, std::uint64_t text, Draw& draw) const {
  const std::size_t number = text % begins_.size();
  const std::int64_t begin = begins_[number];
  const std::int64_t end = number + 1 < begins_.size() ? begins_[number + 1] : this->tokens();
  const std::int64_t last = end - begin > tokens ? end - tokens : end - 1;
  const auto from = std::ranges::lower_bound(starts_, begin);
  const auto to = std::ranges::upper_bound(starts_, last);
  const auto count = static_cast<std::uint64_t>(to - from);
  return count == 0 ? begin : *(from + static_cast<std::ptrdiff_t>(draw.below(count)));
}

Haystack::FirstWord Haystack::first_word(std::int64_t first) const {
  FirstWord word;
  word.count = 1;
  while (word.count < tokens() && cuts_[at(first + word.count)] == kNoCut) ++word.count;
  std::string bytes;
  for (std::int64_t i = 0; i < word.count; ++i) {
    bytes += prompt_.tokenizer().bytes(ids_[at(first + i)]);
  }
  if (bytes.starts_with(' ')) bytes.erase(0, 1);
  word.ids = prompt_.encode_inside(bytes);
  return word;
}

/// How many of the `count` tokens from `first` on are before the cut that is nearest to `wanted`.
std::int64_t Haystack::cut_near(std::int64_t first, std::int64_t count, std::int64_t wanted) const {
  if (wanted <= 0) return 0;
  if (wanted >= count) return count;
  std::int64_t word = -1;
  for (std::int64_t away = 0; away <= std::max(wanted, count - wanted); ++away) {
    for (const std::int64_t place : {wanted - away, wanted + away}) {
      if (place < 0 || place > count) continue;
      if (place == 0 || place == count) return word >= 0 && away > kNear ? word : place;
      const std::uint8_t cut = cuts_[at(first + place)];
      if (cut == kSentence) return word >= 0 && away > kNear ? word : place;
      if (cut == kWord && word < 0) word = place;
    }
    if (word >= 0 && away > kNear) return word;
  }
  return word >= 0 ? word : wanted;
}

HaystackPiece Haystack::piece(std::int64_t tokens, std::span<const HaystackFact> facts,
                              std::uint64_t text, Draw& draw) const {
  std::vector<std::vector<std::int32_t>> sentences;
  std::int64_t needed = 0;
  for (const HaystackFact& fact : facts) {
    sentences.push_back(prompt_.encode_inside(" " + fact.sentence));
    needed += std::ssize(sentences.back());
  }
  constexpr std::int64_t kSpare = 3;  // a sentence without the space before it may be longer
  std::int64_t own = tokens - needed - kSpare;
  if (own < 1) {
    fail_input(
        "{} tokens do not hold {} facts of {} tokens and text around them; choose a greater "
        "length",
        tokens, facts.size(), needed);
  }
  const std::int64_t first = start(own, text, draw);
  const FirstWord word = first_word(first);
  own = std::max<std::int64_t>(1, own - std::max<std::int64_t>(0, word.longer() - kSpare));
  // It ends with a sentence where one ends in the last tokens, else with a word.
  for (std::int64_t less = 0; less < std::min(own / 8, kNear); ++less) {
    if (cuts_[at(first + own - less)] != kSentence) continue;
    own -= less;
    break;
  }
  while (own > 1 && cuts_[at(first + own)] == kNoCut) --own;

  std::vector<std::int64_t> places;
  for (const HaystackFact& fact : facts) {
    const auto wanted = static_cast<std::int64_t>(fact.depth * static_cast<double>(own) + 0.5);
    places.push_back(cut_near(first, own, wanted));
  }
  std::vector<std::size_t> order(facts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return places[i]; });

  HaystackPiece piece;
  piece.own = own;
  piece.begins.resize(facts.size());
  piece.ends.resize(facts.size());
  piece.ids.reserve(static_cast<std::size_t>(tokens));
  std::int64_t done = 0;
  const auto copy_until = [&](std::int64_t end) {
    if (piece.ids.empty() && end >= word.count) {
      piece.ids = word.ids;
      done = word.count;
    }
    while (done < end) {
      const std::size_t from = at(first + done);
      const std::size_t count = std::min(static_cast<std::size_t>(end - done), ids_.size() - from);
      const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(from);
      piece.ids.insert(piece.ids.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
      done += static_cast<std::int64_t>(count);
    }
  };
  for (const std::size_t i : order) {
    copy_until(places[i]);
    piece.begins[i] = std::ssize(piece.ids);
    const std::vector<std::int32_t> sentence =
        piece.ids.empty() ? prompt_.encode_inside(facts[i].sentence) : sentences[i];
    piece.ids.insert(piece.ids.end(), sentence.begin(), sentence.end());
    piece.ends[i] = std::ssize(piece.ids);
  }
  copy_until(own);
  return piece;
}

}  // namespace lca::eval
