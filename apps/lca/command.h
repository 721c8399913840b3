#pragma once
/// The subcommands: each declares its flags on a parser and says what to run once they are read.

#include <functional>

namespace CLI {
class App;
}

namespace lca::cli {

/// A subcommand that does work. `run` reads the flags' text, so it is called after parsing.
struct Command {
  CLI::App* app = nullptr;
  std::function<void()> run;
};

Command op_attention_command(CLI::App& parent);
Command bench_attention_command(CLI::App& parent);
Command plan_command(CLI::App& parent);
Command demo_command(CLI::App& parent);

}  // namespace lca::cli
