#pragma once
/// Counts the heap allocations of a test program: every malloc, operator new and aligned block, of
/// all threads and libraries.

#include <cstdint>

namespace lca::test {

/// Whether this build counts; sanitizers have allocators of their own.
bool allocations_are_counted();

/// Allocations (and reallocations) since the program started; 0 if they are not counted.
std::int64_t allocations();

/// Bytes in use now.
std::int64_t allocated_bytes();

/// After `count` more allocations all others fail, until this is called with −1. Only where they
/// are counted.
void allocation_fail_after(std::int64_t count);
/// Whether one has failed since.
bool allocation_failed();

}  // namespace lca::test
