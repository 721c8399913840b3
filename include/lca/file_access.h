#pragma once
/// Whether files of weights are mapped or read.

#include <cstdint>

namespace lca {

/// `map`: the file's pages are used where they lie. Another program that cuts the file short then
/// raises SIGBUS, so the first map installs a process-wide handler for it; faults outside our maps
/// go to the handler that was there before. What is missing reads as zeros and is an Error (io).
/// `read`: the file is copied into memory and closed: no handler, and later changes do not matter.
enum class FileAccess : std::uint8_t { map, read };

}  // namespace lca
