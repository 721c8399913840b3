// Which form a run of queries takes.

#include "attention/attend.h"

#include "attention/cache_state.h"

namespace lca {

bool attend_prefers_rows(const AttentionShape& shape, std::int64_t run) {
  if (shape.form == Form::gqa) {
    // Laying keys out costs about as much as a few queries.
    constexpr std::int64_t kFew = 4;
    return run <= kFew;
  }
  // Absorbed, a pair costs 2·d_c + d_r products a head; per head d_n + d_r + d_v, and rebuilding
  // d_c·(d_n + d_v) once for the whole run.
  return run * (2 * shape.d_latent + shape.d_rope) <=
         run * (shape.d_nope + shape.d_rope + shape.d_value) +
             shape.d_latent * (shape.d_nope + shape.d_value);
}

void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            std::span<const std::int64_t> first) {
  const auto by_rows = [&](std::size_t i) {
    return attend_prefers_rows(runs[i].cache->spec().shape, runs[i].queries.rope.shape[0]);
  };
  // Neighbours of a kind go together; in decoding that is everybody.
  for (std::size_t begin = 0; begin < runs.size();) {
    const bool rows = by_rows(begin);
    std::size_t end = begin + 1;
    while (end < runs.size() && by_rows(end) == rows) ++end;
    const auto part = runs.subspan(begin, end - begin);
    const auto part_first = first.subspan(begin, end - begin);
    if (rows) {
      attend_rows(context, weights, part, part_first);
    } else {
      attend_tiles(context, weights, part, part_first);
    }
    begin = end;
  }
}

}  // namespace lca
