#include "support/random_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace lca::test {

Buffer::Buffer(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t width)
    : dtype_(dtype), rows_(rows), columns_(columns), width_(width) {
  // One value beyond the end, so that an empty buffer still has an address.
  const auto values = static_cast<std::size_t>(rows * columns * width) + 1;
  if (dtype == DType::f32) {
    f32_.resize(values);
  } else {
    bf16_.resize(values);
  }
}

double Buffer::get(std::int64_t i, std::int64_t j, std::int64_t k) const {
  const auto at = static_cast<std::size_t>((i * columns_ + j) * width_ + k);
  return dtype_ == DType::f32 ? f32_[at] : bf16_to_f32(bf16_[at]);
}

void Buffer::set(std::int64_t i, std::int64_t j, std::int64_t k, double value) {
  const auto at = static_cast<std::size_t>((i * columns_ + j) * width_ + k);
  if (dtype_ == DType::f32) {
    f32_[at] = static_cast<float>(value);
  } else {
    bf16_[at] = bf16_from_f32(static_cast<float>(value));
  }
}

ConstTensor Buffer::view(std::int64_t first, std::int64_t count) const {
  ConstTensor tensor;
  tensor.dtype = dtype_;
  tensor.data = dtype_ == DType::f32 ? static_cast<const void*>(f32_.data() + first)
                                     : static_cast<const void*>(bf16_.data() + first);
  tensor.shape = {rows_, columns_, count};
  tensor.stride = {columns_ * width_, width_, 1};
  return tensor;
}

Layer Layer::with(const Settings& settings) const {
  Layer other = *this;
  other.spec.settings = settings;
  return other;
}

LayerWeights Layer::weights() const {
  if (spec.shape.form == Form::gqa) return {};
  return {w_uk.view(), w_uv.view()};
}

namespace {

Buffer part(const Buffer& whole, DType dtype, std::int64_t first, std::int64_t width) {
  Buffer copy(dtype, whole.rows(), whole.columns(), width);
  for (std::int64_t i = 0; i < whole.rows(); ++i) {
    for (std::int64_t j = 0; j < whole.columns(); ++j) {
      for (std::int64_t k = 0; k < width; ++k) copy.set(i, j, k, whole.get(i, j, first + k));
    }
  }
  return copy;
}

void fill_normal(Buffer& buffer, double deviation, Random& random) {
  for (std::int64_t i = 0; i < buffer.rows(); ++i) {
    for (std::int64_t j = 0; j < buffer.columns(); ++j) {
      for (std::int64_t k = 0; k < buffer.width(); ++k) {
        buffer.set(i, j, k, deviation * random.normal());
      }
    }
  }
}

}  // namespace

void Tokens::split() {
  const DType of_queries = query.view().dtype;
  const DType of_entries = entry.view().dtype;
  nope = part(query, of_queries, 0, shape.d_nope);
  rope = part(query, of_queries, shape.d_nope, shape.d_rope);
  semantic = part(entry, of_entries, 0, shape.d_semantic());
  positional = part(entry, of_entries, shape.d_semantic(), shape.d_positional());
}

Queries Tokens::queries() const {
  Queries views;
  if (shape.form == Form::mla) views.nope = fused ? query.view(0, shape.d_nope) : nope.view();
  views.rope = fused ? query.view(shape.d_nope, shape.d_rope) : rope.view();
  return views;
}

Entries Tokens::entries() const {
  if (!fused) return {semantic.view(), positional.view()};
  return {entry.view(0, shape.d_semantic()), entry.view(shape.d_semantic(), shape.d_positional())};
}

Queries Source::queries(std::int64_t first, std::int64_t length) const {
  Queries views;
  if (!all_queries.nope.empty()) views.nope = all_queries.nope.slice(first, length);
  views.rope = all_queries.rope.slice(first, length);
  return views;
}

