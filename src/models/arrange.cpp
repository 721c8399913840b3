#include "models/arrange.h"

#include <algorithm>
#include <vector>

#include "core/context_state.h"
#include "core/pages.h"
#include "ops/strips.h"

namespace lca {
namespace {

/// Matrices that can be laid out in strips: not the embedding, whose rows are looked up one by one
/// (where it is the head too, in its strips), nor the router, which is multiplied in float32.
std::vector<PackedMatrix*> movable(DecoderWeights& weights) {
  std::vector<PackedMatrix*> list;
  matrices_visit(weights, [&](MatrixRole role, PackedMatrix& matrix) {
    const bool moves = role == MatrixRole::linear || role == MatrixRole::head;
    if (moves && strips_supported(matrix.type)) list.push_back(&matrix);
  });
  return list;
}

/// Whether `data` points into the checkpoint's mapped files.
bool is_mapped(const Checkpoint& checkpoint, const std::byte* data) {
  return std::ranges::any_of(checkpoint.tensors(), [&](const StoredTensor& tensor) {
    return data >= tensor.data && data < tensor.data + tensor.bytes();
  });
}

std::size_t bytes_in_strips(const PackedMatrix& matrix) {
  return static_cast<std::size_t>(strip_count(matrix.rows)) *
         strip_bytes(matrix.type, matrix.columns);
}

}  // namespace

void weights_arrange(Context& context, DecoderWeights& weights, const Checkpoint& checkpoint,
                     const std::function<void(double)>& progress) {
  const std::vector<PackedMatrix*> list = movable(weights);
  const bool tied = weights.head.weight.data == weights.embedding.data;
  std::size_t total = 0;
  for (const PackedMatrix* matrix : list) total += bytes_in_strips(*matrix);
  if (total == 0) {
    if (progress) progress(1);
    return;
  }
  // One block for all matrices: it gets huge pages, and a decode step reads it sequentially.
  weights.owned.push_back(aligned_bytes(total));
  std::byte* to = weights.owned.back().get();
  std::size_t done = 0;
  std::size_t freed = 0;
  for (PackedMatrix* matrix : list) {
    const std::size_t bytes = strip_bytes(matrix->type, matrix->columns);
    constexpr std::int64_t kTask = 8;  // strips
    const std::int64_t strips = strip_count(matrix->rows);
    context.state().pool.run((strips + kTask - 1) / kTask, [&](std::int64_t task, int) {
      for (std::int64_t strip = task * kTask; strip < std::min(strips, (task + 1) * kTask);
           ++strip) {
        strip_arrange(*matrix, strip, to + static_cast<std::size_t>(strip) * bytes);
      }
    });
    if (is_mapped(checkpoint, matrix->data)) {
      pages_release(matrix->data, matrix->bytes());
    } else if (matrix->data != weights.embedding.data) {
      std::erase_if(weights.owned,
                    [&](const AlignedBytes& block) { return block.get() == matrix->data; });
      // Return freed memory as we go: both layouts at once would take twice the memory.
      constexpr std::size_t kSome = std::size_t{256} << 20;
      freed += matrix->bytes();
      if (freed >= kSome) {
        heap_trim();
        freed = 0;
      }
    }
    matrix->data = to;
    matrix->strips = true;
    to += static_cast<std::size_t>(strips) * bytes;
    done += static_cast<std::size_t>(strips) * bytes;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(total));
  }
  if (tied && weights.head.weight.strips) {
    std::erase_if(weights.owned,
                  [&](const AlignedBytes& block) { return block.get() == weights.embedding.data; });
    freed += weights.embedding.bytes();
    weights.embedding = weights.head.weight;
  }
  if (freed > 0) heap_trim();
}

std::size_t adapter_arrange(Context& context, DecoderWeights& weights, ProductType type) {
  struct Place {
    Lora* lora;
    std::size_t at;
  };
  std::vector<Place> places;
  std::size_t total = 0;
  linears_visit(weights, [&](MatrixRole, Linear& layer) {
    if (layer.lora.empty()) return;
    places.push_back({&layer.lora, total});
    total += layer.lora.layout_bytes(type);
  });
  if (places.empty()) return 0;
  // In the order in which a step reads them, so in one block.
  weights.owned.push_back(aligned_bytes(total));
  std::byte* to = weights.owned.back().get();
  context.state().pool.run(std::ssize(places), [&](std::int64_t task, int) {
    const Place& place = places[static_cast<std::size_t>(task)];
    place.lora->arrange(type, to + place.at);
    pages_release(place.lora->a.data, place.lora->a.bytes());
    pages_release(place.lora->b.data, place.lora->b.bytes());
  });
  return total;
}

}  // namespace lca
