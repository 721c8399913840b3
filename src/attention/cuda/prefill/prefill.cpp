// Picks the kernel that attends; what both of them take for granted is checked here.

#include "attention/cuda/prefill/prefill.h"

#include "core/error.h"

namespace lca::cuda {
namespace {

constexpr int kWidest = 256;  // values of a key, and of a value

void problem_check(const Prefill& problem, std::span<const PrefillRun> runs) {
  const KeyRows& exact = problem.exact;
  const int score = problem.q_nope.width + problem.q_rope.width;
  if (score < 1 || score > kWidest || exact.value.width < 1 || exact.value.width > kWidest) {
    fail_input(
        "attention with score width {} and value width {}: the GPU's kernels take 1 to {}; use "
        "the CPU",
        score, exact.value.width, kWidest);
  }
  const auto fits = [&](const KeyRows& keys) {
    return keys.nope.width == problem.q_nope.width && keys.rope.width == problem.q_rope.width &&
           keys.value.width == exact.value.width;
  };
  bool groups = false;
  std::int64_t queries = 0;
  for (const PrefillRun& run : runs) {
    const std::int64_t end = run.query_first + run.query_count;
    if (end > kLongestLayout32) {
      fail_input("a document of {} tokens is too long for the GPU; it takes {}", end,
                 kLongestLayout32);
    }
    queries += run.query_count;
    groups = groups || problem.layout.groups(end) > 0;
  }
  // Tiles of at least 64 queries are counted in 31 bits.
  if (queries > (std::int64_t{1} << 36) || runs.size() > (std::size_t{1} << 24)) {
    fail_input("prefill: {} queries in {} runs are too many for one call", queries, runs.size());
  }
  if (!fits(exact) || (groups && !fits(problem.groups))) {
    fail_input("prefill: keys are not as wide as queries");
  }
  const RotationView& rotation = problem.rotation;
  if (rotation.steps != nullptr &&
      (rotation.pairs < 1 || 2 * rotation.pairs > problem.q_rope.width)) {
    fail_input("prefill: {} pairs of channels to rotate in {}", rotation.pairs,
               problem.q_rope.width);
  }
  if (problem.heads < 1 || problem.heads > 65535 || problem.kv_heads < 1 ||
      (problem.form == Form::gqa && problem.heads % problem.kv_heads != 0)) {
    fail_input("prefill: {} heads over {} KV heads", problem.heads, problem.kv_heads);
  }
}

}  // namespace

std::size_t prefill_workspace_bytes(std::size_t runs) {
  return 4096 + 64 * runs;  // the Hopper kernel's; the portable one needs 64 for each run
}

void prefill(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
             Kernels kernels, const Queue& queue) {
  problem_check(problem, runs);
  if (kernels == Kernels::fast && queue.device->hopper() && prefill_has_fast(problem)) {
    prefill_sm90(problem, runs, workspace, queue);
  } else {
    prefill_portable(problem, runs, workspace, queue);
  }
}

}  // namespace lca::cuda
