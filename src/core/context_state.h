#pragma once
/// What a Context holds.

#include <lca/context.h>

#include <atomic>
#include <memory>
#include <thread>

#include "core/threads.h"
#include "core/workspace.h"

namespace lca {

/// Memory that a higher layer keeps in a context from call to call.
class ContextAttachment {
 public:
  virtual ~ContextAttachment() = default;
  virtual std::size_t bytes() const = 0;
};

struct Context::State {
  explicit State(int threads) : pool(threads) {}

  ThreadPool pool;
  Workspace workspace;
  std::unique_ptr<ContextAttachment> attachment;
  std::atomic<std::thread::id> user{};  ///< the thread inside a call
  int depth = 0;                        ///< of its nested calls
};

/// Holds a context for one call. Throws Error (busy) where another thread is inside one.
class ContextUse {
 public:
  explicit ContextUse(Context& context);
  ~ContextUse();
  ContextUse(const ContextUse&) = delete;
  ContextUse& operator=(const ContextUse&) = delete;

 private:
  Context::State& state_;
};

}  // namespace lca
