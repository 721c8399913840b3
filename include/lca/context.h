#pragma once
/// Where work runs: the threads and the scratch memory that calls share.

#include <cstddef>
#include <memory>

namespace lca {

class ThreadPool;
class Workspace;

/// Threads and scratch memory. One call at a time may use a context; results never depend on its
/// number of threads.
class Context {
 public:
  /// `threads` ≥ 1, or 0 for one per core this process may use.
  explicit Context(int threads = 0);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  /// Bytes of scratch memory held for later calls.
  std::size_t workspace_bytes() const;

  ThreadPool& pool();
  Workspace& workspace();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lca
