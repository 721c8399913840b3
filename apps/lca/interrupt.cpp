#include "interrupt.h"

#include "core/file.h"

#include <lca/error.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <utility>

namespace lca::cli {
namespace {

std::atomic<int> shields{0};
std::atomic<int> watches{0};
std::atomic<int> pending{0};
std::atomic<bool> line_open{false};
std::atomic<const char*> unlinked{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

/// A single call into a kernel may take a minute, and nothing outside a shield needs cleaning up:
/// exiting right here is safe, and what the user expects.
void handle(int signal) {
  const bool first = pending.exchange(signal) == 0;
  if (shields > 0 || (watches > 0 && first)) return;
  if (line_open) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, "\n", 1);
  }
  if (const char* path = unlinked) ::unlink(path);
  ::_exit(128 + signal);
}

void handle_with(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void interrupt_install() {
  handle_with(SIGINT, handle);
  handle_with(SIGTERM, handle);
  handle_with(SIGPIPE, SIG_IGN);
}

void interrupt_check() {
  if (interrupt_pending()) throw Error(ErrorKind::cancelled, "interrupted");
}

bool interrupt_pending() { return pending != 0; }

void interrupt_clear() { pending = 0; }

int interrupt_exit_code() { return 128 + (pending != 0 ? pending.load() : SIGINT); }

void interrupt_line_open(bool open) { line_open = open; }

InterruptUnlink::InterruptUnlink(std::string path) : path_(std::move(path)) {
  unlinked = path_.c_str();
}
InterruptUnlink::~InterruptUnlink() { unlinked = nullptr; }

InterruptShield::InterruptShield() { ++shields; }
InterruptShield::~InterruptShield() { --shields; }

void writable_check(const std::string& path) {
  {
    const InterruptShield shield;
    const FileWriter probe(path);
  }
  interrupt_check();
}

InterruptWatch::InterruptWatch() { ++watches; }
InterruptWatch::~InterruptWatch() { --watches; }

InterruptStop::InterruptStop() {
  // Requesting a stop takes locks, which a signal handler must not do: hence a thread that polls.
  const auto watch = [source = source_](const std::stop_token& ended) mutable {
    constexpr std::chrono::milliseconds kPause(10);
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!ended.stop_requested()) {
      if (interrupt_pending()) source.request_stop();
      wake.wait_for(lock, ended, kPause, [] { return false; });
    }
  };
  try {
    watcher_ = std::jthread(watch);
  } catch (const std::system_error&) {
    // Without a thread a signal is noticed between chunks and tokens.
  }
}

}  // namespace lca::cli
