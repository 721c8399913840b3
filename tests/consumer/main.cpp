// A program outside the project that uses the installed library: a prompt of equal values through
// condensed attention gives that value back, and the cache is as small as promised.

#include <lca/lca.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

int main() try {
  lca::LayerSpec spec;
  spec.shape = lca::AttentionShape::gqa(/*heads=*/4, /*kv_heads=*/2, /*d_key=*/8, /*d_value=*/8);
  spec.settings.group = 4;
  spec.settings.window = 16;
  spec.validate();

  const std::int64_t length = 100;
  const std::vector<float> queries(length * 4 * 8, 0.5F);
  const std::vector<float> keys(length * 2 * 8, 0.25F);
  const std::vector<float> values(length * 2 * 8, 3.0F);
  std::vector<float> out(length * 4 * 8, 0.0F);

  lca::Context context(2);
  lca::Cache cache(spec);
  lca::Run run;
  run.cache = &cache;
  run.queries.rope = {queries.data(), lca::DType::f32, {length, 4, 8}};
  run.entries.semantic = {values.data(), lca::DType::f32, {length, 2, 8}};
  run.entries.positional = {keys.data(), lca::DType::f32, {length, 2, 8}};
  run.out = out.data();
  lca::method_for(spec.settings.method).forward(context, {}, std::span(&run, 1));

  for (const float value : out) {
    if (!(std::abs(value - 3.0F) < 1e-5F)) {
      std::fprintf(stderr, "expected 3, got %g\n", static_cast<double>(value));
      return 1;
    }
  }
  if (cache.bytes() != lca::cache_bytes(spec, length)) {
    std::fprintf(stderr, "the cache holds %zu bytes instead of %zu\n", cache.bytes(),
                 lca::cache_bytes(spec, length));
    return 1;
  }
  std::printf("lca %s: %d tokens in %zu bytes\n", lca::version(), static_cast<int>(length),
              cache.bytes());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
