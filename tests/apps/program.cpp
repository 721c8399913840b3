#include "apps/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace lca::test {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    read = ends[0];
    write = ends[1];
  }
};

/// Signals that a process catches, as a bit mask; 0 if it has ended.
unsigned long caught_signals(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return std::stoul(line.substr(7), nullptr, 16);
  }
  return 0;
}

}  // namespace

bool Finished::failed_in_one_line(int expected) const {
  return code == expected && out.empty() && err.starts_with("lca: error: ") &&
         std::ranges::count(err, '\n') == 1 && err.back() == '\n';
}

Program::Program(const std::vector<std::string>& arguments, Output output,
                 const std::string& input) {
  std::vector<std::string> words = {LCA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const Pipe out, err;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
  if (output == Output::full_disk) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/full", O_WRONLY, 0);
  } else {
    ::posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  }
  ::posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  if (output == Output::closed_pipe) ::close(out.read);
  const int failed = ::posix_spawn(&pid_, LCA_PROGRAM, &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out.write);
  ::close(err.write);
  out_ = output == Output::closed_pipe ? -1 : out.read;
  err_ = err.read;
  if (failed != 0) throw std::runtime_error("cannot start " LCA_PROGRAM);
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    finish();
  }
}

bool Program::wait_for_handler() {
  for (int i = 0; i < 3000; ++i) {
    if ((caught_signals(pid_) >> (SIGINT - 1) & 1) != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool Program::wait_for_output() {
  char block[4096];
  const ssize_t count = ::read(out_, block, sizeof(block));
  if (count > 0) early_.append(block, static_cast<std::size_t>(count));
  return count > 0;
}

void Program::interrupt() { ::kill(pid_, SIGINT); }

Finished Program::finish() {
  Finished finished;
  finished.out = std::move(early_);
  std::array<pollfd, 2> ends = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  std::array<std::string*, 2> texts = {&finished.out, &finished.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    ::poll(ends.data(), ends.size(), -1);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char block[4096];
      const ssize_t count = ::read(ends[i].fd, block, sizeof(block));
      if (count > 0) {
        texts[i]->append(block, static_cast<std::size_t>(count));
      } else {
        ::close(ends[i].fd);
        ends[i].fd = -1;
      }
    }
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return finished;
}

}  // namespace lca::test
