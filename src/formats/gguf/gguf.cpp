#include "formats/gguf/gguf.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/gguf/gguf_part.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace lca {
namespace {

constexpr std::string_view kExtension = ".gguf";

/// What a name such as `model-00002-of-00003.gguf` says.
struct SplitName {
  std::string stem;     ///< "model"
  std::int64_t number;  ///< 2, counted from 1
  std::int64_t parts;   ///< 3

  std::string part(std::int64_t which) const {
    return fmt::format("{}-{:05}-of-{:05}{}", stem, which, parts, kExtension);
  }
};

/// Five digits at the end of `text`, which are then cut off.
std::optional<std::int64_t> digits_take(std::string_view& text) {
  constexpr std::size_t kDigits = 5;
  if (text.size() < kDigits) return std::nullopt;
  std::int64_t number = 0;
  for (const char c : text.substr(text.size() - kDigits)) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + (c - '0');
  }
  text.remove_suffix(kDigits);
  return number;
}

bool suffix_take(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<SplitName> split_name_parse(std::string_view name) {
  if (!suffix_take(name, kExtension)) return std::nullopt;
  const auto parts = digits_take(name);
  if (!parts || !suffix_take(name, "-of-")) return std::nullopt;
  const auto number = digits_take(name);
  if (!number || !suffix_take(name, "-")) return std::nullopt;
  if (*number < 1 || *number > *parts) return std::nullopt;
  return SplitName{std::string(name), *number, *parts};
}

const GgufValue* part_value(const GgufPart& part, const std::string& key) {
  const auto at = part.values.find(key);
  return at == part.values.end() ? nullptr : &at->second;
}

/// An integer setting of one part; nothing where it is absent.
std::optional<std::int64_t> part_integer(const GgufPart& part, const std::string& key) {
  const GgufValue* value = part_value(part, key);
  if (value == nullptr) return std::nullopt;
  if (value->kind() != GgufValue::Kind::integer || value->is_list()) {
    fail_input("{}: key \"{}\" is not an integer", part.name, key);
  }
  if (value->integer() < 0 || value->integer() > std::numeric_limits<std::int32_t>::max()) {
    fail_input("{}: key \"{}\" is {}, out of range", part.name, key, value->integer());
  }
  return value->integer();
}

/// Part `index` (from 0) of `parts` must say so itself.
void check_part(const GgufPart& part, std::int64_t index, std::int64_t parts) {
  const std::int64_t count = part_integer(part, "split.count").value_or(1);
  const std::int64_t number = part_integer(part, "split.no").value_or(0);
  if (count != parts || number != index) {
    if (parts == 1) {
      fail_input(
          "{}: is part {} of {}, but its name does not end with \"-{:05}-of-{:05}.gguf\": "
          "give all parts their original names",
          part.name, number + 1, count, number + 1, count);
    }
    fail_input("{}: the name says part {} of {}, the file part {} of {}", part.name, index + 1,
               parts, number + 1, count);
  }
}

std::string_view kind_name(const GgufValue& value) {
  if (value.is_list()) return "a list";
  switch (value.kind()) {
    case GgufValue::Kind::integer:
      return "an integer";
    case GgufValue::Kind::number:
      return "a number";
    case GgufValue::Kind::boolean:
      return "a truth value";
    case GgufValue::Kind::text:
      return "a text";
  }
  return "unknown";
}

[[noreturn]] void fail_kind(const std::string& file, std::string_view key, const GgufValue& value,
                            std::string_view wanted) {
  fail_input("{}: key \"{}\" is {}, not {}", file, text_printable(key), kind_name(value), wanted);
}

[[noreturn]] void fail_missing(const std::string& file, std::string_view key) {
  fail_input("{}: key \"{}\" is missing", file, text_printable(key));
}

}  // namespace

