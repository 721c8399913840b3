#pragma once
/// Memory that a file is mapped to, page by page.

#include <cstddef>

namespace lca {

/// Tells the system that a piece of a file mapped read-only is not needed any more: its pages leave
/// the process, and come back from the file where they are read again. Pages that the piece shares
/// with others stay. Does nothing to memory that is no mapped file, and where the system has no
/// such call.
void pages_release(const std::byte* data, std::size_t bytes);

}  // namespace lca
