#include "engine/session_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "attention/cache_state.h"
#include "attention/settings_kind.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace lca {
namespace {

constexpr std::array<char, 8> kMagic{'L', 'C', 'A', 'S', 'E', 'S', 'S', 'N'};
constexpr std::size_t kSizeAt = sizeof(kMagic) + sizeof(std::uint32_t);
constexpr std::size_t kBodyAt = kSizeAt + sizeof(std::uint64_t);
constexpr const char* kAdvice = "it cannot be continued; start a new one";
constexpr std::int64_t kMostLayers = 1 << 16;
constexpr std::int64_t kMostVocabulary = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kLongestText = 4096;
constexpr std::size_t kFewestFields = 10;  ///< settings of the first version
constexpr std::size_t kMostMarks = 1 << 16;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 40;

using Checksum = std::array<std::byte, 16>;

/// A checksum of data in pieces.
class Hash {
 public:
  Hash() { XXH3_128bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  Checksum value() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    Checksum sum;
    std::memcpy(sum.data(), &canonical, sizeof(sum));
    return sum;
  }

 private:
  XXH3_state_t state_;
};

Checksum checksum(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.value();
}

// --- writing -------------------------------------------------------------------------------------

void put_text(ByteWriter& to, std::string_view text) {
  text = text.substr(0, kLongestText);
  to.put(static_cast<std::uint32_t>(text.size()));
  to.put_bytes(std::as_bytes(std::span(text)));
}

template <typename T>
void put_list(ByteWriter& to, const std::vector<T>& list) {
  to.put(static_cast<std::uint64_t>(list.size()));
  to.put_bytes(std::as_bytes(std::span(list)));
}

void put_head(ByteWriter& to, const SessionHead& head) {
  for (const std::string* text : {&head.program, &head.fingerprint, &head.model, &head.architecture,
                                  &head.weights, &head.device}) {
    put_text(to, *text);
  }
  to.put(head.layers);
  to.put(head.hidden);
  to.put(head.vocabulary);
  to.put(head.shape.form);
  to.put(head.dtype);
  to.put(head.precision);
  const AttentionShape& shape = head.shape;
  for (const std::int64_t width :
       {shape.heads, shape.kv_heads, shape.d_nope, shape.d_rope, shape.d_latent, shape.d_value}) {
    to.put(width);
  }
  to.put(head.scale);
  to.put(static_cast<std::uint32_t>(setting_fields().size()));
  for (const Settings& layer : head.settings) {
    for (const SettingField& field : setting_fields()) to.put(field.get(layer));
  }
  to.put(head.truncate_floor);
  to.put(head.prompt_end);
  to.put(head.rope_positions);
  to.put(head.storage);
  put_list(to, head.tokens);
  put_list(to, head.pending);
  put_list(to, head.logits);
}

void put_mark(ByteWriter& to, const SavedMark& mark) {
  to.put(mark.position);
  to.put(mark.prompt_end);
  put_list(to, mark.logits);
  for (const std::optional<Cache>& cache : mark.caches) {
    put_list(to, cache ? cache_mark_save(*cache) : std::vector<std::byte>());
  }
}

// --- reading -------------------------------------------------------------------------------------

/// For values out of range: with a valid checksum only a forged file has them.
[[noreturn]] void fail_forged(const char* what) {
  fail_input("is not a session this program wrote: {}", what);
}

void require(bool holds, const char* what) {
  if (!holds) fail_forged(what);
}

std::string get_text(ByteReader& from) {
  const auto size = from.get<std::uint32_t>();
  require(size <= kLongestText, "a text is too long");
  const auto bytes = from.get_bytes(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
std::vector<T> get_list(ByteReader& from) {
  const auto count = from.get<std::uint64_t>();
  // Checked before allocating: a file may claim any size.
  require(count <= from.left() / sizeof(T), "a list is longer than the file");
  const auto bytes = from.get_bytes(static_cast<std::size_t>(count) * sizeof(T));
  std::vector<T> list(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

/// A file of an older program lacks the last fields; they take the values that reproduce its
/// behaviour.
Settings get_settings(ByteReader& from, std::size_t count) {
  Settings settings;
  for (const SettingField& field : std::span(setting_fields()).first(count)) {
    const auto value = from.get<std::int64_t>();
    const auto choices = static_cast<std::int64_t>(field.choices.size());
    require(field.is_integer || (value >= 0 && value < choices), "a setting is unknown");
    field.set(settings, value);
  }
  settings.validate();
  return settings;
}

SessionHead get_head(ByteReader& from, std::uint32_t version) {
  SessionHead head;
  head.version = version;
  for (std::string* text :
       {&head.program, &head.fingerprint, &head.model, &head.architecture, &head.weights}) {
    *text = get_text(from);
  }
  if (version > 1) head.device = get_text(from);
  head.layers = from.get<std::int64_t>();
  head.hidden = from.get<std::int64_t>();
  head.vocabulary = from.get<std::int64_t>();
  require(head.layers > 0 && head.layers <= kMostLayers, "its number of layers");
  require(head.hidden > 0 && head.hidden <= kMostVocabulary, "its width");
  require(head.vocabulary > 0 && head.vocabulary <= kMostVocabulary, "its vocabulary");
  const auto form = from.get<std::uint8_t>();
  const auto dtype = from.get<std::uint8_t>();
  const auto precision = from.get<std::uint8_t>();
  require(form <= 1 && dtype <= 1 && precision <= 2, "its types");
  head.shape.form = static_cast<Form>(form);
  head.dtype = static_cast<DType>(dtype);
  head.precision = static_cast<Precision>(precision);
  for (std::int64_t* width : {&head.shape.heads, &head.shape.kv_heads, &head.shape.d_nope,
                              &head.shape.d_rope, &head.shape.d_latent, &head.shape.d_value}) {
    *width = from.get<std::int64_t>();
  }
  head.scale = from.get<double>();
  const std::size_t fields = from.get<std::uint32_t>();
  require(fields >= kFewestFields && fields <= setting_fields().size(), "its number of settings");
  for (std::int64_t layer = 0; layer < head.layers; ++layer) {
    head.settings.push_back(get_settings(from, fields));
  }
  head.truncate_floor = from.get<std::int64_t>();
  head.prompt_end = from.get<std::int64_t>();
  if (version > 2) head.rope_positions = from.get<std::int64_t>();
  if (version > 3) {
    const auto storage = from.get<std::uint8_t>();
    require(storage <= 1, "its kind of rows");
    head.storage = static_cast<CacheStorage>(storage);
  }
  head.tokens = get_list<std::int32_t>(from);
  head.pending = get_list<std::int32_t>(from);
  head.logits = get_list<float>(from);
  require(head.truncate_floor >= 0 && head.truncate_floor <= head.length(), "its shortest length");
  require(head.prompt_end >= 0 && head.prompt_end <= head.length(), "its prompt's end");
  require(head.rope_positions >= 0 && head.rope_positions <= kMostPositions, "its positions");
  require(head.logits.empty() || (head.logits.size() == static_cast<std::size_t>(head.vocabulary) &&
                                  !head.tokens.empty()),
          "its number of logits");
  for (const auto* list : {&head.tokens, &head.pending}) {
    for (const std::int32_t token : *list) {
      require(token >= 0 && token < head.vocabulary, "a token is not in the vocabulary");
    }
  }
  return head;
}

SavedMark get_mark(ByteReader& from, const SessionRecord& record) {
  const SessionHead& head = record.head;
  SavedMark mark;
  mark.position = from.get<std::int64_t>();
  mark.prompt_end = from.get<std::int64_t>();
  mark.logits = get_list<float>(from);
  require(mark.position >= 0 && mark.position <= head.length(), "the position of a mark");
  require(mark.prompt_end >= 0 && mark.prompt_end <= mark.position, "the prompt's end of a mark");
  require(mark.logits.empty() || mark.logits.size() == static_cast<std::size_t>(head.vocabulary),
          "the number of logits of a mark");
  for (std::size_t layer = 0; layer < head.settings.size(); ++layer) {
    const auto bytes = get_list<std::byte>(from);
    mark.caches.emplace_back();
    if (head.settings[layer].method == MethodKind::dense) {
      require(bytes.empty(), "a mark of dense attention");
      continue;
    }
    require(!summary_waits(head.settings[layer]), "a mark in summary mode `prompt`");
    mark.caches.back() = cache_mark_load(bytes, record.caches[layer]);
    require(mark.caches.back()->length() == mark.position, "a mark of another length");
  }
  return mark;
}

SessionRecord get_record(ByteReader& from, std::uint32_t version) {
  SessionRecord record{get_head(from, version), {}, {}};
  for (std::size_t layer = 0; layer < record.head.settings.size(); ++layer) {
    const auto size = from.get<std::uint64_t>();
    require(size <= from.left(), "a cache is longer than the file");
    const Cache& cache =
        record.caches.emplace_back(Cache::load(from.get_bytes(static_cast<std::size_t>(size))));
    LayerSpec spec = record.head.spec(layer);
    spec.rotation = cache.spec().rotation;
    require(cache.spec() == spec, "a cache of another layer");
    require(cache.length() == record.head.length(), "a cache of another length");
    require(cache.truncate_floor() <= record.head.truncate_floor, "its shortest length");
  }
  if (version > 1) {
    const auto marks = from.get<std::uint64_t>();
    require(marks <= kMostMarks, "its number of marks");
    for (std::uint64_t i = 0; i < marks; ++i) record.marks.push_back(get_mark(from, record));
  }
  require(from.left() == 0, "it has trailing bytes");
  return record;
}

/// Checks magic, version and size; returns what the checksum covers.
std::span<const std::byte> covered_of(std::span<const std::byte> bytes, std::uint32_t& version) {
  if (bytes.empty()) fail_input("is empty, not a session");
  ByteReader from(bytes, "it");
  if (bytes.size() < sizeof(kMagic) || from.get<std::array<char, 8>>() != kMagic) {
    fail_input("is not a session of lca");
  }
  if (bytes.size() < kBodyAt) fail_input("is truncated: {}", kAdvice);
  version = from.get<std::uint32_t>();
  if (version < 1 || version > kSessionVersion) {
    fail_incompatible("is a session of version {}; this program reads versions 1 to {}", version,
                      kSessionVersion);
  }
  const auto size = from.get<std::uint64_t>();
  if (size > bytes.size()) {
    fail_input("is truncated: {} of its {} bytes are there; {}", bytes.size(), size, kAdvice);
  }
  if (size < bytes.size() || size < kBodyAt + sizeof(Checksum)) {
    fail_input("is damaged: it has {} bytes and should have {}; {}", bytes.size(), size, kAdvice);
  }
  return bytes.first(bytes.size() - sizeof(Checksum));
}

/// The same with the checksum; returns a reader of the rest.
ByteReader body_of(std::span<const std::byte> bytes, std::uint32_t& version) {
  const auto covered = covered_of(bytes, version);
  const Checksum sum = checksum(covered);
  if (std::memcmp(sum.data(), bytes.data() + covered.size(), sizeof(sum)) != 0) {
    fail_input("is damaged: its checksum does not match; {}", kAdvice);
  }
  return {covered.subspan(kBodyAt), "it"};
}

/// Reads a file; errors begin with its name.
template <typename Read>
auto named_read(std::string_view name, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path_printable(name), error.what()));
  }
}

}  // namespace

void session_write(const std::string& path, const SessionRecord& record) {
  ByteWriter body;
  put_head(body, record.head);
  ByteWriter marks;
  marks.put(static_cast<std::uint64_t>(record.marks.size()));
  for (const SavedMark& mark : record.marks) put_mark(marks, mark);
  std::uint64_t size = kBodyAt + body.bytes().size() + marks.bytes().size() + sizeof(Checksum);
  for (const Cache& cache : record.caches)
    size += sizeof(std::uint64_t) + cache_stream_bytes(cache);

  FileWriter file(path, FileMode::owner_only);
  Hash hash;
  const auto write = [&](std::span<const std::byte> piece) {
    hash.add(piece);
    file.write(piece);
  };
  ByteWriter start;
  start.put(kMagic);
  start.put(kSessionVersion);
  start.put(size);
  write(start.bytes());
  write(body.bytes());
  for (const Cache& cache : record.caches) {
    const std::vector<std::byte> stream = cache.save();
    const std::uint64_t bytes = stream.size();
    write(std::as_bytes(std::span(&bytes, 1)));
    write(stream);
  }
  write(marks.bytes());
  const Checksum sum = hash.value();
  file.write(sum);
  file.commit();
}

SessionRecord session_parse(std::span<const std::byte> bytes, std::string_view name) {
  return named_read(name, [&] {
    std::uint32_t version = 0;
    ByteReader from = body_of(bytes, version);
    return get_record(from, version);
  });
}

SessionRecord session_read(const std::string& path, FileAccess access) {
  const MappedFile file(path, access);
  return mapped_read(file, [&] { return session_parse(file.bytes(), path); });
}

SessionHead session_read_head(const std::string& path, FileAccess access) {
  const MappedFile file(path, access);
  return mapped_read(file, [&] {
    return named_read(path, [&] {
      std::uint32_t version = 0;
      ByteReader from(covered_of(file.bytes(), version).subspan(kBodyAt), "it");
      return get_head(from, version);
    });
  });
}

void session_check_settings(const SessionHead& head, const std::vector<Settings>& wanted,
                            std::string_view name) {
  if (wanted.size() > 1 && wanted.size() != head.settings.size()) {
    fail_input("settings for {} layers given; the session has {}", wanted.size(),
               head.settings.size());
  }
  for (std::size_t layer = 0; layer < head.settings.size() && !wanted.empty(); ++layer) {
    const Settings& other = wanted[wanted.size() == 1 ? 0 : layer];
    for (const SettingField& field : setting_fields()) {
      const std::int64_t kept = field.get(head.settings[layer]);
      const std::int64_t asked = field.get(other);
      if (kept == asked) continue;
      const auto text = [&](std::int64_t value) {
        return field.is_integer ? fmt::format("{}", value)
                                : std::string(field.choices[static_cast<std::size_t>(value)]);
      };
      fail_input(
          "{}: this session has {} {}, not {}: a session keeps its settings; use the same ones, or "
          "start a new session",
          path_printable(name), field.name, text(kept), text(asked));
    }
  }
}

void session_cut(SessionRecord& record, std::int64_t length, std::string_view name) {
  SessionHead& head = record.head;
  if (length < 0 || length > head.length()) {
    fail_input("{}: holds {} tokens; it cannot be cut to {}", path_printable(name), head.length(),
               length);
  }
  if (length == head.length()) return;
  for (const Settings& layer : head.settings) {
    if (!summary_waits(layer)) continue;
    fail_input(
        "{}: in summary mode `prompt` earlier groups were scored by later queries, so that a "
        "shorter session would differ; it can only be copied at its {} tokens",
        path_printable(name), head.length());
  }
  const auto marked = [&](std::int64_t position) {
    return std::ranges::find(record.marks, position, &SavedMark::position);
  };
  std::int64_t kept = length > 0 ? length - 1 : 0;
  if (const auto mark = marked(length); mark != record.marks.end() && !mark->logits.empty()) {
    kept = length;
  }
  const auto mark = marked(kept);
  if (kept < head.truncate_floor && mark == record.marks.end()) {
    fail_incompatible(
        "{}: the exact tokens that a session of {} tokens needs are condensed or dropped: it can "
        "be cut to {} tokens or more, or the model can read the text again",
        path_printable(name), length, std::min(head.length(), head.truncate_floor + 1));
  }
  head.logits.clear();
  head.prompt_end = std::min(head.prompt_end, kept);
  if (mark == record.marks.end()) {
    for (Cache& cache : record.caches) cache.truncate(kept);
  } else {
    for (std::size_t layer = 0; layer < record.caches.size(); ++layer) {
      if (mark->caches[layer]) {
        record.caches[layer] = mark->caches[layer]->clone();
      } else {
        record.caches[layer].truncate(kept);
      }
    }
    head.logits = mark->logits;
    head.prompt_end = mark->prompt_end;
  }
  if (kept < head.truncate_floor) {
    head.truncate_floor = 0;
    for (const Cache& cache : record.caches) {
      head.truncate_floor = std::max(head.truncate_floor, cache.truncate_floor());
    }
  }
  head.pending.clear();
  if (kept < length) head.pending.push_back(head.tokens[static_cast<std::size_t>(kept)]);
  head.tokens.resize(static_cast<std::size_t>(kept));
  std::erase_if(record.marks, [&](const SavedMark& saved) { return saved.position > kept; });
}

void session_seal(std::vector<std::byte>& bytes) {
  if (bytes.size() < kBodyAt + sizeof(Checksum)) return;
  const std::uint64_t size = bytes.size();
  std::memcpy(bytes.data() + kSizeAt, &size, sizeof(size));
  const Checksum sum = checksum(std::span(bytes).first(bytes.size() - sizeof(Checksum)));
  std::memcpy(bytes.data() + bytes.size() - sizeof(sum), sum.data(), sizeof(sum));
}

}  // namespace lca