Gguf Gguf::open(const std::filesystem::path& path, FileAccess access) {
  const std::optional<SplitName> split = split_name_parse(path.filename().native());
  const std::int64_t parts = split ? split->parts : 1;
  Gguf file;
  std::vector<std::filesystem::path> paths;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::filesystem::path at = split ? path.parent_path() / split->part(i + 1) : path;
    std::error_code ignored;
    if (split && !std::filesystem::exists(at, ignored)) {
      fail_not_found("{}: part {} of {} is missing: put it beside {}", path_printable(at.native()),
                     i + 1, parts, path_printable(path.filename().native()));
    }
    paths.push_back(at);
  }
  std::optional<std::int64_t> promised;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::filesystem::path& at = paths[static_cast<std::size_t>(i)];
    const MappedFile& map = file.files_.emplace_back(at, access);
    GgufPart part = mapped_read(map, [&] { return gguf_part_parse(map.bytes(), at.native()); });
    check_part(part, i, parts);
    if (i == 0) {
      if (parts > 1) promised = part_integer(part, "split.tensors.count");
      file.name_ = part.name;
      file.values_ = std::move(part.values);
    }
    std::ranges::move(part.tensors, std::back_inserter(file.tensors_));
  }
  std::ranges::sort(file.tensors_, {}, &GgufTensor::name);
  const auto twin = std::ranges::adjacent_find(file.tensors_, {}, &GgufTensor::name);
  if (twin != file.tensors_.end()) {
    fail_input("{}: tensor \"{}\" is in two parts", file.name_, text_printable(twin->name));
  }
  if (promised && std::cmp_not_equal(*promised, file.tensors_.size())) {
    fail_input("{}: its parts hold {} tensors, but split.tensors.count is {}", file.name_,
               file.tensors_.size(), *promised);
  }
  return file;
}

Gguf Gguf::parse(std::span<const std::byte> bytes, std::string_view name) {
  GgufPart part = gguf_part_parse(bytes, name);
  check_part(part, 0, 1);
  Gguf file;
  file.name_ = std::move(part.name);
  file.values_ = std::move(part.values);
  file.tensors_ = std::move(part.tensors);
  return file;
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto at =
      std::ranges::lower_bound(tensors_, name, std::ranges::less{},
                               [](const GgufTensor& t) -> std::string_view { return t.name; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

const GgufValue* Gguf::value(std::string_view key) const {
  const auto at = values_.find(std::string(key));
  return at == values_.end() ? nullptr : &at->second;
}

std::int64_t Gguf::integer(std::string_view key, std::optional<std::int64_t> fallback) const {
  const GgufValue* found = value(key);
  if (found == nullptr) {
    if (!fallback) fail_missing(name_, key);
    return *fallback;
  }
  if (found->kind() != GgufValue::Kind::integer || found->is_list()) {
    fail_kind(name_, key, *found, "an integer");
  }
  return found->integer();
}

double Gguf::number(std::string_view key, std::optional<double> fallback) const {
  const GgufValue* found = value(key);
  if (found == nullptr) {
    if (!fallback) fail_missing(name_, key);
    return *fallback;
  }
  if (found->is_list()) fail_kind(name_, key, *found, "a number");
  double number = 0;
  if (found->kind() == GgufValue::Kind::integer) {
    number = static_cast<double>(found->integer());
  } else if (found->kind() == GgufValue::Kind::number) {
    number = found->number();
  } else {
    fail_kind(name_, key, *found, "a number");
  }
  if (!std::isfinite(number)) {
    fail_input("{}: key \"{}\" is not finite", name_, text_printable(key));
  }
  return number;
}

bool Gguf::boolean(std::string_view key, bool fallback) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return fallback;
  if (found->kind() != GgufValue::Kind::boolean || found->is_list()) {
    fail_kind(name_, key, *found, "a truth value");
  }
  return found->integer() != 0;
}

std::string Gguf::text(std::string_view key, std::optional<std::string_view> fallback) const {
  const GgufValue* found = value(key);
  if (found == nullptr) {
    if (!fallback) fail_missing(name_, key);
    return std::string(*fallback);
  }
  if (found->kind() != GgufValue::Kind::text || found->is_list()) {
    fail_kind(name_, key, *found, "a text");
  }
  return std::string(found->text());
}

}  // namespace lca
