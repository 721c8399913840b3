#include <lca/context.h>

#include <algorithm>

#include "core/cgroups.h"
#include "core/context_state.h"
#include "core/cpu_level.h"
#include "core/error.h"

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

Context::Context(int threads) : state_(std::make_unique<State>(threads_checked(threads))) {
  cpu_level();  // a wrong LCA_CPU is an error here, not in the middle of a kernel
}
Context::~Context() = default;

int Context::threads() const { return state_->pool.size(); }

ContextMemory Context::memory() const {
  return {state_->attachment ? state_->attachment->bytes() : 0, state_->workspace.bytes()};
}

void Context::trim() {
  const ContextUse use(*this);
  state_->attachment.reset();
  state_->workspace = {};
}

ContextUse::ContextUse(Context& context) : state_(context.state()) {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id nobody;
  if (!state_.user.compare_exchange_strong(nobody, self) && nobody != self) {
    fail_busy("this context is in use by another thread; give each thread a context of its own");
  }
  ++state_.depth;
}

ContextUse::~ContextUse() {
  if (--state_.depth == 0) state_.user.store(std::thread::id());
}

}  // namespace lca
