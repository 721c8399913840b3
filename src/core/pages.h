#pragma once
/// Giving memory back to the system.

#include <cstddef>

namespace lca {

/// Tells the system that a piece of a file mapped read-only is not needed any more: its pages leave
/// the process, and are read from the file again when used. Pages shared with other pieces stay.
/// Does nothing to memory that is no mapped file, and where the system has no such call.
void pages_release(const std::byte* data, std::size_t bytes);

/// Returns memory that was freed but kept for later allocations, also from between blocks in use.
void heap_trim();

}  // namespace lca
