#include "workload.h"

#include "core/bf16.h"
#include "core/context_state.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lca::cli {
namespace {

constexpr std::int64_t kRowsPerTask = 256;
constexpr std::int64_t kHidden =
    48;  // width of the made-up hidden state that text-like inputs share

/// A well-mixed number for each (stream, index): no state, so threads need no order.
std::uint64_t noise_bits(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u + stream * 0xd1b54a32d192ed03u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Nearly normal, mean 0 and variance 1: four uniform numbers added up, cheap enough for the
/// hundreds of millions of values a long context takes.
float noise_normal(std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = noise_bits(stream, index);
  const auto sum = static_cast<std::int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                             (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr float kDeviation = 37837.2f;  // √(4·65536²/12)
  return static_cast<float>(sum - 131070) / kDeviation;
}

/// In [0, 1).
float noise_uniform(std::uint64_t stream, std::uint64_t index) {
  return static_cast<float>(noise_bits(stream, index) >> 40) * 0x1p-24f;
}

void store(const ConstTensor& tensor, std::int64_t at, float value) {
  // The pieces own the memory behind their views; only their maker writes to it.
  void* data = const_cast<void*>(tensor.data);
  if (tensor.dtype == DType::f32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<bf16_bits*>(data)[at] = bf16_from_f32(value);
  }
}

float load(const ConstTensor& tensor, std::int64_t at) {
  if (tensor.dtype == DType::f32) return static_cast<const float*>(tensor.data)[at];
  return bf16_to_f32(static_cast<const bf16_bits*>(tensor.data)[at]);
}

void fill_normal(Context& context, const ConstTensor& tensor, std::uint64_t stream, float size) {
  if (tensor.empty()) return;
  const std::int64_t row = tensor.shape[1] * tensor.shape[2];
  const std::int64_t tasks = (tensor.shape[0] + kRowsPerTask - 1) / kRowsPerTask;
  context.state().pool.run(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(tensor.shape[0], (task + 1) * kRowsPerTask) * row;
    for (std::int64_t i = task * kRowsPerTask * row; i < end; ++i) {
      store(tensor, i, size * noise_normal(stream, static_cast<std::uint64_t>(i)));
    }
  });
}

/// A matrix from the hidden state to `width` values, stored [kHidden, width] so that the innermost
/// loop runs over independent outputs.
struct Projection {
  std::int64_t width = 0;
  std::vector<float> values;

  explicit Projection(std::int64_t outputs)
      : width(outputs), values(static_cast<std::size_t>(outputs * kHidden), 0.0f) {}

  static Projection random(std::int64_t outputs, std::uint64_t stream) {
    Projection made(outputs);
    const float size = 1 / std::sqrt(static_cast<float>(kHidden));
    for (std::size_t i = 0; i < made.values.size(); ++i) {
      made.values[i] = size * noise_normal(stream, i);
    }
    return made;
  }

  const float* row(std::int64_t axis) const { return values.data() + axis * width; }
  float* row(std::int64_t axis) { return values.data() + axis * width; }

  void apply(const float* hidden, float* out) const {
    std::fill_n(out, width, 0.0f);
    for (std::int64_t axis = 0; axis < kHidden; ++axis) {
      const float* from = row(axis);
      for (std::int64_t i = 0; i < width; ++i) out[i] += from[i] * hidden[axis];
    }
  }
};

/// Hidden states [length, kHidden] of variance one: topic + word + drift.
std::vector<float> hidden_states(std::int64_t length) {
  constexpr std::uint64_t kTopics = 900, kWords = 901, kDrift = 902, kSegments = 903, kPicks = 904;
  constexpr float kVocabulary = 4096;
  std::vector<float> states(static_cast<std::size_t>(length * kHidden));
  std::vector<float> drift(kHidden, 0.0f);
  std::uint64_t segment = 0;
  std::int64_t segment_end = 0;
  for (std::int64_t t = 0; t < length; ++t) {
    const auto token = static_cast<std::uint64_t>(t);
    if (t == segment_end) {
      ++segment;
      segment_end = t + 64 + static_cast<std::int64_t>(448 * noise_uniform(kSegments, segment));
    }
    // Log-uniform ranks: word r comes up about 1/r as often as the first, as in Zipf's law.
    const auto word =
        static_cast<std::uint64_t>(std::pow(kVocabulary, noise_uniform(kPicks, token)));
    for (std::int64_t i = 0; i < kHidden; ++i) {
      const auto axis = static_cast<std::uint64_t>(i);
      const auto at = static_cast<std::size_t>(i);
      drift[at] = 0.95f * drift[at] + 0.3122f * noise_normal(kDrift, token * kHidden + axis);
      states[static_cast<std::size_t>(t * kHidden + i)] =
          0.6f * noise_normal(kTopics, segment * kHidden + axis) +
          0.55f * noise_normal(kWords, word * kHidden + axis) + 0.58f * drift[at];
    }
  }
  return states;
}

/// The angle per position of each neighbouring pair.
std::vector<double> rope_frequencies(std::int64_t width) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i + 1 < width; i += 2) {
    frequencies.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(width)));
  }
  return frequencies;
}

