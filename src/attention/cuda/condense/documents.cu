// Tables of documents and rotations on their way to the GPU, as arguments of launches.

#include "attention/cuda/condense/documents.h"

#include "attention/cuda/prefill/run_table.cuh"

namespace lca::cuda {

void documents_write(std::span<const DocumentPlace> places, DocumentPlace* to, const Queue& queue) {
  run_table_write(places, to, queue);
}

void numbers_write(std::span<const std::uint64_t> numbers, std::uint64_t* to, const Queue& queue) {
  run_table_write(numbers, to, queue);
}

}  // namespace lca::cuda
