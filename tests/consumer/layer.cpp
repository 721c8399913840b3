// One attention layer in a program outside the project, as GQA and as MLA: a prompt, then tokens
// one by one. Every output is compared with the definition (docs/mechanism.md §2–§5), written down
// here in double and without any of the library's code.

#include <lca/lca.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace {

using Row = std::vector<double>;

constexpr std::int64_t kPrompt = 90, kLength = 100;
constexpr std::int64_t kGroup = 4, kWindow = 16, kSink = 3, kSummary = 4;
constexpr std::int64_t kHeads = 4;

/// Pseudo-random numbers between −1 and 1.
std::vector<float> noise(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(seed >> 8) / 8388608.0F - 1.0F);
  }
  return values;
}

Row row(const std::vector<float>& values, std::int64_t index, std::int64_t width) {
  const auto first = values.begin() + index * width;
  return {first, first + width};
}

double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Row softmax(Row scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  for (double& score : scores) score = std::exp(score - highest);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& score : scores) score /= sum;
  return scores;
}

Row mix(const Row& weights, const std::vector<Row>& rows) {
  Row sum(rows[0].size(), 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weights[i] * rows[i][d];
  }
  return sum;
}

/// A cache entry of one KV head.
struct Entry {
  Row semantic, positional;
};

/// What the definition needs to know about a layer.
struct Layer {
  std::int64_t kv_heads;
  double scale;
  std::function<Entry(std::int64_t token, std::int64_t kv)> entry;
  std::function<Row(std::int64_t token, std::int64_t head)> query;
  std::function<Row(const Entry&, std::int64_t head)> key, value;
};

/// The representative of group j: scored by the mean query, semantic part mixed, positional part
/// that of the best token.
Entry representative(const Layer& layer, std::int64_t j, std::int64_t kv) {
  const std::int64_t shared = kHeads / layer.kv_heads;
  const std::int64_t last = kSink + (j + 1) * kGroup + kWindow - 1;
  std::vector<Entry> group;
  Row scores;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    group.push_back(layer.entry(kSink + j * kGroup + i, kv));
    double score = 0;
    for (std::int64_t head = kv * shared; head < (kv + 1) * shared; ++head) {
      for (std::int64_t t = last - kSummary + 1; t <= last; ++t) {
        score += dot(layer.query(t, head), layer.key(group.back(), head));
      }
    }
    scores.push_back(layer.scale * score / static_cast<double>(kSummary * shared));
  }
  const Row weights = softmax(scores);
  std::vector<Row> semantic;
  for (const Entry& entry : group) semantic.push_back(entry.semantic);
  const auto best = std::max_element(weights.begin(), weights.end()) - weights.begin();
  return {mix(weights, semantic), group[static_cast<std::size_t>(best)].positional};
}

/// The output of the token at `position` for one head.
Row expected(const Layer& layer, std::int64_t position, std::int64_t head) {
  const std::int64_t kv = head / (kHeads / layer.kv_heads);
  const std::int64_t n = position + 1;
  const std::int64_t groups =
      n >= kSink + kWindow + kGroup ? (n - kWindow - kSink) / kGroup : std::int64_t{0};
  std::vector<Entry> seen;
  for (std::int64_t j = 0; j < groups; ++j) seen.push_back(representative(layer, j, kv));
  for (std::int64_t t = 0; t < n; ++t) {
    if (t < kSink || t >= kSink + groups * kGroup) seen.push_back(layer.entry(t, kv));
  }
  Row scores;
  std::vector<Row> values;
  for (const Entry& entry : seen) {
    scores.push_back(layer.scale * dot(layer.query(position, head), layer.key(entry, head)));
    values.push_back(layer.value(entry, head));
  }
  return mix(softmax(scores), values);
}

lca::LayerSpec spec_of(const lca::AttentionShape& shape) {
  lca::LayerSpec spec;
  spec.shape = shape;
  spec.settings.group = kGroup;
  spec.settings.window = kWindow;
  spec.settings.sink = kSink;
  spec.settings.summary_queries = kSummary;
  spec.validate();
  return spec;
}

/// The prompt in one run, then token by token. `part` fills queries and entries of some tokens.
std::vector<float> outputs(const lca::LayerSpec& spec, const lca::LayerWeights& weights,
                           const std::function<void(lca::Run&, std::int64_t, std::int64_t)>& part) {
  const std::int64_t width = kHeads * spec.shape.d_value;
  std::vector<float> out(static_cast<std::size_t>(kLength * width));
  lca::Context context(2);
  lca::Cache cache(spec);
  for (std::int64_t first = 0, count = kPrompt; first < kLength; first += count, count = 1) {
    lca::Run run;
    run.cache = &cache;
    part(run, first, count);
    run.out = out.data() + first * width;
    lca::method_for(spec.settings.method).forward(context, weights, std::span(&run, 1));
  }
  if (cache.length() != kLength || cache.bytes() != lca::cache_bytes(spec, kLength)) {
    throw lca::Error(lca::ErrorKind::internal, "the cache is not as large as promised");
  }
  return out;
}

