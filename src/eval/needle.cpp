#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "attention/layout.h"
#include "core/error.h"
#include "eval/key_words.h"

namespace lca::eval {
namespace {

constexpr std::int64_t kMostKeys = 64;
constexpr std::int64_t kMostSamples = 1'000'000;
constexpr std::string_view kTask = "needle";

// RULER's wording for one value that is asked for.
constexpr std::string_view kInstruction =
    "A special magic number is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the number afterwards.\n";

std::string needle_sentence(std::string_view key, std::string_view value) {
  return fmt::format("One of the special magic numbers for {} is: {}.", key, value);
}

std::string needle_question(std::string_view key) {
  return fmt::format("What is the special magic number for {} mentioned in the provided text?",
                     key);
}

std::string needle_prefix(std::string_view key) {
  return fmt::format(" The special magic number for {} mentioned in the provided text is", key);
}

std::uint64_t depth_name(double depth) {
  return static_cast<std::uint64_t>(std::llround(depth * 1e6));
}

/// The order of rows.
auto row_place(const NeedleRow& row) {
  return std::tuple(row.length, row.keys, row.question == Question::last ? 0 : 1, row.depth,
                    row.place);
}

}  // namespace

std::string_view place_name(Place place) {
  switch (place) {
    case Place::inside:
      return "inside";
    case Place::straddling:
      return "straddling";
    case Place::outside:
      break;
  }
  return "outside";
}

std::string_view question_name(Question question) {
  return question == Question::first ? "first" : "last";
}

Place place_of(std::span<const Settings> layers, std::int64_t begin, std::int64_t end,
               std::int64_t prompt) {
  bool all_inside = true, all_outside = !layers.empty();
  for (const Settings& settings : layers) {
    const Layout layout(settings);
    // The query at the prompt's last token predicts the first of the answer; what it sees of the
    // tokens themselves is the sink and the window.
    const Visible seen = layout.visible(prompt - 1);
    const auto exact = [&](std::int64_t token) {
      return seen.sink.contains(token) || seen.window.contains(token);
    };
    bool whole = true;
    for (std::int64_t token = begin; token < end && whole; ++token) whole = exact(token);
    all_inside = all_inside && whole;
    all_outside = all_outside && !exact(end - 1);
  }
  if (all_inside) return Place::inside;
  return all_outside ? Place::outside : Place::straddling;
}

void NeedleOptions::validate() const {
  if (lengths.empty() || keys.empty() || depths.empty() || questions.empty()) {
    fail_input("lengths, keys, depths and questions need at least one value each");
  }
  for (const std::int64_t length : lengths) {
    if (length < 1) fail_input("a length is {}; it must be 1 or more", length);
  }
  for (const std::int64_t count : keys) {
    if (count < 1 || count > kMostKeys) {
      fail_input("keys are {}; a haystack takes 1 to {}", count, kMostKeys);
    }
  }
  for (const double depth : depths) {
    if (!(depth >= 0 && depth <= 1)) fail_input("a depth is {}; it is a share from 0 to 1", depth);
  }
  if (samples < 1 || samples > kMostSamples) {
    fail_input("samples are {}; they can be 1 to {}", samples, kMostSamples);
  }
}

NeedleTask::NeedleTask(const Tokenizer& tokenizer, ChatTemplate chat,
                       std::span<const std::string> texts, NeedleOptions options, ThreadPool* pool)
    : options_(std::move(options)),
      prompt_(tokenizer, std::move(chat)),
      haystack_(prompt_, texts, pool) {
  options_.validate();
}

std::size_t NeedleTask::count() const {
  return static_cast<std::size_t>(options_.samples) * options_.lengths.size() *
         options_.keys.size() * options_.depths.size() * options_.questions.size();
}

NeedleCase NeedleTask::at(std::size_t index) const {
  const auto next = [&index](const auto& values) {
    const auto value = values[index % values.size()];
    index /= values.size();
    return value;
  };
  NeedleCase made;
  made.depth = next(options_.depths);
  made.question = next(options_.questions);
  made.keys = next(options_.keys);
  made.length = next(options_.lengths);
  made.sample = static_cast<std::int64_t>(index);
  return made;
}

NeedlePrompt NeedleTask::make(const NeedleCase& sample) const {
  // The question's place is no name of the stream: both have the same text, keys and values.
  Draw cell({options_.seed, static_cast<std::uint64_t>(sample.length),
             static_cast<std::uint64_t>(sample.keys), depth_name(sample.depth)});
  const std::uint64_t text = cell.next() % haystack_.texts();
  Draw draw({cell.next(), static_cast<std::uint64_t>(sample.sample)});

  NeedlePrompt made;
  std::vector<std::string> keys;
  std::vector<HaystackFact> facts;
  while (std::ssize(keys) < sample.keys) {
    std::string key = key_draw(draw);
    if (std::ranges::find(keys, key) != keys.end()) continue;
    const std::string value = fmt::format("{}", 1'000'000 + draw.below(9'000'000));
    const double depth = keys.empty() ? sample.depth : draw.unit();
    facts.push_back({depth, needle_sentence(key, value)});
    if (keys.empty()) {
      made.key = key;
      made.value = value;
    }
    keys.push_back(std::move(key));
  }

  const std::string question = needle_question(made.key);
  const bool first = sample.question == Question::first;
  std::string before = (first ? question + "\n" : std::string()) + std::string(kInstruction);
  const auto [head, tail] = prompt_.encode_around(before, first ? "" : "\n" + question,
                                                  options_.prefix ? needle_prefix(made.key) : "");
  const std::int64_t left = sample.length - kNeedleReply - std::ssize(head) - std::ssize(tail);
  if (left < 1) {
    fail_input("{}: a length of {} tokens is too short; the question alone takes {}", kTask,
               sample.length, sample.length - left);
  }
  HaystackPiece piece =
      haystack_.piece(left, facts, text + static_cast<std::uint64_t>(sample.sample), draw);
  made.begin = std::ssize(head) + piece.begins.front();
  made.end = std::ssize(head) + piece.ends.front();
  made.ids.reserve(head.size() + piece.ids.size() + tail.size());
  made.ids = head;
  made.ids.insert(made.ids.end(), piece.ids.begin(), piece.ids.end());
  made.ids.insert(made.ids.end(), tail.begin(), tail.end());
  return made;
}

bool needle_hit(std::string_view reply, std::string_view value) {
  return reply.find(value) != std::string_view::npos;
}

void NeedleTable::add(const NeedleCase& sample, Place place, bool hit) {
  NeedleRow row{sample.length, sample.keys, sample.depth, place, sample.question, 0, 0};
  auto found = std::ranges::lower_bound(rows_, row_place(row), {}, row_place);
  if (found == rows_.end() || row_place(*found) != row_place(row)) found = rows_.insert(found, row);
  ++found->samples;
  if (hit) ++found->hits;
}

}  // namespace lca::eval
