#include "server/json_read.h"

#include "core/text.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lca::server {

namespace {

/// Makes the value while the parser reads. The library's own ways are quadratic: with a callback
/// each object's end walks all that stands before it in its list, each key is compared with all
/// before it, and an object that grows copies what it holds. So parts wait here until what holds
/// them is whole.
class JsonBuilder {
 public:
  JsonBuilder(std::size_t bytes, const JsonLimits& limits) : bytes_(bytes), limits_(limits) {}

  JsonRead take() {
    if (!fault_.empty()) return {.fault = std::move(fault_)};
    return {.value = std::move(parts_.at(0))};
  }

  // What the parser calls; false ends it.
  bool null() { return add(nullptr); }
  bool boolean(bool given) { return add(given); }
  bool number_integer(std::int64_t given) { return add(given); }
  bool number_unsigned(std::uint64_t given) { return add(given); }
  bool number_float(double given, const std::string& /*written*/) { return add(given); }
  bool string(std::string& given) { return add(std::move(given)); }
  bool binary(Json::binary_t& /*given*/) { return false; }  // not in JSON
  bool start_array(std::size_t /*count*/) { return open(false); }
  bool start_object(std::size_t /*count*/) { return open(true); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    const std::size_t count = keys_.size() - level.keys;
    level.next = find(level, count, name);
    if (level.next < count) {
      if (!limits_.unique) return true;
      return fail(fmt::format("has the key \"{}\" twice in one object", text_printable(name, 60)));
    }
    if (count >= limits_.keys) {
      return fail(fmt::format("has an object with more than {} keys", limits_.keys));
    }
    if (count >= kFew) level.known.emplace(name, count);
    keys_.push_back(std::move(name));
    return true;
  }

  bool end_array() {
    const auto begin = parts_.begin() + static_cast<std::ptrdiff_t>(levels_.back().parts);
    Json::array_t items(std::make_move_iterator(begin), std::make_move_iterator(parts_.end()));
    parts_.erase(begin, parts_.end());
    levels_.pop_back();
    return put(std::move(items));
  }

  bool end_object() {
    const Level& level = levels_.back();
    Json::object_t members;
    members.reserve(keys_.size() - level.keys);
    for (std::size_t i = level.keys; i < keys_.size(); ++i) {
      members.emplace_back(std::move(keys_[i]), std::move(parts_[level.parts + i - level.keys]));
    }
    keys_.resize(level.keys);
    parts_.resize(level.parts);
    levels_.pop_back();
    return put(std::move(members));
  }

  bool parse_error(std::size_t byte, const std::string& /*token*/, const Json::exception& error) {
    constexpr int kNumber = 406;
    if (error.id == kNumber) return fail("has a number that is too large");
    return fail(fmt::format("is not JSON in UTF-8: wrong at byte {} of {}", byte, bytes_));
  }

 private:
  static constexpr std::size_t kFew = 16;  // keys that are compared one by one

  /// A list or an object that is not closed.
  struct Level {
    bool is_object;
    std::size_t keys, parts;                             // where its own begin
    std::size_t next = 0;                                // the member whose value comes
    std::unordered_map<std::string, std::size_t> known;  // keys after the first few
  };

  std::size_t find(const Level& level, std::size_t count, const std::string& name) const {
    for (std::size_t i = 0; i < count && i < kFew; ++i) {
      if (keys_[level.keys + i] == name) return i;
    }
    const auto found = level.known.find(name);
    return found == level.known.end() ? count : found->second;
  }

  bool fail(std::string text) {
    fault_ = std::move(text);
    return false;
  }

  bool open(bool is_object) {
    if (levels_.size() >= static_cast<std::size_t>(limits_.depth)) {
      return fail(fmt::format("is nested deeper than {} levels", limits_.depth));
    }
    if (!count_value()) return false;
    levels_.push_back(
        {.is_object = is_object, .keys = keys_.size(), .parts = parts_.size(), .known = {}});
    return true;
  }

  bool count_value() {
    if (++values_ <= limits_.values) return true;
    return fail(fmt::format("has more than {} values; send less at once", limits_.values));
  }

  bool add(Json part) { return count_value() && put(std::move(part)); }

  /// A value that is whole becomes a part of what holds it.
  bool put(Json part) {
    const bool is_member = !levels_.empty() && levels_.back().is_object;
    if (is_member && levels_.back().parts + levels_.back().next < parts_.size()) {
      parts_[levels_.back().parts + levels_.back().next] = std::move(part);  // its key came twice
    } else {
      parts_.push_back(std::move(part));
    }
    return true;
  }

  std::size_t bytes_;
  std::size_t values_ = 0;
  JsonLimits limits_;
  std::string fault_;
  std::vector<Level> levels_;
  std::vector<std::string> keys_;
  std::vector<Json> parts_;
};

}  // namespace

JsonRead json_read(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return {.fault = "is not JSON: it is empty"};
  JsonBuilder builder(text.size(), limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

JsonRead json_read_arguments(std::string_view text) {
  if (text.find_first_not_of(" \t\n\r\f\v") == text.npos) return {.value = Json::object()};
  JsonRead read = json_read(text, {.unique = false});
  if (read.fault.empty() && !read.value.is_object()) return {.fault = "is not a JSON object"};
  return read;
}

}  // namespace lca::server
