/// `lca eval perplexity`: how well a model predicts a text.

#include "command.h"
#include "core/context_state.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"
#include "trained_length.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEvalExamples =
    "The first N tokens of the file are read as one prompt, without a begin token; each but the "
    "first\n"
    "is predicted from those before it. nll is the mean of −ln p in nats, perplexity its "
    "exponential,\n"
    "for all of them and for each range of positions.\n"
    "\n"
    "Examples:\n"
    "  lca eval perplexity smollm2 --file book.txt --length 8K\n"
    "  lca eval perplexity smollm2 --file book.txt --length 8K --method dense --json\n"
    "  lca eval perplexity smollm2 --file book.txt --length 64K --ranges 8K,16K,64K\n"
    "  lca eval perplexity path/to/folder --file - --length 4K --adapter path/to/adapter";

struct EvalFlags {
  ModelFlags model;
  TextFlag file, length, ranges;
  bool json = false;
};

/// Predictions of tokens `from` … `to` − 1.
struct Slice {
  std::int64_t from = 0, to = 0;
  double nll = 0;  // mean

  std::int64_t count() const { return to - from; }
};

Slice slice_of(const std::vector<double>& nll, std::int64_t from, std::int64_t to) {
  double sum = 0;
  for (std::int64_t t = from; t < to; ++t) sum += nll[static_cast<std::size_t>(t)];
  return {from, to, sum / static_cast<double>(to - from)};
}

/// One slice up to each of `ends`, as far as the text goes, and one for what lies beyond them.
std::vector<Slice> slices_of(const std::vector<double>& nll, std::vector<std::int64_t> ends) {
  const auto length = static_cast<std::int64_t>(nll.size());
  ends.push_back(length);
  std::vector<Slice> slices;
  std::int64_t from = 1;
  for (const std::int64_t end : ends) {
    const std::int64_t to = std::min(end, length);
    if (to > from) slices.push_back(slice_of(nll, from, to));
    from = std::max(from, to);
  }
  return slices;
}

/// Where ranges of positions end: ascending numbers.
std::vector<std::int64_t> ranges_parse(const TextFlag& flag) {
  std::vector<std::int64_t> ends = counts_parse("--ranges", flag.text, 2, kLongestLength);
  const auto wrong = std::ranges::adjacent_find(ends, std::greater_equal());
  if (wrong != ends.end()) {
    fail_input("--ranges takes ascending numbers; {} comes before {}", *wrong, *(wrong + 1));
  }
  return ends;
}

/// −ln p of each token; 0 for the first, which is not predicted.
std::vector<double> nll_measure(Session& session, Context& context,
                                const std::vector<std::int32_t>& ids) {
  const auto length = static_cast<std::int64_t>(ids.size());
  const std::int64_t vocabulary = session.model().info().vocabulary;
  std::vector<double> nll(ids.size(), 0.0);
  prefill_shown(
      session, ids, "reading", [&](std::int64_t first, std::int64_t count, const float* logits) {
        const std::int64_t rows = std::min(count, length - 1 - first);
        context.state().pool.run(rows, [&](std::int64_t row, int) {
          const auto target = static_cast<std::size_t>(first + row + 1);
          nll[target] =
              -double{logprobs_of({logits + row * vocabulary, static_cast<std::size_t>(vocabulary)},
                                  ids[target])
                          .logprob};
        });
      });
  return nll;
}

Json slice_json(const Slice& slice) {
  return {{"from", slice.from},
          {"to", slice.to},
          {"tokens", slice.count()},
          {"nll", slice.nll},
          {"perplexity", std::exp(slice.nll)}};
}

void print_report_json(const Slice& all, const std::vector<Slice>& slices, const Session& session,
                       double seconds, const std::vector<std::string>& warnings) {
  const ModelInfo& info = session.model().info();
  Json ranges = Json::array();
  for (const Slice& slice : slices) ranges.push_back(slice_json(slice));
  print_json({{"tokens", all.to},
              {"nll", all.nll},
              {"perplexity", std::exp(all.nll)},
              {"by_range", ranges},
              {"model", info.path},
              {"context", info.context},
              {"longest_in_range", longest_in_range_json(info.context, session.settings())},
              {"settings", settings_json(session.settings())},
              {"seconds", seconds},
              {"tokens_per_s", static_cast<double>(all.to) / seconds},
              {"cache_bytes", session.cache_bytes()},
              {"dense_cache_bytes", session.dense_bytes()},
              {"warnings", warnings}});
}

