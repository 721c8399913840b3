/// The command line: reads the arguments, runs one command, and turns whatever happens into one
/// line and an exit code (2 bad input, 1 failure while running, 130 after Ctrl-C).

#include "arguments.h"
#include "command.h"
#include "core/text.h"
#include "interrupt.h"
#include "terminal.h"

#include <lca/error.h>
#include <lca/version.h>

#include <fmt/format.h>

#include <unistd.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace lca::cli {
namespace {

constexpr int kFailure = 1;
constexpr int kBadInput = 2;

int fail(int code, std::string_view message) {
  const std::string line = fmt::format("lca: error: {}\n", text_printable(message, 2000));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  return code;
}

/// The same without allocating: there may be no memory.
int fail_memory() {
  constexpr std::string_view kLine =
      "lca: error: not enough memory: the system has no more; try a shorter context or a smaller "
      "model, free some memory, or raise the limit (ulimit -v)\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  return kFailure;
}

/// Whether the error means that the system is out of threads or memory.
bool is_shortage(const std::error_code& code) {
  return code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again;
}

struct Program {
  CLI::App app{
      "Language models with long contexts on a condensed KV cache (Latent-Condensed Attention).",
      "lca"};
  CommonFlags common;
  CommonFlags op_common;
  CommonFlags bench_common;
  CommonFlags eval_common;
  CommonFlags session_common;
  std::vector<Command> commands;

  Program() {
    const auto formatter = std::make_shared<CLI::Formatter>();
    formatter->label("SUBCOMMAND", "COMMAND");
    formatter->column_width(34);
    app.formatter(formatter);
    app.set_help_flag("--help", "");
    common.add(app);
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  lca run smollm2 -p \"Why is the sky blue?\"             ask a model\n"
        "  lca run smollm2 --file report.txt -p \"Sum it up.\"     the same about a document\n"
        "  lca chat smollm2                                      talk with it\n"
        "  lca serve smollm2                                     over HTTP, with a page to chat\n"
        "  lca plan smollm2 --length 128K                        how much memory a context takes\n"
        "Help on a command: lca COMMAND --help");

    commands.push_back(run_command(app));
    commands.push_back(chat_command(app));
    commands.push_back(serve_command(app));
    commands.push_back(demo_command(app));
    commands.push_back(inspect_command(app));
    commands.push_back(plan_command(app));
    commands.push_back(tokenize_command(app));
    commands.push_back(logits_command(app));

    CLI::App* session = app.add_subcommand("session", "Inspect and fork saved sessions");
    session_common.add(*session);
    session->require_subcommand(1);
    session->footer(
        "Examples:\n"
        "  lca run smollm2 --session talk.session -p \"Who was Ada Lovelace?\"   starts one\n"
        "  lca run smollm2 --session talk.session -p \"And her father?\"         continues it\n"
        "  lca session inspect talk.session\n"
        "  lca session fork talk.session other.session --length 2000 --model smollm2\n"
        "More: lca session inspect --help, lca session fork --help");
    commands.push_back(session_inspect_command(*session));
    commands.push_back(session_fork_command(*session));

    CLI::App* eval = app.add_subcommand("eval", "Measure how good a model is");
    eval_common.add(*eval);
    eval->require_subcommand(1);
    eval->footer(
        "Examples:\n"
        "  lca eval perplexity smollm2 --file book.txt --length 8K\n"
        "  lca eval perplexity smollm2 --file book.txt --length 8K --method dense --json\n"
        "  lca eval needle smollm2 --text essays.txt --lengths 4K,8K --plot needle.svg\n"
        "  lca eval everyday smollm2 --adapter path/to/adapter\n"
        "  lca eval ruler smollm2 --lengths 4K --samples 50 --results lca.jsonl\n"
        "  lca eval compare dense.jsonl lca.jsonl\n"
        "More: lca eval COMMAND --help");
    commands.push_back(eval_everyday_command(*eval));
    commands.push_back(eval_needle_command(*eval));
    commands.push_back(eval_perplexity_command(*eval));
    commands.push_back(eval_ruler_command(*eval));
    commands.push_back(eval_compare_command(*eval));

