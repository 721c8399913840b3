/// `lca demo`: one question about a long document, answered with LCA and with dense attention.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "machine.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"
#include "texts_flag.h"
#include "trained_length.h"

#include <lca/chat.h>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>

namespace lca::cli {
namespace {

constexpr const char* kDemoExplanation =
    "The model reads the document twice, with LCA and with dense attention, and answers the\n"
    "question each time. An adapter is for LCA: dense attention does without it. make demo "
    "fetches\n"
    "the model and provides a document.\n"
    "\n"
    "Examples:\n"
    "  lca demo --document report.txt\n"
    "  lca demo --document report.txt --question \"What does it recommend?\"\n"
    "  lca demo --document report.txt --document annexes.txt --question \"Who wrote it?\"\n"
    "  lca demo attention --max-length 8K";

constexpr std::string_view kHonestly =
    "This model was not fine-tuned for LCA. Without fine-tuning, LCA keeps the gist of what is\n"
    "outside its window but not exact details: names, numbers and quotations from there may be\n"
    "wrong or missing.\n"
    "An adapter trained for LCA (--adapter) would change that.\n";

struct DemoFlags {
  ModelFlags model;
  ReplyFlags reply;
  TextsFlag documents;
  TextFlag question;
};

struct Answer {
  std::string name;
  Reply reply;
};

SessionOptions with_method(SessionOptions options, MethodKind kind) {
  for (Settings& settings : options.settings) settings.method = kind;
  return options;
}

/// Reads and answers with one method; the answer is streamed.
Answer answer(const std::shared_ptr<const Model>& model, Context& context,
              const SessionOptions& options, std::span<const std::int32_t> prompt,
              const GenerateOptions& generate, const std::string& name) {
  print(fmt::format("{} answers:\n", name));
  Session session(model, context, options);
  TextPrinter printer;
  Answer made{name, reply_make(session, prompt, generate, name + " reads", std::ref(printer))};
  printer.end_line();
  if (made.reply.cancelled()) print_note(reply_summary(made.reply));
  interrupt_check();
  print("\n");
  return made;
}

std::string table_text(const Reply& lca, const Reply& dense) {
  Table table({"", "LCA", "dense", "LCA is"});
  const auto add = [&](const char* label, const std::string& a, const std::string& b, double factor,
                       const char* word) {
    // A reply that ended at once has no decoding speed.
    const bool known = std::isfinite(factor) && factor > 0;
    table.add({label, a, b, known ? fmt::format("{}× {}", number_text(factor), word) : ""});
  };
  const auto lca_bytes = static_cast<double>(lca.cache_bytes);
  const auto dense_bytes = static_cast<double>(dense.cache_bytes);
  add("first token after", seconds_text(lca.first_seconds), seconds_text(dense.first_seconds),
      dense.first_seconds / lca.first_seconds, "as fast");
  add("then, tokens/s", number_text(lca.decode_rate()), number_text(dense.decode_rate()),
      lca.decode_rate() / dense.decode_rate(), "as fast");
  add("cache", bytes_text(lca_bytes, dense_bytes), bytes_text(dense_bytes), dense_bytes / lca_bytes,
      "smaller");
  return table.text();
}

void print_heading(const ModelInfo& info, const DemoFlags& flags,
                   const std::vector<TextsFlag::Text>& documents, std::int64_t prompt_tokens,
                   int threads) {
  std::string names;
  for (const TextsFlag::Text& document : documents) {
    names += (names.empty() ? "" : ", ") + path_printable(document.path);
  }
  print(fmt::format(
      "{}: {} million parameters, {} layers, {} {} ({})\n{}: {} tokens with the question\n"
      "Question: {}\n\n",
      path_printable(std::filesystem::path(info.path).filename().native()),
      number_text(static_cast<double>(info.parameters) / 1e6), info.layers, threads,
      threads == 1 ? "thread" : "threads", machine_name(), names, prompt_tokens,
      text_printable(flags.question.text, 500)));
}

void run(const DemoFlags& flags) {
  flags.model.check();
  flags.reply.read({});
  if (!flags.documents.given()) {
    fail_input("--document is missing; it takes a text file (make demo provides one)");
  }
  const std::vector<TextsFlag::Text> documents = flags.documents.read();
  std::string read;
  for (const TextsFlag::Text& document : documents) read += document.text + "\n\n";
  const std::array message = {ChatMessage{ChatMessage::Role::user, read + flags.question.text}};
  const std::shared_ptr<const Model> model = flags.model.load();
  const bool adapted = !model->info().adapter.empty();
  const std::shared_ptr<const Model> base = adapted ? flags.model.load_base() : model;
  const ChatTemplate format = chat_template(*model, TextFlag{});
  const GenerateOptions generate = flags.reply.read(reply_end_tokens(*model, &format));
  const std::vector<std::int32_t> prompt = format.prompt(message);
  check_ids(prompt, model->info());
  Context context(flags.model.threads());
  const SessionOptions lca = with_method(flags.model.session_options(*model), MethodKind::lca);
  const SessionOptions dense = with_method(lca, MethodKind::dense);
  const auto count = static_cast<std::int64_t>(prompt.size());
  session_require(*model, dense, count + generate.max_tokens, context.threads(),
                  fmt::format("{} tokens", count));
  ContextWarning(model->info(), lca.settings, "LCA's answer may make no sense").check(count);
  ContextWarning(model->info(), dense.settings, "dense attention's answer may make no sense")
      .check(count);

  print_heading(model->info(), flags, documents, count, context.threads());
  const Answer a = answer(model, context, lca, prompt, generate, "LCA");
  const Answer b = answer(base, context, dense, prompt, generate,
                          adapted ? "Dense, without the adapter," : "Dense");
  print(table_text(a.reply, b.reply) + "\n");
  print(fmt::format("LCA here: {}\n", settings_line(lca.settings)));
  const bool trained = model->info().trained;
  if (!trained) print(fmt::format("\n{}", kHonestly));
}

}  // namespace

Command demo_command(CLI::App& parent) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App* app =
      parent.add_subcommand("demo", "LCA compared with dense attention on a long document");
  app->footer(kDemoExplanation);
  flags->documents.add(
      *app, "--document", TextsFlag::Values::one,
      "a text to read, or a folder of them; may be repeated; - reads standard input");
  flags->question.add(*app, "--question", "TEXT", "what to ask about it",
                      "What is this text about? Answer in three sentences.");
  flags->model.add_for_comparison(*app, "smollm2");
  flags->reply.add(*app, "120");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
