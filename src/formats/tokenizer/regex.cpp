#include "formats/tokenizer/regex.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/unicode_additions.h"
#include "formats/tokenizer/utf8.h"

#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

namespace lca {

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool is_jit = false;
  std::string pattern;  // as the file spells it
  std::string where;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

namespace {

constexpr std::size_t kLongestPattern = 16384;
// What one call may take: positions × steps at each. A fraction of a second.
constexpr std::size_t kMostSteps = 250'000'000;
constexpr std::size_t kLeastFreeSteps = 256;  // ordinary expressions take a few

/// Time the processor spent on this thread: the same however busy the machine is.
double thread_seconds() {
  struct timespec now {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

/// Memory for matching, one set a thread.
struct Scratch {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  Scratch() {
    // One pair: only where the whole match lies is of interest.
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    if (data == nullptr || context == nullptr) fail_memory("out of memory for regular expressions");
    constexpr std::size_t kSmallStack = 32 * 1024;
    constexpr std::size_t kLargeStack = 8 * 1024 * 1024;
    stack = pcre2_jit_stack_create(kSmallStack, kLargeStack, nullptr);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    constexpr std::uint32_t kHeapKibibytes = 64 * 1024;
    pcre2_set_heap_limit(context, kHeapKibibytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// Unicode's White_Space and all else, as ranges of a character class. PCRE2's own \s has one
/// character more (U+180E).
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";

/// Rewrites a pattern piece by piece, and stops at what would silently mean something else.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : rest_(pattern), where_(where) {}

  std::string translate() {
    if (rest_.size() > kLongestPattern) {
      fail_input("{}: a regular expression is longer than {} bytes", where_, kLongestPattern);
    }
    const std::size_t whole = rest_.size();
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else if (in_class_) {
        class_part();
      } else if (rest_[0] == '[') {
        in_class_ = true;
        take(rest_.starts_with("[^") ? 2 : 1);
        if (rest_.starts_with(']')) refuse("[]");
      } else if (rest_.starts_with("(?")) {
        group(rest_.size() == whole);
      } else if (rest_.starts_with("(*") || rest_.starts_with("{,")) {
        refuse(rest_.substr(0, 2));
      } else if (rest_[0] == '}') {
        take(1);
        if (rest_.starts_with('+')) refuse("}+");
      } else {
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    fail_input("{}: a regular expression uses \"{}\", which is not supported", where_,
               text_printable(part));
  }

  void take(std::size_t count) {
    count = std::min(count, rest_.size());
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  void put(std::string_view text, std::size_t instead_of) {
    out_ += text;
    rest_.remove_prefix(instead_of);
  }

  void class_part() {
    if (rest_[0] == ']') {
      in_class_ = false;
    } else if (rest_[0] == '[' || rest_.starts_with("&&")) {
      refuse(rest_.substr(0, 2));
    }
    take(1);
  }

  void group(bool is_first) {
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (rest_.starts_with(known)) return take(known.size());
    }
    // Behind other things the two libraries let this reach differently far.
    if (is_first && rest_.starts_with("(?i)")) return take(4);
    refuse(rest_.substr(0, 4));
  }

  void escape() {
    if (rest_.size() < 2) refuse("\\");
    const char kind = rest_[1];
    switch (kind) {
      case 's':
        return put(in_class_ ? std::string(kSpace) : fmt::format("[{}]", kSpace), 2);
      case 'S':
        return put(in_class_ ? std::string(kNoSpace) : fmt::format("[^{}]", kSpace), 2);
      case 'v':
        return put("\\x0b", 2);
      case 'd':
        return put("\\p{Nd}", 2);
      case 'D':
        return put("\\P{Nd}", 2);
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'u': {
        const std::string_view digits = rest_.substr(2, 4);
        if (digits.size() < 4 || !is_hexadecimal(digits)) refuse(rest_.substr(0, 6));
        return put(fmt::format("\\x{{{}}}", digits), 6);
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return take(2);
      case 'A':
      case 'z':
        if (in_class_) refuse(rest_.substr(0, 2));
        return take(2);
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(kind);
    const bool is_letter_or_digit = (kind >= '0' && kind <= '9') || (kind >= 'a' && kind <= 'z') ||
                                    (kind >= 'A' && kind <= 'Z');
    if (is_letter_or_digit || byte >= 0x80 || byte < 0x20) refuse(rest_.substr(0, 2));
    take(2);
  }

  static bool is_hexadecimal(std::string_view text) {
    return !text.empty() &&
           text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  }

  void hexadecimal() {
    if (rest_.size() > 2 && rest_[2] == '{') {
      const std::size_t end = rest_.find('}');
      if (end > 11 || !is_hexadecimal(rest_.substr(3, end - 3))) {
        refuse(rest_.substr(0, 12));
      }
      return take(end + 1);
    }
    // Above 7f Oniguruma means a byte by this, PCRE2 a character.
    const std::string_view digits = rest_.substr(2, 2);
    if (digits.size() < 2 || !is_hexadecimal(digits) || digits[0] > '7') {
      refuse(rest_.substr(0, 4));
    }
    take(4);
  }

  void property() {
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || end > 40) {
      refuse(rest_.substr(0, 4));
    }
    std::string_view name = rest_.substr(3, end - 3);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    const bool is_complement = (rest_[1] == 'P') != is_negated;
    std::string text = "\\p{";
#if PCRE2_MAJOR > 10 || (PCRE2_MAJOR == 10 && PCRE2_MINOR >= 40)
    // A script, without the characters other scripts share with it.
    if (name.size() > 2) text += "sc:";
#endif
    text += name;
    text += '}';
    if (in_class_ && is_complement) {
      text[1] = 'P';  // newer characters cannot be taken out here
    } else {
      if (name.size() == 1) additions_append(text, name[0]);
      if (!in_class_) text = fmt::format("[{}{}]", is_complement ? "^" : "", text);
    }
    put(text, end + 1);
  }

  static void additions_append(std::string& text, char category) {
    for (const CodeRange& range : unicode_additions_of(category)) {
      text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
    }
  }

  std::string_view rest_;
  std::string_view where_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

RegexBudget::RegexBudget(std::size_t size)
    : free_steps_(static_cast<std::uint32_t>(
          std::max(kLeastFreeSteps, kMostSteps / std::max<std::size_t>(size, 1)))),
      seconds_left_(1 + 4e-6 * static_cast<double>(size)) {}

std::string regex_translate(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).translate();
}

Regex::Regex(std::string_view pattern, std::string_view where) {
  const std::string text = regex_translate(pattern, where);
  auto code = std::make_shared<Code>();
  code->pattern = pattern;
  code->where = where;

  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) fail_memory("out of memory for regular expressions");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ match at every line for Oniguruma.
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), kOptions,
                             &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    fail_input("{}: bad regular expression \"{}\": {}", where, text_printable(pattern),
               text_printable(message_of(error), 200));
  }
  // Without a just-in-time compiler on this machine the interpreter does it, slower.
  code->is_jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

Regex Regex::literal(std::string_view text, std::string_view where) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&#~/").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return {pattern, where};
}

std::size_t Regex::after(std::string_view text, std::size_t at) {
  return at < text.size() ? at + utf8_length(text[at]) : at + 1;
}

/// Matches that begin at `start` … `last`, each in at most `steps` steps.
Regex::Found Regex::match(std::string_view text, std::size_t start, std::size_t last,
                          std::uint32_t steps, Match& place) const {
  thread_local Scratch scratch;
  pcre2_set_match_limit(scratch.context, steps);
  pcre2_set_offset_limit(scratch.context, last);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = pcre2_match(code_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                                scratch.data, scratch.context);
  if (found == PCRE2_ERROR_NOMATCH) return Found::none;
  if (found == PCRE2_ERROR_MATCHLIMIT) return Found::limit;
  if (found < 0) {
    fail_input("{}: the regular expression \"{}\" cannot be matched: {}", code_->where,
               text_printable(code_->pattern), text_printable(message_of(found), 200));
  }
  const PCRE2_SIZE* pair = pcre2_get_ovector_pointer(scratch.data);
  // A look-behind assertion can move the beginning; nothing here relies on that.
  place = {std::max<std::size_t>(pair[0], start), std::max<std::size_t>(pair[1], start)};
  return Found::match;
}

/// The first match at or after `start`, charged to the budget. PCRE2 counts steps anew at every
/// position, cannot say how many it took, and is fast because it remembers between positions where
/// a match cannot begin. So it is given stretches of positions, as long as steps × positions is
/// bounded: shorter ones where a position needs more steps, longer ones again where not.
Regex::Found Regex::search(std::string_view text, std::size_t start, RegexBudget& budget,
                           Match& place) const {
  std::size_t stretch = std::max<std::size_t>(1, text.size() - start);
  while (start <= text.size()) {
    const auto steps =
        static_cast<std::uint32_t>(std::max<std::size_t>(kLeastFreeSteps, kMostSteps / stretch));
    const double begin = thread_seconds();
    const Found found = match(text, start, start + stretch - 1, steps, place);
    const bool is_paid = budget.spend(thread_seconds() - begin);
    if (found == Found::match) return found;
    if (!is_paid || (found == Found::limit && stretch == 1)) return Found::limit;
    if (found == Found::limit) {
      stretch = std::max<std::size_t>(1, stretch / 8);
      continue;
    }
    start += stretch;
    while (start < text.size() && is_continuation(text[start])) ++start;
    stretch *= 4;
  }
  return Found::none;
}

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t start,
                                        RegexBudget& budget) const {
  Match place;
  Found found = match(text, start, text.size(), budget.free_steps(), place);
  if (found == Found::limit) found = search(text, start, budget, place);
  if (found == Found::match) return place;
  if (found == Found::none) return std::nullopt;
  fail_input(
      "{}: the regular expression \"{}\" takes too many steps for this text; split the text, or "
      "use another tokenizer",
      code_->where, text_printable(code_->pattern));
}

}  // namespace lca