void rope_apply(const std::vector<double>& frequencies, std::int64_t t, float* values) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto angle = static_cast<double>(t) * frequencies[i];
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const float x = values[2 * i], y = values[2 * i + 1];
    values[2 * i] = x * cosine - y * sine;
    values[2 * i + 1] = x * sine + y * cosine;
  }
}

/// What the keys of head `head` are, as one matrix over the hidden state.
Projection keys_of_latent(const ConstTensor& w_uk, std::int64_t head, const Projection& latent) {
  const std::int64_t d_nope = w_uk.shape[1], d_latent = w_uk.shape[2];
  Projection keys(d_nope);
  for (std::int64_t axis = 0; axis < kHidden; ++axis) {
    for (std::int64_t i = 0; i < d_nope; ++i) {
      float sum = 0;
      for (std::int64_t c = 0; c < d_latent; ++c) {
        sum += load(w_uk, (head * d_nope + i) * d_latent + c) * latent.row(axis)[c];
      }
      keys.row(axis)[i] = sum;
    }
  }
  return keys;
}

/// Queries look for keys of similar states, so they use the keys' matrix, with a taste of their own
/// for each axis of the hidden state.
Projection query_of_keys(Projection keys, std::int64_t head, float gain) {
  for (std::int64_t axis = 0; axis < kHidden; ++axis) {
    const auto taste = static_cast<std::uint64_t>(head * kHidden + axis);
    const float factor = gain * 2 * noise_uniform(905, taste);
    for (std::int64_t i = 0; i < keys.width; ++i) keys.row(axis)[i] *= factor;
  }
  return keys;
}

