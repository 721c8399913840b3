#include <lca/cache.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/cache_state.h"
#include "attention/cpu/vector.h"
#include "attention/rotate.h"
#include "attention/settings_kind.h"
#include "core/bf16.h"
#include "core/error.h"

namespace lca {

namespace {

void convert_row(const ConstTensor& from, std::int64_t i, DType to_dtype, std::byte* to) {
  const std::int64_t heads = from.shape[1];
  const std::int64_t width = from.shape[2];
  const std::size_t bytes = static_cast<std::size_t>(width) * dtype_bytes(to_dtype);
  for (std::int64_t head = 0; head < heads; ++head, to += bytes) {
    const void* row = from.row(i, head);
    if (from.dtype == to_dtype) {
      std::memcpy(to, row, bytes);
    } else if (to_dtype == DType::f32) {
      auto* out = reinterpret_cast<float*>(to);
      for (std::int64_t k = 0; k < width; ++k) {
        out[k] = bf16_to_f32(static_cast<const bf16_bits*>(row)[k]);
      }
    } else {
      auto* out = reinterpret_cast<bf16_bits*>(to);
      for (std::int64_t k = 0; k < width; ++k) {
        out[k] = bf16_from_f32(static_cast<const float*>(row)[k]);
      }
    }
  }
}

/// Writes row i of the entries into the parts of a row of 8 bits.
void quantise_row(const RowFormat& format, const Entries& from, std::int64_t i, std::byte* semantic,
                  std::byte* positional, float* scales) {
  thread_local std::vector<float> wide;  // kept from call to call
  const auto values = [&](const ConstTensor& part, std::int64_t kv) {
    wide.resize(static_cast<std::size_t>(part.shape[2]));
    cpu::vector_widen(part.row(i, kv), part.dtype, part.shape[2], wide.data());
    return wide.data();
  };
  for (std::int64_t kv = 0; kv < from.semantic.shape[1]; ++kv) {
    format.semantic_write(kv, values(from.semantic, kv), semantic, scales);
    format.positional_write(kv, values(from.positional, kv), positional, scales);
  }
}

EntryRows entry_rows(const RowFormat& format) {
  return {RowBuffer(format.semantic_bytes()), RowBuffer(format.positional_bytes()),
          RowBuffer(format.scale_bytes())};
}

bool stores_bias(const LayerSpec& spec) {
  return spec.settings.method == MethodKind::lca && spec.settings.mass == Mass::score;
}

GroupRowBytes group_bytes(const LayerSpec& spec) {
  const RowFormat format = RowFormat::of(spec);
  GroupRowBytes bytes;
  bytes.semantic = format.semantic_bytes();
  bytes.positional = format.positional_bytes();
  bytes.scales = format.scale_bytes();
  if (stores_bias(spec)) {
    bytes.bias = spec.shape.kv_heads * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace

void LayerSpec::validate() const {
  shape.validate();
  settings.validate();
  if (!std::isfinite(scale) || scale < 0) {
    fail_input("scale is {}; it takes a finite number above 0", scale);
  }
  if (dtype != DType::f32 && dtype != DType::bf16) fail_input("a cache stores f32 or bf16");
  if (storage > CacheStorage::int8) fail_input("a cache stores rows plainly or in int8");
  if (settings.positions == Positions::token) return;
  const auto pairs = static_cast<std::int64_t>(rotation.frequencies.size());
  if (pairs < 1 || 2 * pairs > shape.d_positional()) {
    fail_input("positions `entry` need 1 to {} RoPE frequencies, not {}", shape.d_positional() / 2,
               pairs);
  }
  for (const double frequency : rotation.frequencies) {
    if (!std::isfinite(frequency)) fail_input("a RoPE frequency is not a finite number");
  }
}

std::size_t cache_bytes(const LayerSpec& spec, std::int64_t length) {
  const Layout layout(spec.settings);
  const std::int64_t sink = std::min(length, layout.sink);
  const std::int64_t window = length - layout.dropped(length) - sink;
  return static_cast<std::size_t>(layout.groups(length) * group_bytes(spec).total() +
                                  sink * RowFormat::plain(spec).bytes() +
                                  window * RowFormat::of(spec).bytes());
}

Cache::State::State(const LayerSpec& layer)
    : spec(layer),
      layout(layer.settings),
      format(RowFormat::of(layer)),
      rotation_steps(layer.settings.positions == Positions::entry
                         ? lca::rotation_steps(layer.rotation)
                         : std::vector<std::uint64_t>()),
      groups(group_bytes(layer)),
      sink(entry_rows(RowFormat::plain(layer))),
      window(entry_rows(format)),
      queries(layer.shape.heads * layer.shape.d_score() *
              static_cast<std::int64_t>(sizeof(float))) {}

CacheRows Cache::State::stored(const EntryRows& rows, std::int64_t first, std::int64_t count) {
  const bool scaled = rows.scales.row_bytes() > 0;
  return {rows.semantic.row(first), rows.positional.row(first),
          scaled ? reinterpret_cast<const float*>(rows.scales.row(first)) : nullptr, count};
}

CacheRows Cache::State::groups_stored(std::int64_t first, std::int64_t count) const {
  const GroupRows::Run run = groups.run(first);
  return {run.semantic, run.positional, format.int8() ? run.scales : nullptr, count};
}

Entries Cache::State::view(const CacheRows& rows) const {
  const AttentionShape& shape = spec.shape;
  return {
      ConstTensor(rows.semantic, spec.dtype, {rows.count, shape.kv_heads, shape.d_semantic()}),
      ConstTensor(rows.positional, spec.dtype, {rows.count, shape.kv_heads, shape.d_positional()})};
}

Entries Cache::State::values(const CacheRows& rows, std::vector<float>& values) const {
  if (rows.scales == nullptr) return view(rows);
  const AttentionShape& shape = spec.shape;
  const std::int64_t semantic = shape.kv_heads * shape.d_semantic();
  const std::int64_t positional = shape.kv_heads * shape.d_positional();
  values.resize(static_cast<std::size_t>(rows.count * (semantic + positional)));
  float* first = values.data();
  float* second = first + rows.count * semantic;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    format.semantic_read(rows, i, first + i * semantic);
    format.positional_read(rows, i, second + i * positional);
  }
  return {ConstTensor(first, DType::f32, {rows.count, shape.kv_heads, shape.d_semantic()}),
          ConstTensor(second, DType::f32, {rows.count, shape.kv_heads, shape.d_positional()})};
}

void Cache::State::append(ThreadPool& pool, const Entries& entries) {
  const std::int64_t count = entries.semantic.shape[0];
  const std::int64_t to_sink = std::clamp<std::int64_t>(layout.sink - length, 0, count);
  const auto fill = [&](RowBuffer& rows, const ConstTensor& from, std::int64_t first) {
    const std::int64_t some = from.shape[0] - first;
    if (some <= 0) return;
    std::byte* to = rows.grow(some);
    constexpr std::int64_t kPiece = 512;
    pool.run((some + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
      const std::int64_t end = std::min(some, (piece + 1) * kPiece);
      for (std::int64_t i = piece * kPiece; i < end; ++i) {
        convert_row(from, first + i, spec.dtype, to + i * rows.row_bytes());
      }
    });
  };
  if (to_sink > 0) {
    fill(sink.semantic, entries.semantic.slice(0, to_sink), 0);
    fill(sink.positional, entries.positional.slice(0, to_sink), 0);
  }
  if (format.int8()) {
    append_int8(pool, entries, to_sink);
  } else {
    fill(window.semantic, entries.semantic, to_sink);
    fill(window.positional, entries.positional, to_sink);
  }
  length += count;
}

void Cache::State::append_int8(ThreadPool& pool, const Entries& entries, std::int64_t first) {
  const std::int64_t some = entries.semantic.shape[0] - first;
  if (some <= 0) return;
  std::byte* semantic = window.semantic.grow(some);
  std::byte* positional = window.positional.grow(some);
  auto* scales = reinterpret_cast<float*>(window.scales.grow(some));
  constexpr std::int64_t kPiece = 128;
  pool.run((some + kPiece - 1) / kPiece, [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(some, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) {
      quantise_row(format, entries, first + i, semantic + i * format.semantic_bytes(),
                   positional + i * format.positional_bytes(), scales + i * format.scales());
    }
  });
}

void Cache::State::append_queries(const Queries& run) {
  const AttentionShape& shape = spec.shape;
  const std::int64_t count = run.rope.shape[0];
  const std::int64_t some = std::min(count, queries_kept());
  if (!holds_front() && queries.rows() + some > queries_kept()) {
    queries.drop_front(queries.rows() + some - queries_kept());
  }
  std::byte* to = queries.grow(some);
  const auto nope_bytes = static_cast<std::size_t>(shape.d_nope) * sizeof(float);
  const auto rope_bytes = static_cast<std::size_t>(shape.d_rope) * sizeof(float);
  const auto head_of = [&](const ConstTensor& q, std::int64_t head) {
    ConstTensor one = q;
    one.data = q.row(0, head);
    one.shape[1] = 1;
    return one;
  };
  for (std::int64_t i = count - some; i < count; ++i) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      if (shape.d_nope > 0) convert_row(head_of(run.nope, head), i, DType::f32, to);
      to += nope_bytes;
      convert_row(head_of(run.rope, head), i, DType::f32, to);
      to += rope_bytes;
    }
  }
}

void Cache::State::drop(std::int64_t total) {
  const std::int64_t more = total - dropped;
  if (more <= 0 || holds_front()) return;
  window.drop_front(more);
  for (RowBuffer* part : window.parts()) part->shrink();
  dropped = total;
}

void Cache::State::step_begin(bool staged) {
  Before before{length, dropped, groups.rows(), prompt_open, {}};
  const auto all = buffers();
  for (std::size_t i = 0; i < all.size(); ++i) before.rows[i] = all[i]->rows();
  // Dense attention drops nothing: its rows need no copy.
  staged_ = staged && layout.method != MethodKind::dense;
  if (staged_) {
    EntryRows window_copy = window.clone();
    RowBuffer queries_copy = queries.clone();
    kept_window_ = std::exchange(window, std::move(window_copy));
    kept_queries_ = std::exchange(queries, std::move(queries_copy));
  }
  before_ = before;
}

void Cache::State::step_commit() noexcept {
  if (!before_) return;
  before_.reset();
  kept_window_ = {};
  kept_queries_ = RowBuffer();
  drop(layout.dropped(length));
  if (queries.rows() > queries_kept()) queries.drop_front(queries.rows() - queries_kept());
}

void Cache::State::step_rollback() noexcept {
  if (!before_) return;
  const Before before = *before_;
  before_.reset();
  if (staged_) {
    window = std::exchange(kept_window_, {});
    queries = std::exchange(kept_queries_, RowBuffer());
  }
  const auto all = buffers();
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->drop_back(all[i]->rows() - before.rows[i]);
  groups.take_back(before.groups);
  length = before.length;
  dropped = before.dropped;
  prompt_open = before.prompt_open;
}

Cache::Cache(const LayerSpec& spec) {
  spec.validate();
  state_ = std::make_unique<State>(spec);
}
Cache::Cache(std::unique_ptr<State> state) : state_(std::move(state)) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const LayerSpec& Cache::spec() const { return state_->spec; }
std::int64_t Cache::length() const { return state_->length; }
std::int64_t Cache::groups() const { return state_->groups.rows(); }
void Cache::set_archive(Archive* archive) { state_->archive = archive; }

std::size_t Cache::bytes() const {
  const State& s = *state_;
  return s.groups.bytes() + s.sink.bytes() + s.window.bytes();
}

std::size_t Cache::shared_bytes() const { return state_->groups.shared_bytes(); }

std::size_t Cache::workspace_bytes() const {
  const State& s = *state_;
  return s.groups.capacity_bytes() + s.sink.capacity_bytes() + s.window.capacity_bytes() +
         s.queries.capacity_bytes() - bytes();
}

Cache Cache::clone() const {
  auto copy = std::make_unique<State>(state_->spec);
  copy->length = state_->length;
  copy->prompt_open = state_->prompt_open;
  copy->dropped = state_->dropped;
  copy->groups = state_->groups.share(state_->groups.rows());
  copy->sink = state_->sink.clone();
  copy->window = state_->window.clone();
  copy->queries = state_->queries.clone();
  return Cache(std::move(copy));
}

std::int64_t Cache::truncate_floor() const {
  const State& s = *state_;
  if (summary_waits(s.spec.settings)) {
    return s.length;
  }
  return s.layout.shortest_prefix(s.layout.dropped(s.length));
}

void Cache::truncate(std::int64_t length) {
  State& s = *state_;
  if (length < 0 || length > s.length) {
    fail_input("cannot cut a cache of {} tokens to {}", s.length, length);
  }
  if (length == s.length) return;
  if (!s.settled()) fail_input("cannot cut a cache in the middle of a run: release it first");
  if (summary_waits(s.spec.settings)) {
    fail_input(
        "cannot cut a cache of {} tokens to {}: in summary mode `prompt` earlier groups were "
        "scored "
        "by later queries; use `streaming`, or read the prefix again",
        s.length, length);
  }
  if (length < truncate_floor()) {
    fail_input(
        "cannot cut a cache of {} tokens to {}: tokens its window needs are condensed or dropped; "
        "the shortest prefix is {}",
        s.length, length, truncate_floor());
  }
  const std::int64_t from_window = std::min(s.window.rows(), s.length - length);
  const std::int64_t from_sink = s.length - length - from_window;
  s.window.drop_back(from_window);
  s.sink.drop_back(from_sink);
  s.queries.drop_back(std::min(s.queries.rows(), s.length - length));
  s.length = length;
}

Entries Cache::representative(std::int64_t j) const {
  if (j < 0 || j >= groups())
    fail_input("the cache has {} representatives, none is {}", groups(), j);
  thread_local std::vector<float> values;
  return state_->values(state_->groups_stored(j, 1), values);
}

float Cache::bias(std::int64_t j, std::int64_t kv) const {
  switch (state_->spec.settings.mass) {
    case Mass::none:
      return 0;
    case Mass::count:
      return static_cast<float>(std::log(static_cast<double>(state_->spec.settings.group)));
    case Mass::score:
      return state_->groups.bias(j)[kv];
  }
  return 0;
}

Cache cache_converted(const Cache& cache, DType dtype) {
  const Cache::State& from = cache.state();
  LayerSpec spec = from.spec;
  spec.dtype = dtype;
  Cache converted(spec);
  Cache::State& to = converted.state();
  to.length = from.length;
  to.prompt_open = from.prompt_open;
  to.dropped = from.dropped;
  to.queries = from.queries.clone();
  const auto copy = [&](const CacheRows& row, std::byte* semantic, std::byte* positional) {
    const Entries plain = from.view(row);
    if (row.scales == nullptr) {
      convert_row(plain.semantic, 0, dtype, semantic);
    } else {
      std::memcpy(semantic, row.semantic, static_cast<std::size_t>(to.format.semantic_bytes()));
    }
    if (row.scales == nullptr || !to.format.int8_positional()) {
      convert_row(plain.positional, 0, dtype, positional);
    } else {
      std::memcpy(positional, row.positional,
                  static_cast<std::size_t>(to.format.positional_bytes()));
    }
  };
  const auto copy_rows = [&](const EntryRows& rows, EntryRows& out) {
    out.scales = rows.scales.clone();
    for (std::int64_t i = 0; i < rows.rows(); ++i) {
      std::byte* semantic = out.semantic.grow(1);
      copy(Cache::State::stored(rows, i, 1), semantic, out.positional.grow(1));
    }
  };
  copy_rows(from.sink, to.sink);
  copy_rows(from.window, to.window);
  to.groups.grow(from.groups.rows());
  for (std::int64_t j = 0; j < from.groups.rows(); ++j) {
    copy(from.groups_stored(j, 1), to.groups.semantic(j), to.groups.positional(j));
    if (stores_bias(spec)) std::copy_n(from.groups.bias(j), spec.shape.kv_heads, to.groups.bias(j));
    std::copy_n(from.groups.scales(j), to.format.scales(), to.groups.scales(j));
  }
  return converted;
}

void cache_poison_spare(Cache& cache) {
  Cache::State& s = cache.state();
  for (EntryRows* rows : {&s.sink, &s.window}) {
    for (RowBuffer* part : rows->parts()) part->poison_spare();
  }
  s.groups.poison_spare();
  s.queries.poison_spare();
}

}  // namespace lca