Entries Source::entries(std::int64_t first, std::int64_t length) const {
  return {all_entries.semantic.slice(first, length), all_entries.positional.slice(first, length)};
}

Layer random_layer(const LayerSpec& spec, Random& random, DType dtype) {
  Layer layer;
  layer.spec = spec;
  const AttentionShape& shape = spec.shape;
  if (shape.form == Form::mla) {
    const double deviation = 1 / std::sqrt(static_cast<double>(shape.d_latent));
    layer.w_uk = Buffer(dtype, shape.heads, shape.d_nope, shape.d_latent);
    layer.w_uv = Buffer(dtype, shape.heads, shape.d_value, shape.d_latent);
    fill_normal(layer.w_uk, deviation, random);
    fill_normal(layer.w_uv, deviation, random);
  }
  return layer;
}

Tokens random_tokens(const LayerSpec& spec, std::int64_t count, Random& random,
                     const Storage& storage) {
  const AttentionShape& shape = spec.shape;
  Tokens tokens;
  tokens.shape = shape;
  tokens.count = count;
  tokens.fused = storage.fused;
  tokens.query = Buffer(storage.queries.value_or(spec.dtype), count, shape.heads, shape.d_score());
  tokens.entry =
      Buffer(spec.dtype, count, shape.kv_heads, shape.d_semantic() + shape.d_positional());
  fill_normal(tokens.entry, 1, random);

  Buffer shared(DType::f32, 1, shape.heads, shape.d_score());
  fill_normal(shared, 2, random);
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t d = 0; d < shape.d_score(); ++d) {
        tokens.query.set(t, h, d, shared.get(0, h, d) + random.normal());
      }
    }
  }
  tokens.split();
  return tokens;
}

void redraw_token(Tokens& tokens, std::int64_t position, Random& random) {
  for (Buffer* buffer : {&tokens.query, &tokens.entry}) {
    for (std::int64_t j = 0; j < buffer->columns(); ++j) {
      for (std::int64_t k = 0; k < buffer->width(); ++k) {
        buffer->set(position, j, k, random.normal());
      }
    }
  }
  tokens.split();
}

reference::Result truth(const Source& source, std::int64_t prompt) {
  return reference::attention(source.spec, source.weights, source.all_queries, source.all_entries,
                              prompt);
}

std::int64_t near_ties(const reference::Result& result, DType dtype) {
  const double width = dtype == DType::f32 ? 1e-4 : 1e-3;
  std::int64_t ties = 0;
  for (std::size_t i = 0; i < result.rep_margin.size(); ++i) {
    if (result.rep_margin[i] < width * std::max(1.0, std::abs(result.rep_top[i]))) ++ties;
  }
  return ties;
}

bool selects(const Settings& settings) {
  return settings.semantic_pool == Pool::select || settings.positional_pool == Pool::select;
}

Example random_example(const Layer& layer, std::int64_t count, std::int64_t prompt, Random& random,
                       const Storage& storage, NearTies* seen) {
  constexpr int kMostDraws = 200;
  for (int draw = 0; draw < kMostDraws; ++draw) {
    Example example;
    example.tokens = random_tokens(layer.spec, count, random, storage);
    example.expected = truth(layer, example.tokens, prompt);
    const std::int64_t ties = near_ties(example.expected, layer.spec.dtype);
    if (seen != nullptr) {
      seen->groups += static_cast<std::int64_t>(example.expected.rep_margin.size());
      seen->ties += ties;
      seen->redraws += draw > 0 ? 1 : 0;
    }
    if (ties == 0 || !selects(layer.spec.settings)) return example;
  }
  throw std::runtime_error("no sequence without near ties: " + describe(layer.spec));
}

