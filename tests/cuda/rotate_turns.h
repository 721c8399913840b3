#pragma once
/// Turns of src/attention/cuda/rotate.cuh, made on the GPU one by one.

#include <cstdint>

namespace lca::test {

/// turns[2·(s·count + d)] and the next are cosine and sine of step s and difference d.
void turns_make(const std::uint64_t* steps, int step_count, const std::int32_t* differences,
                int count, float* turns);

/// The same of the members of a group: differences first, first − 1, …, `count` of them.
void member_turns_make(const std::uint64_t* steps, int step_count, std::int32_t first, int count,
                       float* turns);

}  // namespace lca::test
