/// `lca tokenize`: the token ids of a text.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"

#include <lca/tokenizer.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

namespace lca::cli {
namespace {

constexpr const char* kTokenizeExamples =
    "Examples:\n"
    "  lca tokenize smollm2 --text \"Hello, world\"\n"
    "  lca tokenize smollm2 --file report.txt --json\n"
    "  lca tokenize smollm2 --text \"<|im_start|>\" --no-parse-special\n"
    "  lca tokenize tokenizer.json --text Hello\n"
    "\n"
    "MODEL may also be a tokenizer.json, or a GGUF file with only a vocabulary.";

struct TokenizeFlags {
  ModelArgument model;
  CommonFlags common;
  TextFlag text, file;
  bool special = false;
  bool no_parse = false;
  bool json = false;
};

void run(const TokenizeFlags& flags) {
  flags.common.threads();
  if (flags.text.given() == flags.file.given()) {
    fail_input(
        "give the text either with --text TEXT or with --file FILE (- reads standard "
        "input)");
  }
  const Tokenizer tokenizer = Tokenizer::open(flags.model.path());
  tokenizer_warn(tokenizer);
  const std::string text =
      flags.text.given() ? flags.text.text : text_read("--file", flags.file.text);
  const std::vector<std::int32_t> ids =
      tokenizer.encode(text, {.add_special = flags.special, .parse_special = !flags.no_parse});
  if (flags.json) {
    print_json({{"ids", ids}});
    return;
  }
  std::string lines;
  for (const std::int32_t id : ids) {
    lines += fmt::format("{:>8}  {}\n", id, text_printable(tokenizer.token(id)));
  }
  print(lines + fmt::format("{} tokens\n", ids.size()));
}

}  // namespace

Command tokenize_command(CLI::App& parent) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* app = parent.add_subcommand("tokenize", "The token ids of a text");
  app->footer(kTokenizeExamples);
  flags->model.add(*app);
  flags->text.add(*app, "--text", "TEXT", "the text");
  flags->file.add(*app, "--file", "FILE", "the text of a file; - reads standard input");
  app->add_flag("--special", flags->special, "add the model's begin and end tokens");
  app->add_flag("--no-parse-special", flags->no_parse,
                "encode the text of special tokens as ordinary text");
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
