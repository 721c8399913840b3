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

/// From now on pieces of 128 KiB or more are mapped one by one, and leave the process when they are
/// freed; what was never written of them takes no memory. For programs whose large pieces come and
/// go between small ones that stay: each costs a system call and new pages.
void heap_map_large();

}  // namespace lca