    CLI::App* op = app.add_subcommand("op", "Run one operator on tensors from a file");
    op_common.add(*op);
    op->require_subcommand(1);
    op->footer(
        "Examples:\n"
        "  lca op attention in.safetensors out.safetensors\n"
        "  lca op attention in.safetensors out.safetensors --backend reference\n"
        "  lca op backward in.safetensors gradients.safetensors\n"
        "More: lca op attention --help, lca op backward --help");
    commands.push_back(op_attention_command(*op));
    commands.push_back(op_backward_command(*op));

    CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory on this machine");
    bench_common.add(*bench);
    bench->require_subcommand(1);
    bench->footer(
        "Examples:\n"
        "  lca bench attention --shape deepseek-v2-lite --lengths 1K,4K,16K\n"
        "  lca bench model smollm2 --prompt 2K,8K --depths 0,8K --json\n"
        "  LCA_CPU=avx2 lca bench product --types q4_0,q4_k   # as on a lesser processor\n"
        "More: lca bench attention --help, lca bench model --help");
    commands.push_back(bench_attention_command(*bench));
    commands.push_back(bench_model_command(*bench));
    commands.push_back(bench_experts_command(*bench));
    commands.push_back(bench_product_command(*bench));

    CLI::App* demo = app.get_subcommand("demo");
    commands.push_back(demo_attention_command(*demo));
    for (CLI::App* parent : {&app, session, eval, op, bench, demo}) {
      for (CLI::App* sub : parent->get_subcommands([](CLI::App*) { return true; })) {
        sub->group("Commands");
      }
    }
  }
};

/// The command that was parsed, as it would be typed.
std::string command_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) path += " " + command_path(*sub);
  return path;
}

std::string subcommand_names(const CLI::App& app) {
  const CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  std::string names;
  for (const CLI::App* sub : deepest->get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + sub->get_name();
  }
  return names;
}

/// The parser's error in our words, with what to do.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::string names = subcommand_names(app);
  const std::vector<std::string> extras = app.remaining(true);
  std::string what = error.what();
  if (!extras.empty()) {
    const std::string first = text_printable(extras.front());
    if (first.starts_with("-")) {
      what = fmt::format("unknown flag {}", first);
    } else if (!names.empty()) {
      what = fmt::format("unknown command \"{}\"; the commands are {}", first, names);
    } else {
      what = fmt::format("unexpected argument \"{}\"", first);
    }
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !names.empty()) {
    what = fmt::format("a command is missing; the commands are {}", names);
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    what = fmt::format("{} needs a value", what.substr(0, what.find(':')));
  }
  return fmt::format("{}; see {} --help", what, command_path(app));
}

int run(int argc, char** argv) {
  Program program;
  CLI::App& app = program.app;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& call) {
    print(fmt::format("{}\n", call.what()));
    return 0;
  } catch (const CLI::Success&) {
    print(app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, parse_message(app, error));
  }
  for (const Command& command : program.commands) {
    const bool deepest = command.app->get_subcommands().empty();
    if (command.app->parsed() && deepest) command.run();
  }
  interrupt_check();
  return 0;
}

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const OutputClosed&) {
    return 0;  // the reader closed the pipe
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) return interrupt_exit_code();
    return fail(error_exit_code(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail_memory();
  } catch (const std::system_error& error) {
    if (is_shortage(error.code())) return fail_memory();
    return fail(kFailure, fmt::format("unexpected: {}", error.what()));
  } catch (const std::exception& error) {
    return fail(kFailure, fmt::format("unexpected: {}", error.what()));
  } catch (...) {
    return fail(kFailure, "unexpected failure");
  }
}

}  // namespace
}  // namespace lca::cli

int main(int argc, char** argv) {
#if defined(__GLIBC__)
  // One heap: each further thread would reserve 64 MiB of addresses when it first allocates, just
  // where a limit has left as much as oneDNN needs for its code.
  ::mallopt(M_ARENA_MAX, 1);
#endif
  lca::cli::interrupt_install();
  try {
    return lca::cli::run_guarded(argc, argv);
  } catch (...) {
    return lca::cli::fail_memory();  // even the message could not be allocated
  }
}
