/// `lca logits`: writes the logits after each of the given tokens to a file.

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "formats/safetensors.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace lca::cli {
namespace {

constexpr const char* kLogitsExamples =
    "FILE gets the tensor logits [n, vocabulary] in float32: row i is the prediction after token "
    "i.\n"
    "No tokenizer is needed. FILE appears when it is complete.\n"
    "\n"
    "Examples:\n"
    "  lca logits smollm2 --tokens 1,2,3 --out logits.safetensors\n"
    "  lca logits path/to/folder --tokens-file ids.txt --out logits.safetensors --method dense\n"
    "  lca logits smollm2 --tokens 504,2365,282 --out logits.safetensors --window 64 --group 8";

struct LogitsFlags {
  ModelFlags model;
  TextFlag tokens, tokens_file, out;
};

/// Ids between commas or white space.
std::vector<std::int32_t> ids_parse(std::string_view flag, std::string_view text,
                                    std::int64_t vocabulary) {
  const auto separates = [](char c) {
    return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
  };
  std::vector<std::int32_t> ids;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    if (separates(*at)) {
      ++at;
      continue;
    }
    const char* end = std::find_if(at, text.data() + text.size(), separates);
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || stop != end || id < 0 || id >= vocabulary) {
      fail_input("{}: \"{}\" is not a token of this model; ids go from 0 to {}", flag,
                 text_printable({at, end}), vocabulary - 1);
    }
    ids.push_back(id);
    at = end;
  }
  if (ids.empty()) fail_input("{} holds no token; it takes ids such as 1,2,3", flag);
  return ids;
}

std::vector<std::int32_t> ids_of(const LogitsFlags& flags, std::int64_t vocabulary) {
  if (flags.tokens.given()) return ids_parse("--tokens", flags.tokens.text, vocabulary);
  return ids_parse("--tokens-file", text_read("--tokens-file", flags.tokens_file.text), vocabulary);
}

void run(const LogitsFlags& flags) {
  flags.model.check();
  if (flags.tokens.given() == flags.tokens_file.given()) {
    fail_input("give the ids either with --tokens 1,2,3 or with --tokens-file FILE");
  }
  if (!flags.out.given()) fail_input("--out is missing; it takes the file to write");
  writable_check(flags.out.text);
  const std::shared_ptr<const Model> model = flags.model.load();
  const std::int64_t vocabulary = model->info().vocabulary;
  const std::vector<std::int32_t> ids = ids_of(flags, vocabulary);
  const auto count = static_cast<std::int64_t>(ids.size());
  const SessionOptions options = flags.model.session_options(*model);
  Context context(flags.model.threads());
  session_require(*model, options, count, context.threads(), fmt::format("{} tokens", count));
  Session session(model, context, options);

  const InterruptWatch interrupts;
  FileWriter writer(flags.out.text);
  SafetensorsStream stream(writer, "logits", TensorType::f32, {count, vocabulary});
  prefill_shown(session, ids, "reading", [&](std::int64_t, std::int64_t rows, const float* values) {
    const auto size = static_cast<std::size_t>(rows * vocabulary);
    stream.append(std::as_bytes(std::span(values, size)));
  });
  interrupt_check();
  stream.finish();
}

}  // namespace

Command logits_command(CLI::App& parent) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* app = parent.add_subcommand("logits", "Write a model's logits to a file");
  app->footer(kLogitsExamples);
  flags->tokens.add(*app, "--tokens", "ID,ID,...", "the prompt, as token ids");
  flags->tokens_file.add(*app, "--tokens-file", "FILE",
                         "the same from a file, between commas or spaces; - reads standard input");
  flags->out.add(*app, "--out", "FILE", "safetensors file to write (required)");
  flags->model.add(*app, "f32");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