std::string describe(const LayerSpec& spec) {
  const AttentionShape& shape = spec.shape;
  std::string line = shape.form == Form::mla
                         ? fmt::format("mla H={} d_n={} d_r={} d_c={} d_v={}", shape.heads,
                                       shape.d_nope, shape.d_rope, shape.d_latent, shape.d_value)
                         : fmt::format("gqa H={} KV={} d={} d_v={}", shape.heads, shape.kv_heads,
                                       shape.d_rope, shape.d_value);
  line += fmt::format(" {}{} scale={:.4g}", dtype_name(spec.dtype),
                      spec.storage == CacheStorage::int8 ? " int8" : "", spec.softmax_scale());
  for (const SettingField& field : setting_fields()) {
    const std::int64_t value = field.get(spec.settings);
    line += fmt::format(" {}=", field.name);
    line += field.is_integer ? fmt::format("{}", value)
                             : std::string(field.choices[static_cast<std::size_t>(value)]);
  }
  if (spec.settings.positions == Positions::entry) {
    line += fmt::format(" pairs={} {}", spec.rotation.frequencies.size(),
                        spec.rotation.layout == RopeLayout::halves ? "halves" : "adjacent");
  }
  return line;
}

AttentionShape random_shape(Random& random) {
  const auto kv_heads = random.pick<std::int64_t>({1, 1, 2, 3});
  const auto sharing = random.pick<std::int64_t>({1, 2, 5, 7});
  const auto heads = random.pick<std::int64_t>({1, 2, 3, 5, 8});
  const auto width = [&] {
    return random.pick<std::int64_t>({1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 40});
  };
  const std::array widths{width(), width(), random.pick({width(), std::int64_t{64}}), width()};
  return random.chance(0.5)
             ? AttentionShape::gqa(kv_heads * sharing, kv_heads, widths[0], widths[1])
             : AttentionShape::mla(heads, widths[0], widths[1], widths[2], widths[3]);
}

Settings random_settings(Random& random, std::int64_t count) {
  Settings settings;
  settings.method =
      random.pick({MethodKind::lca, MethodKind::lca, MethodKind::lca, MethodKind::lca,
                   MethodKind::lca, MethodKind::lca, MethodKind::dense, MethodKind::window});
  const std::int64_t most = std::max<std::int64_t>(2, count / 3);
  settings.group =
      random.pick({random.integer(1, 5), random.integer(1, 20), random.integer(1, most)});
  settings.window = random.pick({std::int64_t{1}, random.integer(1, 9), random.integer(1, most)});
  settings.sink = random.pick({std::int64_t{0}, std::int64_t{0}, std::int64_t{1},
                               random.integer(0, 9), random.integer(0, most)});
  settings.summary_queries =
      random.pick({std::int64_t{1}, random.integer(1, 8), std::int64_t{16}, count + 3});
  settings.summary = random.pick({Summary::streaming, Summary::prompt});
  settings.head_reduce = random.pick({HeadReduce::mean, HeadReduce::sum, HeadReduce::max});
  settings.semantic_pool = random.pick({Pool::weighted, Pool::mean, Pool::max, Pool::select});
  settings.positional_pool = random.pick({Pool::weighted, Pool::mean, Pool::max, Pool::select});
  settings.mass = random.pick({Mass::none, Mass::count, Mass::score});
  return settings;
}

Rotation random_rotation(Random& random, std::int64_t width) {
  Rotation rotation;
  rotation.layout = random.pick({RopeLayout::halves, RopeLayout::adjacent});
  const std::int64_t pairs = random.chance(0.7) ? width / 2 : random.integer(1, width / 2);
  const double base = random.pick({2.0, 100.0, 10000.0});
  for (std::int64_t i = 0; i < pairs; ++i) {
    rotation.frequencies.push_back(
        std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs)));
  }
  return rotation;
}

void random_positions(LayerSpec& spec, Random& random) {
  if (spec.shape.d_positional() < 2 || random.chance(0.5)) return;
  spec.settings.positions = Positions::entry;
  spec.rotation = random_rotation(random, spec.shape.d_positional());
}

}  // namespace lca::test