void compare(const char* name, const Layer& layer, const std::vector<float>& out,
             std::int64_t width) {
  double worst = 0;
  for (std::int64_t t = 0; t < kLength; ++t) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const Row wanted = expected(layer, t, head);
      const Row given = row(out, t * kHeads + head, width);
      for (std::size_t d = 0; d < wanted.size(); ++d) {
        const double error = std::abs(wanted[d] - given[d]);
        if (!(error < 1e-5)) {
          std::fprintf(stderr, "%s: token %d, head %d: expected %g, got %g\n", name,
                       static_cast<int>(t), static_cast<int>(head), wanted[d], given[d]);
          throw lca::Error(lca::ErrorKind::internal, "an output is wrong");
        }
        worst = std::max(worst, error);
      }
    }
  }
  std::printf("%s: %d tokens, largest error %.1e\n", name, static_cast<int>(kLength), worst);
}

void check_gqa() {
  constexpr std::int64_t kv = 2, d = 8, d_v = 12;
  const auto q = noise(kLength * kHeads * d, 1), k = noise(kLength * kv * d, 2),
             v = noise(kLength * kv * d_v, 3);
  const lca::LayerSpec spec = spec_of(lca::AttentionShape::gqa(kHeads, kv, d, d_v));
  const lca::ConstTensor queries(q.data(), lca::DType::f32, {kLength, kHeads, d});
  const lca::ConstTensor keys(k.data(), lca::DType::f32, {kLength, kv, d});
  const lca::ConstTensor values(v.data(), lca::DType::f32, {kLength, kv, d_v});
  const auto out = outputs(spec, {}, [&](lca::Run& run, std::int64_t first, std::int64_t count) {
    run.queries = lca::Queries::gqa(queries.slice(first, count));
    run.entries = lca::Entries::gqa(keys.slice(first, count), values.slice(first, count));
  });
  Layer layer;
  layer.kv_heads = kv;
  layer.scale = 1 / std::sqrt(double{d});
  layer.entry = [&](std::int64_t t, std::int64_t head) {
    return Entry{row(v, t * kv + head, d_v), row(k, t * kv + head, d)};
  };
  layer.query = [&](std::int64_t t, std::int64_t head) { return row(q, t * kHeads + head, d); };
  layer.key = [](const Entry& entry, std::int64_t) { return entry.positional; };
  layer.value = [](const Entry& entry, std::int64_t) { return entry.semantic; };
  compare("gqa", layer, out, d_v);
}

void check_mla() {
  constexpr std::int64_t d_n = 6, d_r = 4, d_c = 16, d_v = 8;
  const auto q_n = noise(kLength * kHeads * d_n, 4), q_r = noise(kLength * kHeads * d_r, 5);
  const auto c = noise(kLength * d_c, 6), k_r = noise(kLength * d_r, 7);
  const auto w_uk = noise(kHeads * d_n * d_c, 8), w_uv = noise(kHeads * d_v * d_c, 9);
  const lca::LayerSpec spec = spec_of(lca::AttentionShape::mla(kHeads, d_n, d_r, d_c, d_v));
  const lca::ConstTensor nope(q_n.data(), lca::DType::f32, {kLength, kHeads, d_n});
  const lca::ConstTensor rope(q_r.data(), lca::DType::f32, {kLength, kHeads, d_r});
  const lca::ConstTensor latents(c.data(), lca::DType::f32, {kLength, 1, d_c});
  const lca::ConstTensor rope_keys(k_r.data(), lca::DType::f32, {kLength, 1, d_r});
  lca::LayerWeights weights;
  weights.w_uk = {w_uk.data(), lca::DType::f32, {kHeads, d_n, d_c}};
  weights.w_uv = {w_uv.data(), lca::DType::f32, {kHeads, d_v, d_c}};
  const auto out =
      outputs(spec, weights, [&](lca::Run& run, std::int64_t first, std::int64_t count) {
        run.queries = lca::Queries::mla(nope.slice(first, count), rope.slice(first, count));
        run.entries = lca::Entries::mla(latents.slice(first, count), rope_keys.slice(first, count));
      });
  const auto up = [](const std::vector<float>& matrix, std::int64_t head, std::int64_t rows,
                     const Row& latent) {
    Row result;
    for (std::int64_t i = 0; i < rows; ++i) {
      result.push_back(dot(row(matrix, head * rows + i, d_c), latent));
    }
    return result;
  };
  const auto joined = [](Row a, const Row& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  Layer layer;
  layer.kv_heads = 1;
  layer.scale = 1 / std::sqrt(double{d_n + d_r});
  layer.entry = [&](std::int64_t t, std::int64_t) {
    return Entry{row(c, t, d_c), row(k_r, t, d_r)};
  };
  layer.query = [&](std::int64_t t, std::int64_t head) {
    return joined(row(q_n, t * kHeads + head, d_n), row(q_r, t * kHeads + head, d_r));
  };
  layer.key = [&](const Entry& entry, std::int64_t head) {
    return joined(up(w_uk, head, d_n, entry.semantic), entry.positional);
  };
  layer.value = [&](const Entry& entry, std::int64_t head) {
    return up(w_uv, head, d_v, entry.semantic);
  };
  compare("mla", layer, out, d_v);
}

}  // namespace

int main() try {
  check_gqa();
  check_mla();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "layer: %s\n", error.what());
  return 1;
}
