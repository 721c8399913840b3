#include "engine/session_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "attention/cache_state.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace lca {
namespace {

constexpr std::array<char, 8> kMagic{'L', 'C', 'A', 'S', 'E', 'S', 'S', 'N'};
constexpr std::size_t kSizeAt = sizeof(kMagic) + sizeof(std::uint32_t);
constexpr std::size_t kBodyAt = kSizeAt + sizeof(std::uint64_t);
constexpr std::int64_t kMostLayers = 1 << 16;
constexpr std::int64_t kMostVocabulary = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kLongestText = 4096;

using Checksum = std::array<std::byte, 16>;

/// A checksum of what comes in pieces.
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
  for (const std::string* text :
       {&head.program, &head.fingerprint, &head.model, &head.architecture, &head.weights}) {
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
  put_list(to, head.tokens);
  put_list(to, head.pending);
  put_list(to, head.logits);
}

// --- reading -------------------------------------------------------------------------------------

/// Where a number of a file is out of range: only a forger gets past the checksum with one.
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
  // Compared before memory is taken: a file may claim any number.
  require(count <= from.left() / sizeof(T), "a list is longer than the file");
  const auto bytes = from.get_bytes(static_cast<std::size_t>(count) * sizeof(T));
  std::vector<T> list(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

Settings get_settings(ByteReader& from) {
  Settings settings;
  for (const SettingField& field : setting_fields()) {
    const auto value = from.get<std::int64_t>();
    const auto choices = static_cast<std::int64_t>(field.choices.size());
    require(field.is_integer || (value >= 0 && value < choices), "a setting is unknown");
    field.set(settings, value);
  }
  settings.validate();
  return settings;
}

SessionHead get_head(ByteReader& from) {
  SessionHead head;
  for (std::string* text :
       {&head.program, &head.fingerprint, &head.model, &head.architecture, &head.weights}) {
    *text = get_text(from);
  }
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
  require(from.get<std::uint32_t>() == setting_fields().size(), "its number of settings");
  for (std::int64_t layer = 0; layer < head.layers; ++layer) {
    head.settings.push_back(get_settings(from));
  }
  head.truncate_floor = from.get<std::int64_t>();
  head.prompt_end = from.get<std::int64_t>();
  head.tokens = get_list<std::int32_t>(from);
  head.pending = get_list<std::int32_t>(from);
  head.logits = get_list<float>(from);
  require(head.truncate_floor >= 0 && head.truncate_floor <= head.length(), "its shortest length");
  require(head.prompt_end >= 0 && head.prompt_end <= head.length(), "its prompt's end");
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

SessionRecord get_record(ByteReader& from) {
  SessionRecord record{get_head(from), {}};
  for (std::size_t layer = 0; layer < record.head.settings.size(); ++layer) {
    const auto size = from.get<std::uint64_t>();
    require(size <= from.left(), "a cache is longer than the file");
    const Cache& cache =
        record.caches.emplace_back(Cache::load(from.get_bytes(static_cast<std::size_t>(size))));
    require(cache.spec() == record.head.spec(layer), "a cache of another layer");
    require(cache.length() == record.head.length(), "a cache of another length");
    require(cache.truncate_floor() <= record.head.truncate_floor, "its shortest length");
  }
  require(from.left() == 0, "it has bytes too many");
  return record;
}

/// Magic, version, size and checksum; the rest is what is left to read.
ByteReader body_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) fail_input("is empty, not a session");
  ByteReader from(bytes, "it");
  if (bytes.size() < sizeof(kMagic) || from.get<std::array<char, 8>>() != kMagic) {
    fail_input("is not a session of lca");
  }
  constexpr const char* kAdvice = "it cannot be taken up again; start a new one";
  if (bytes.size() < kBodyAt) fail_input("is truncated: {}", kAdvice);
  const auto version = from.get<std::uint32_t>();
  if (version != kSessionVersion) {
    fail_input("is a session of version {}; this program reads version {}", version,
               kSessionVersion);
  }
  const auto size = from.get<std::uint64_t>();
  if (size > bytes.size()) {
    fail_input("is truncated: {} of its {} bytes are there; {}", bytes.size(), size, kAdvice);
  }
  if (size < bytes.size() || size < kBodyAt + sizeof(Checksum)) {
    fail_input("is damaged: it has {} bytes and should have {}; {}", bytes.size(), size, kAdvice);
  }
  const auto covered = bytes.first(bytes.size() - sizeof(Checksum));
  const Checksum sum = checksum(covered);
  if (std::memcmp(sum.data(), bytes.data() + covered.size(), sizeof(sum)) != 0) {
    fail_input("is damaged: its checksum does not match; {}", kAdvice);
  }
  return {covered.subspan(kBodyAt), "it"};
}

}  // namespace