void print_report(const Slice& all, const std::vector<Slice>& slices, const Session& session,
                  double seconds) {
  Table table({"tokens", "predictions", "nll", "perplexity"});
  const auto add = [&](const std::string& label, const Slice& slice) {
    table.add({label, fmt::format("{}", slice.count()), fmt::format("{:.4f}", slice.nll),
               fmt::format("{:.3f}", std::exp(slice.nll))});
  };
  for (const Slice& slice : slices) {
    add(fmt::format("{} – {}", length_text(slice.from == 1 ? 0 : slice.from),
                    length_text(slice.to)),
        slice);
  }
  if (slices.size() > 1) add("all", all);
  print(fmt::format("{}\n{}\n\n{}", path_printable(session.model().info().path),
                    settings_line(session.settings()), table.text()));
  const auto cache = static_cast<double>(session.cache_bytes());
  const auto dense = static_cast<double>(session.dense_bytes());
  print_note(fmt::format("{} tokens in {} ({} tokens/s); cache {}, dense would need {}", all.to,
                         seconds_text(seconds), number_text(static_cast<double>(all.to) / seconds),
                         bytes_text(cache, dense), bytes_text(dense)));
}

std::vector<std::int32_t> ids_read(const EvalFlags& flags, const Model& model,
                                   std::int64_t length) {
  std::vector<std::int32_t> ids = model.tokenizer().encode(text_read("--file", flags.file.text));
  if (static_cast<std::int64_t>(ids.size()) < length) {
    fail_input("{}: holds {} tokens, fewer than --length {}", path_printable(flags.file.text),
               ids.size(), length);
  }
  ids.resize(static_cast<std::size_t>(length));
  return ids;
}

void run(const EvalFlags& flags) {
  flags.model.check();
  if (!flags.file.given())
    fail_input("--file is missing; it takes a text file, or - for standard input");
  if (!flags.length.given())
    fail_input("--length is missing; it takes the number of tokens to read");
  const std::int64_t length = count_parse("--length", flags.length.text, 2);
  const std::vector<std::int64_t> ends = ranges_parse(flags.ranges);
  const std::shared_ptr<const Model> model = flags.model.load();
  const std::vector<std::int32_t> ids = ids_read(flags, *model, length);
  check_ids(ids, model->info());
  const SessionOptions options = flags.model.session_options(*model);
  Context context(flags.model.threads());
  session_require(*model, options, length, context.threads(),
                  fmt::format("a text of {} tokens", length));
  ContextWarning warning(model->info(), options.settings, "its predictions may be far off");
  warning.check(length);
  Session session(model, context, options);

  const Stopwatch watch;
  const std::vector<double> nll = [&] {
    const InterruptWatch interrupts;
    return nll_measure(session, context, ids);
  }();
  const double seconds = watch.seconds();
  const Slice all = slice_of(nll, 1, length);
  if (!std::isfinite(all.nll)) {
    fail_input("{}: the model computes NaN or infinite logits: its weights are damaged",
               path_printable(model->info().path));
  }
  const std::vector<Slice> slices = slices_of(nll, ends);
  if (flags.json) {
    print_report_json(all, slices, session, seconds, warning.given());
  } else {
    print_report(all, slices, session, seconds);
  }
}

}  // namespace

Command eval_perplexity_command(CLI::App& parent) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* app = parent.add_subcommand("perplexity", "How well a model predicts a text");
  app->footer(kEvalExamples);
  flags->file.add(*app, "--file", "FILE", "the text; - reads standard input (required)");
  flags->length.add(*app, "--length", "N", "tokens of it to read (required)");
  flags->ranges.add(*app, "--ranges", "N,N,...", "where ranges of positions end",
                    "2K,4K,8K,16K,32K,64K,112K");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "f32");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
