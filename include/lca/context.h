#pragma once
/// Where work runs: the threads and the scratch memory that calls share.

#include <cstddef>
#include <memory>

namespace lca {

/// What a context keeps for later calls, in bytes.
struct ContextMemory {
  std::size_t activations = 0;  ///< between a model's operators
  std::size_t scratch = 0;      ///< inside them
};

/// Threads and scratch memory. Thread-safety: one call at a time; a call while another thread is
/// inside one throws Error (busy). Results never depend on the number of threads.
class Context {
 public:
  /// `threads` ≥ 1, or 0 for one per core this process may use (affinity and cgroup quota).
  explicit Context(int threads = 0);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  ContextMemory memory() const;
  /// Frees that memory; later calls allocate what they need.
  void trim();

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lca
