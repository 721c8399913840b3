#include <lca/context.h>

#include <algorithm>

#include "core/cgroups.h"
#include "core/error.h"
#include "core/threads.h"
#include "core/workspace.h"

namespace lca {

namespace {

constexpr int kMostThreads = 1024;

int threads_checked(int threads) {
  if (threads < 0 || threads > kMostThreads) {
    fail_input("threads is {}; it takes 1 to {}, or 0 for one per core", threads, kMostThreads);
  }
  return threads == 0 ? std::min(cpus_available(), kMostThreads) : threads;
}

}  // namespace

struct Context::State {
  explicit State(int threads) : pool(threads) {}
  ThreadPool pool;
  Workspace workspace;
};

Context::Context(int threads) : state_(std::make_unique<State>(threads_checked(threads))) {}
Context::~Context() = default;

int Context::threads() const { return state_->pool.size(); }
std::size_t Context::workspace_bytes() const { return state_->workspace.bytes(); }
ThreadPool& Context::pool() { return state_->pool; }
Workspace& Context::workspace() { return state_->workspace; }

}  // namespace lca