void session_write(const std::string& path, const SessionHead& head,
                   std::span<const Cache> caches) {
  ByteWriter body;
  put_head(body, head);
  std::uint64_t size = kBodyAt + body.bytes().size() + sizeof(Checksum);
  for (const Cache& cache : caches) size += sizeof(std::uint64_t) + cache_stream_bytes(cache);

  FileWriter file(path, FileAccess::owner_only);
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
  for (const Cache& cache : caches) {
    const std::vector<std::byte> stream = cache.save();
    const std::uint64_t bytes = stream.size();
    write(std::as_bytes(std::span(&bytes, 1)));
    write(stream);
  }
  const Checksum sum = hash.value();
  file.write(sum);
  file.commit();
}

SessionRecord session_parse(std::span<const std::byte> bytes, std::string_view name) {
  try {
    ByteReader from = body_of(bytes);
    return get_record(from);
  } catch (const Error& error) {
    fail_input("{}: {}", path_printable(name), error.what());
  }
}

SessionRecord session_read(const std::string& path) {
  const MappedFile file(path);
  return mapped_read(file, [&] { return session_parse(file.bytes(), path); });
}

void session_check_settings(const SessionHead& head, const std::vector<Settings>& wanted,
                            std::string_view name) {
  for (std::size_t layer = 0; layer < head.settings.size() && !wanted.empty(); ++layer) {
    const Settings& other = wanted.size() == 1 ? wanted[0] : wanted.at(layer);
    for (const SettingField& field : setting_fields()) {
      const std::int64_t kept = field.get(head.settings[layer]);
      const std::int64_t asked = field.get(other);
      if (kept == asked) continue;
      const auto text = [&](std::int64_t value) {
        return field.is_integer ? fmt::format("{}", value)
                                : std::string(field.choices[static_cast<std::size_t>(value)]);
      };
      fail_input(
          "{}: this session has {} {}, not {}: a session keeps its settings; leave the flag out, "
          "or start a new session",
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
    if (layer.method != MethodKind::lca || layer.summary != Summary::prompt) continue;
    fail_input(
        "{}: in summary mode `prompt` earlier groups were scored by later queries, so that a "
        "shorter session would differ; it can only be copied at its {} tokens",
        path_printable(name), head.length());
  }
  const std::int64_t kept = length > 0 ? length - 1 : 0;
  if (kept < head.truncate_floor) {
    fail_input(
        "{}: what a session of {} tokens needs is condensed or dropped by now: it can be cut to {} "
        "tokens or more; with --model MODEL the text is read again",
        path_printable(name), length, std::min(head.length(), head.truncate_floor + 1));
  }
  head.pending.clear();
  if (length > 0) head.pending.push_back(head.tokens[static_cast<std::size_t>(kept)]);
  for (Cache& cache : record.caches) cache.truncate(kept);
  head.tokens.resize(static_cast<std::size_t>(kept));
  head.prompt_end = std::min(head.prompt_end, kept);
  head.logits.clear();
}

void session_seal(std::vector<std::byte>& bytes) {
  if (bytes.size() < kBodyAt + sizeof(Checksum)) return;
  const std::uint64_t size = bytes.size();
  std::memcpy(bytes.data() + kSizeAt, &size, sizeof(size));
  const Checksum sum = checksum(std::span(bytes).first(bytes.size() - sizeof(Checksum)));
  std::memcpy(bytes.data() + bytes.size() - sizeof(sum), sum.data(), sizeof(sum));
}

}  // namespace lca