/// Writes projection · hidden state into head `head` of each row of `tensor`, rotated where asked.
void project(Context& context, const ConstTensor& tensor, std::int64_t head,
             const Projection& projection, const std::vector<float>& hidden, bool rope) {
  const std::vector<double> frequencies =
      rope ? rope_frequencies(projection.width) : std::vector<double>();
  const std::int64_t tasks = (tensor.shape[0] + kRowsPerTask - 1) / kRowsPerTask;
  context.state().pool.run(tasks, [&](std::int64_t task, int) {
    std::vector<float> values(static_cast<std::size_t>(projection.width));
    const std::int64_t end = std::min(tensor.shape[0], (task + 1) * kRowsPerTask);
    for (std::int64_t t = task * kRowsPerTask; t < end; ++t) {
      projection.apply(hidden.data() + t * kHidden, values.data());
      rope_apply(frequencies, t, values.data());
      const std::int64_t at = t * tensor.stride[0] + head * tensor.stride[1];
      for (std::int64_t i = 0; i < projection.width; ++i) {
        store(tensor, at + i, values[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace

Workload::Workload(const AttentionShape& shape, DType dtype, std::int64_t length)
    : length_(length) {
  const auto make = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    Piece piece;
    piece.bytes = static_cast<std::size_t>(a * b * c) * dtype_bytes(dtype);
    if (piece.bytes == 0) return piece;
    piece.memory = aligned_bytes(piece.bytes);
    piece.view = ConstTensor(piece.memory.get(), dtype, {a, b, c});
    return piece;
  };
  nope_ = make(length, shape.heads, shape.d_nope);
  rope_ = make(length, shape.heads, shape.d_rope);
  semantic_ = make(length, shape.kv_heads, shape.d_semantic());
  positional_ = make(length, shape.kv_heads, shape.d_positional());
  w_uk_ = make(shape.heads, shape.d_nope, shape.d_latent);
  w_uv_ = make(shape.heads, shape.d_latent > 0 ? shape.d_value : 0, shape.d_latent);
}

double Workload::bytes_planned(const AttentionShape& shape, DType dtype, std::int64_t length) {
  const auto row = static_cast<double>(shape.heads * shape.d_score() + shape.entry_values());
  const auto weights =
      static_cast<double>(shape.heads * (shape.d_nope + shape.d_value) * shape.d_latent);
  return (static_cast<double>(length) * row + weights) * static_cast<double>(dtype_bytes(dtype));
}

LayerSpec workload_layer(const AttentionShape& shape, const Settings& settings, DType dtype,
                         double scale) {
  LayerSpec spec{shape, settings, dtype, scale, {}};
  if (settings.positions == Positions::entry) {
    spec.rotation = {RopeLayout::adjacent, rope_frequencies(shape.d_positional())};
  }
  spec.validate();
  return spec;
}

Workload Workload::random(Context& context, const AttentionShape& shape, DType dtype,
                          std::int64_t length) {
  Workload made(shape, dtype, length);
  const float weight_size =
      shape.d_latent > 0 ? 1 / std::sqrt(static_cast<float>(shape.d_latent)) : 1.0f;
  fill_normal(context, made.nope_.view, 1, 1);
  fill_normal(context, made.rope_.view, 2, 1);
  fill_normal(context, made.semantic_.view, 3, 1);
  fill_normal(context, made.positional_.view, 4, 1);
  fill_normal(context, made.w_uk_.view, 5, weight_size);
  fill_normal(context, made.w_uv_.view, 6, weight_size);
  return made;
}

Workload Workload::text_like(Context& context, const LayerSpec& spec, std::int64_t length) {
  const AttentionShape& shape = spec.shape;
  Workload made(shape, spec.dtype, length);
  const std::vector<float> hidden = hidden_states(length);
  // A query meets its own token's key at a logit of about 8, whatever the widths.
  const auto width = static_cast<double>(shape.d_score());
  const auto gain = static_cast<float>(8 / (width * spec.softmax_scale()));
  const bool mla = shape.form == Form::mla;

  std::vector<Projection> positional;
  for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    const auto stream = static_cast<std::uint64_t>(100 + kv);
    positional.push_back(Projection::random(shape.d_positional(), stream));
    project(context, made.positional_.view, kv, positional.back(), hidden, true);
    if (!mla) {
      const Projection values = Projection::random(shape.d_value, stream + 200);
      project(context, made.semantic_.view, kv, values, hidden, false);
    }
  }
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const Projection& keys = positional[static_cast<std::size_t>(h / shape.heads_per_kv())];
    project(context, made.rope_.view, h, query_of_keys(keys, h, gain), hidden, true);
  }
  if (!mla) return made;

  const Projection latent = Projection::random(shape.d_latent, 500);
  const float weight_size = 1 / std::sqrt(static_cast<float>(shape.d_latent));
  project(context, made.semantic_.view, 0, latent, hidden, false);
  fill_normal(context, made.w_uk_.view, 5, weight_size);
  fill_normal(context, made.w_uv_.view, 6, weight_size);
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const Projection keys = keys_of_latent(made.w_uk_.view, h, latent);
    project(context, made.nope_.view, h, query_of_keys(keys, h, gain), hidden, false);
  }
  return made;
}

Queries Workload::queries(std::int64_t first, std::int64_t count) const {
  return {nope_.view.empty() ? ConstTensor{} : nope_.view.slice(first, count),
          rope_.view.slice(first, count)};
}

Entries Workload::entries(std::int64_t first, std::int64_t count) const {
  return {semantic_.view.slice(first, count), positional_.view.slice(first, count)};
}

LayerWeights Workload::weights() const { return {w_uk_.view, w_uv_.view}; }

std::size_t Workload::bytes() const {
  std::size_t total = 0;
  for (const Piece* piece : {&nope_, &rope_, &semantic_, &positional_, &w_uk_, &w_uv_}) {
    total += piece->bytes;
  }
  return total;
}

}  // namespace lca::cli
