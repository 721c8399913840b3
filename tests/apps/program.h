#pragma once
/// Runs the real program and collects its output.

#include <sys/types.h>

#include <string>
#include <vector>

namespace lca::test {

/// How a program ended.
struct Finished {
  int code = -1;         ///< exit code; −signal where a signal killed it
  std::string out, err;  ///< standard output and error

  /// Whether it printed exactly one line `lca: error: …` and exited with `expected`.
  bool failed_in_one_line(int expected) const;
};

/// A running `lca`, with standard output and error captured.
class Program {
 public:
  enum class Output { caught, closed_pipe, full_disk };

  /// `input` is the file that becomes its standard input.
  explicit Program(const std::vector<std::string>& arguments, Output output = Output::caught,
                   const std::string& input = "/dev/null");
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Waits until it has installed its handler of Ctrl-C; false if it ended before.
  bool wait_for_handler();
  /// Waits for the first standard output; false if it was closed before.
  bool wait_for_output();
  void interrupt();
  Finished finish();

 private:
  std::string early_;  // standard output that was read already
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
};

/// Runs it to the end.
inline Finished program_run(const std::vector<std::string>& arguments,
                            Program::Output output = Program::Output::caught) {
  return Program(arguments, output).finish();
}

/// The same with a file as its standard input.
inline Finished program_run_with(const std::string& input,
                                 const std::vector<std::string>& arguments) {
  return Program(arguments, Program::Output::caught, input).finish();
}

}  // namespace lca::test
