#pragma once
/// The subcommands: each declares its flags on a parser, and what to run once they are parsed.

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
Command op_backward_command(CLI::App& parent);
Command bench_attention_command(CLI::App& parent);
Command bench_model_command(CLI::App& parent);
Command bench_experts_command(CLI::App& parent);
Command bench_product_command(CLI::App& parent);
Command eval_everyday_command(CLI::App& parent);
Command eval_needle_command(CLI::App& parent);
Command eval_perplexity_command(CLI::App& parent);
Command eval_ruler_command(CLI::App& parent);
Command eval_compare_command(CLI::App& parent);
Command run_command(CLI::App& parent);
Command chat_command(CLI::App& parent);
Command serve_command(CLI::App& parent);
Command inspect_command(CLI::App& parent);
Command tokenize_command(CLI::App& parent);
Command logits_command(CLI::App& parent);
Command plan_command(CLI::App& parent);
Command session_inspect_command(CLI::App& parent);
Command session_fork_command(CLI::App& parent);
/// `lca demo` itself; its subcommand is the next.
Command demo_command(CLI::App& parent);
Command demo_attention_command(CLI::App& parent);

}  // namespace lca::cli
