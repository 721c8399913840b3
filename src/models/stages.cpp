#include "models/stages.h"

#include "ops/likeliest.h"

namespace lca {

void Stages::picks(std::span<const RowRange> ranges, std::span<std::int32_t> out) {
  const auto width = static_cast<std::size_t>(vocabulary());
  const float* row = logits(ranges);
  for (std::int32_t& pick : out) {
    pick = likeliest_token({row, width});
    row += width;
  }
}

}  // namespace lca
