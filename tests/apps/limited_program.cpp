#include "apps/limited_program.h"

#include "formats/byte_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace lca::test {

Finished program_run_limited(int resource, std::uint64_t limit,
                             const std::vector<std::string>& arguments) {
  const ScratchFolder folder;  // output goes to files: no pipe has to be drained
  const std::string out = folder / "out";
  const std::string err = folder / "err";
  std::vector<std::string> words = {LCA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    const rlimit both{limit, limit};
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error, as on a full disk
    if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &both) == 0) {
      ::execv(LCA_PROGRAM, argv.data());
    }
    ::_exit(126);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  Finished finished;
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  finished.out = read_file(out);
  finished.err = read_file(err);
  return finished;
}

}  // namespace lca::test
