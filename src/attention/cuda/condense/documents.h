#pragma once
/// Documents that are packed one after another: which one a group or a token belongs to.

#include <cstdint>
#include <span>

#include "core/cuda/device.h"

namespace lca::cuda {

/// Where a document begins: its first token's row, and the number of its first representative.
struct DocumentPlace {
  std::int64_t row = 0;
  std::int64_t group = 0;
};

/// All of them, in order. Without a table there is one, which begins at row 0 and group 0.
struct Documents {
  const DocumentPlace* table = nullptr;  ///< [count + 1] in device memory; the last is the end
  int count = 1;
};

/// Writes a table to device memory without a copy from host memory, so that it can be captured.
void documents_write(std::span<const DocumentPlace> places, DocumentPlace* to, const Queue& queue);
/// The same for numbers, such as the steps of a rotation.
void numbers_write(std::span<const std::uint64_t> numbers, std::uint64_t* to, const Queue& queue);

#if defined(__CUDACC__)

/// The last document for which before(place) holds: all before it do, and at least the first does.
/// Every lane of a warp asks for the same one: 32 places are looked at together.
template <typename Before>
__device__ inline int document_find(const Documents& documents, int lane, const Before& before) {
  int low = 0;
  int high = documents.count;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + lane * step;
    const bool holds = probe < high && before(documents.table[probe]);
    const int found = max(1, __popc(__ballot_sync(0xffffffffu, holds)));
    low += (found - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

__device__ inline DocumentPlace document_of_group(const Documents& documents, std::int64_t group,
                                                  int lane) {
  return documents.table[document_find(
      documents, lane, [&](const DocumentPlace& place) { return place.group <= group; })];
}

/// A token's document by one thread alone.
__device__ inline int document_of_row(const Documents& documents, std::int64_t row) {
  int low = 0;
  int high = documents.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (documents.table[middle].row <= row ? low : high) = middle;
  }
  return low;
}

#endif

}  // namespace lca::cuda
