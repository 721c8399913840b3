// Cache::save and Cache::load. A stream is: magic, version, the layer's fixed facts, the length,
// the number of recent queries, the rows, and a checksum of all that. Everything else follows from
// the length by the index law, so a stream cannot contradict itself. Version 1 knew no positions
// but those of tokens, versions 1 and 2 no rows of 8 bits; they are read as such.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <lca/cache.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/cache_state.h"
#include "core/bytes.h"
#include "core/error.h"

namespace lca {

namespace {

constexpr std::array<char, 8> kMagic{'L', 'C', 'A', 'C', 'A', 'C', 'H', 'E'};
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kVersion1Fields = 10;  ///< settings of version 1
constexpr std::int64_t kLongest = std::int64_t{1} << 40;

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void put_spec(ByteWriter& to, const LayerSpec& spec) {
  const AttentionShape& shape = spec.shape;
  to.put(static_cast<std::uint8_t>(shape.form));
  to.put(static_cast<std::uint8_t>(spec.dtype));
  for (const std::int64_t width :
       {shape.heads, shape.kv_heads, shape.d_nope, shape.d_rope, shape.d_latent, shape.d_value}) {
    to.put(width);
  }
  to.put(spec.scale);
  for (const SettingField& field : setting_fields()) to.put(field.get(spec.settings));
  to.put(spec.rotation.layout);
  to.put(static_cast<std::uint32_t>(spec.rotation.frequencies.size()));
  for (const double frequency : spec.rotation.frequencies) to.put(frequency);
  to.put(spec.storage);
}

Rotation get_rotation(ByteReader& from) {
  Rotation rotation;
  const auto layout = from.get<std::uint8_t>();
  if (layout > 1) fail_input("the cache stream has an unknown RoPE layout");
  rotation.layout = static_cast<RopeLayout>(layout);
  const auto pairs = from.get<std::uint32_t>();
  // Compared before memory is allocated: a stream may claim any number.
  if (pairs > from.left() / sizeof(double)) fail_input("the cache stream is truncated");
  for (std::uint32_t i = 0; i < pairs; ++i) rotation.frequencies.push_back(from.get<double>());
  return rotation;
}

LayerSpec get_spec(ByteReader& from, std::uint32_t version) {
  LayerSpec spec;
  const auto form = from.get<std::uint8_t>();
  const auto dtype = from.get<std::uint8_t>();
  if (form > 1 || dtype > 1) fail_input("the cache stream has an unknown form or dtype");
  spec.shape.form = static_cast<Form>(form);
  spec.dtype = static_cast<DType>(dtype);
  for (std::int64_t* width : {&spec.shape.heads, &spec.shape.kv_heads, &spec.shape.d_nope,
                              &spec.shape.d_rope, &spec.shape.d_latent, &spec.shape.d_value}) {
    *width = from.get<std::int64_t>();
  }
  spec.scale = from.get<double>();
  const std::size_t fields = version > 1 ? setting_fields().size() : kVersion1Fields;
  for (const SettingField& field : std::span(setting_fields()).first(fields)) {
    const auto value = from.get<std::int64_t>();
    const auto choices = static_cast<std::int64_t>(field.choices.size());
    if (!field.is_integer && (value < 0 || value >= choices)) {
      fail_input("the cache stream has an unknown value of `{}`", field.name);
    }
    field.set(spec.settings, value);
  }
  if (version > 1) spec.rotation = get_rotation(from);
  if (version > 2) {
    const auto storage = from.get<std::uint8_t>();
    if (storage > 1) fail_input("the cache stream has an unknown kind of rows");
    spec.storage = static_cast<CacheStorage>(storage);
  }
  spec.validate();
  return spec;
}

void put_rows(ByteWriter& to, const RowBuffer& rows) {
  if (rows.rows() > 0) to.put_bytes({rows.row(0), rows.bytes()});
}

void get_rows(ByteReader& from, std::int64_t count, RowBuffer& rows) {
  if (count == 0) return;
  // Compared before memory is taken: a stream may claim any length.
  if (rows.row_bytes() > 0 && static_cast<std::uint64_t>(count) >
                                  from.left() / static_cast<std::uint64_t>(rows.row_bytes())) {
    fail_input("the cache stream is truncated");
  }
  const auto bytes = from.get_bytes(static_cast<std::size_t>(count * rows.row_bytes()));
  std::memcpy(rows.grow(count), bytes.data(), bytes.size());
}

void put_exact(ByteWriter& to, const EntryRows& sink, const EntryRows& window) {
  for (const EntryRows* rows : {&sink, &window}) {
    for (const RowBuffer* part : rows->parts()) put_rows(to, *part);
  }
}

/// Visits one part of every representative, a contiguous piece at a time: visit(first, bytes).
void groups_visit(const GroupRows& groups, std::int64_t width, const auto& visit) {
  for (std::int64_t j = 0; j < groups.rows() && width > 0;) {
    const std::int64_t some = groups.contiguous(j);
    visit(j, static_cast<std::size_t>(some * width));
    j += some;
  }
}

void put_bias(ByteWriter& to, const GroupRows& groups) {
  groups_visit(groups, groups.row_bytes().bias, [&](std::int64_t j, std::size_t bytes) {
    to.put_bytes({reinterpret_cast<const std::byte*>(groups.bias(j)), bytes});
  });
}

void put_groups(ByteWriter& to, const GroupRows& groups) {
  groups_visit(groups, groups.row_bytes().semantic, [&](std::int64_t j, std::size_t bytes) {
    to.put_bytes({groups.semantic(j), bytes});
  });
  groups_visit(groups, groups.row_bytes().positional, [&](std::int64_t j, std::size_t bytes) {
    to.put_bytes({groups.positional(j), bytes});
  });
  groups_visit(groups, groups.row_bytes().scales, [&](std::int64_t j, std::size_t bytes) {
    to.put_bytes({reinterpret_cast<const std::byte*>(groups.scales(j)), bytes});
  });
}

void get_into(ByteReader& from, void* to, std::size_t bytes) {
  std::memcpy(to, from.get_bytes(bytes).data(), bytes);
}

/// A scale is not negative: kernels rely on it. It may be NaN, as the rows of a plain cache may.
void check_scales(const float* scales, std::size_t bytes) {
  const std::span all(scales, bytes / sizeof(float));
  if (std::ranges::any_of(all, [](float scale) { return std::signbit(scale); })) {
    fail_input("the cache stream has a negative scale");
  }
}

void get_bias(ByteReader& from, GroupRows& groups) {
  groups_visit(groups, groups.row_bytes().bias,
               [&](std::int64_t j, std::size_t bytes) { get_into(from, groups.bias(j), bytes); });
}

void get_groups(ByteReader& from, std::int64_t count, GroupRows& groups) {
  const GroupRowBytes& width = groups.row_bytes();
  // Compared before memory is allocated: a stream may claim any length.
  if (count > 0 &&
      static_cast<std::uint64_t>(count) > from.left() / static_cast<std::uint64_t>(width.total())) {
    fail_input("the cache stream is truncated");
  }
  groups.grow(count);
  groups_visit(groups, width.semantic, [&](std::int64_t j, std::size_t bytes) {
    get_into(from, groups.semantic(j), bytes);
  });
  groups_visit(groups, width.positional, [&](std::int64_t j, std::size_t bytes) {
    get_into(from, groups.positional(j), bytes);
  });
  groups_visit(groups, width.scales, [&](std::int64_t j, std::size_t bytes) {
    get_into(from, groups.scales(j), bytes);
    check_scales(groups.scales(j), bytes);
  });
}

void get_entries(ByteReader& from, std::int64_t count, EntryRows& rows) {
  get_rows(from, count, rows.semantic);
  get_rows(from, count, rows.positional);
  if (count == 0 || rows.scales.row_bytes() == 0) return;
  get_rows(from, count, rows.scales);
  check_scales(reinterpret_cast<const float*>(rows.scales.row(0)), rows.scales.bytes());
}

/// Throws Error where a cache of `length` tokens cannot have so many recent queries.
void check_queries(const LayerSpec& spec, const Layout& layout, std::int64_t length,
                   std::int64_t kept, std::int64_t queries) {
  const bool lca = spec.settings.method == MethodKind::lca;
  const std::int64_t most = lca ? std::min(length, kept) : 0;
  const std::int64_t least = lca ? length - std::min(length, layout.first_query_needed(length)) : 0;
  if (queries < least || queries > most) {
    fail_input("the cache stream holds {} recent queries; it needs {} to {}", queries, least, most);
  }
}

}  // namespace

std::vector<std::byte> Cache::save() const {
  const State& s = *state_;
  if (!s.settled()) fail_input("cannot save a cache in the middle of a run: release it first");
  ByteWriter to;
  to.reserve(cache_stream_bytes(*this));
  to.put(kMagic);
  to.put(kVersion);
  put_spec(to, s.spec);
  to.put(s.length);
  to.put(s.queries.rows());
  put_groups(to, s.groups);
  put_exact(to, s.sink, s.window);
  put_bias(to, s.groups);
  put_rows(to, s.queries);
  to.put(checksum(to.bytes()));
  return to.take();
}

Cache Cache::load(std::span<const std::byte> bytes) {
  constexpr const char* kWhat = "the cache stream";
  ByteReader head(bytes, kWhat);
  if (head.get<std::array<char, 8>>() != kMagic) fail_input("these bytes are not a saved cache");
  const auto version = head.get<std::uint32_t>();
  if (version < 1 || version > kVersion) {
    fail_input("the cache stream has version {}; this program reads versions 1 to {}", version,
               kVersion);
  }
  if (head.left() < sizeof(std::uint64_t)) fail_input("the cache stream is truncated");
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  if (ByteReader(bytes.subspan(body.size()), kWhat).get<std::uint64_t>() != checksum(body)) {
    fail_input("the cache stream is damaged: its checksum does not match");
  }
  ByteReader from(body.subspan(sizeof(kMagic) + sizeof(kVersion)), kWhat);
  const LayerSpec spec = get_spec(from, version);
  const auto length = from.get<std::int64_t>();
  const auto queries = from.get<std::int64_t>();
  if (length < 0 || length > kLongest) fail_input("the cache stream claims {} tokens", length);

  auto state = std::make_unique<State>(spec);
  const Layout& layout = state->layout;
  check_queries(spec, layout, length, state->queries_kept(), queries);
  state->length = length;
  state->dropped = layout.dropped(length);
  const std::int64_t sink = std::min(length, layout.sink);
  const std::int64_t groups = layout.groups(length);
  get_groups(from, groups, state->groups);
  get_entries(from, sink, state->sink);
  get_entries(from, length - sink - state->dropped, state->window);
  get_bias(from, state->groups);
  get_rows(from, queries, state->queries);
  if (from.left() != 0) fail_input("the cache stream has {} bytes too many", from.left());
  return Cache(std::move(state));
}

std::vector<std::byte> cache_mark_save(const Cache& cache) {
  const Cache::State& s = cache.state();
  ByteWriter to;
  to.put(s.length);
  to.put(s.queries.rows());
  put_exact(to, s.sink, s.window);
  put_rows(to, s.queries);
  return to.take();
}

Cache cache_mark_load(std::span<const std::byte> bytes, const Cache& whole) {
  ByteReader from(bytes, "a mark");
  const auto length = from.get<std::int64_t>();
  const auto queries = from.get<std::int64_t>();
  if (length < 0 || length > whole.length()) fail_input("a mark claims {} tokens", length);
  const Cache::State& of = whole.state();
  const Layout& layout = of.layout;
  check_queries(of.spec, layout, length, of.queries_kept(), queries);
  Cache cache(of.spec);
  Cache::State& state = cache.state();
  state.length = length;
  state.dropped = layout.dropped(length);
  const std::int64_t sink = std::min(length, layout.sink);
  get_entries(from, sink, state.sink);
  get_entries(from, length - sink - state.dropped, state.window);
  get_rows(from, queries, state.queries);
  if (from.left() != 0) fail_input("a mark has {} bytes too many", from.left());
  state.groups = of.groups.share(layout.groups(length));
  return cache;
}

std::size_t cache_stream_bytes(const Cache& cache) {
  constexpr std::size_t kWidths = 6;
  const std::size_t spec =
      2 + kWidths * sizeof(std::int64_t) + sizeof(double) +
      setting_fields().size() * sizeof(std::int64_t) + sizeof(RopeLayout) + sizeof(std::uint32_t) +
      cache.spec().rotation.frequencies.size() * sizeof(double) + sizeof(CacheStorage);
  return sizeof(kMagic) + sizeof(kVersion) + spec + 2 * sizeof(std::int64_t) + cache.bytes() +
         cache.state().queries.bytes() + sizeof(std::uint64_t);
}

void cache_seal(std::vector<std::byte>& stream) {
  if (stream.size() < sizeof(std::uint64_t)) return;
  const std::size_t body = stream.size() - sizeof(std::uint64_t);
  const std::uint64_t sum = checksum({stream.data(), body});
  std::memcpy(stream.data() + body, &sum, sizeof(sum));
}

}  // namespace lca
