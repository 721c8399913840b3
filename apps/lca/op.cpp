/// `lca op attention`: one attention layer on tensors from a file.

#include "arguments.h"
#include "attention/layout.h"
#include "attention/reference/reference.h"
#include "attention/settings_kind.h"
#include "command.h"
#include "core/bf16.h"
#include "core/error.h"
#include "formats/op_file.h"
#include "interrupt.h"
#include "layer_runner.h"
#include "terminal.h"
#include "where_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace lca::cli {
namespace {

constexpr const char* kOpExamples =
    "IN holds q_nope, q_rope, c, k_rope, w_uk, w_uv (MLA) or q, k, v (GQA), and its settings as "
    "JSON\n"
    "under the metadata key \"lca\"; flags override them. OUT gets out, lse and the "
    "representatives.\n"
    "\n"
    "Examples:\n"
    "  lca op attention in.safetensors out.safetensors\n"
    "  lca op attention in.safetensors truth.safetensors --backend reference\n"
    "  lca op attention in.safetensors out.safetensors --preset training-free --group 8 --threads "
    "2\n"
    "  lca op attention in.safetensors out.safetensors --backend cuda --groups fp8";

struct OpFlags {
  CommonFlags common;
  KnobFlags knobs;
  TextFlag prefill;
  LayerWhereFlags where;
  std::string in, out;
};

/// One sequence: a batch entry, or one of the documents packed into the only entry.
struct Sequence {
  std::int64_t entry = 0;
  Range tokens;             // positions in the entry
  std::int64_t groups = 0;  // index of its first representative in the entry
};

std::vector<Sequence> sequences(const OpInput& input) {
  std::vector<Sequence> list;
  if (input.documents.empty()) {
    for (std::int64_t b = 0; b < input.batch; ++b) list.push_back({b, {0, input.length}, 0});
    return list;
  }
  const Layout layout(input.spec.settings);
  std::int64_t groups = 0;
  for (std::size_t d = 0; d + 1 < input.documents.size(); ++d) {
    const Range tokens{input.documents[d], input.documents[d + 1]};
    list.push_back({0, tokens, groups});
    groups += layout.groups(tokens.size());
  }
  return list;
}

ConstTensor slice(const ConstTensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.empty() ? tensor : tensor.slice(first, count);
}

Queries queries_of(const OpInput& input, const Sequence& sequence, Range part) {
  const Queries all = input.queries(sequence.entry);
  const std::int64_t first = sequence.tokens.begin + part.begin;
  return {slice(all.nope, first, part.size()), slice(all.rope, first, part.size())};
}

Entries entries_of(const OpInput& input, const Sequence& sequence, Range part) {
  const Entries all = input.entries(sequence.entry);
  const std::int64_t first = sequence.tokens.begin + part.begin;
  return {slice(all.semantic, first, part.size()), slice(all.positional, first, part.size())};
}

/// Where the results of a sequence are written.
struct Place {
  float *out, *lse, *semantic, *positional, *bias;

  Place(OpOutput& output, const Sequence& sequence, std::int64_t token = 0) {
    const AttentionShape& shape = output.shape;
    const std::int64_t row = sequence.entry * output.length + sequence.tokens.begin + token;
    const std::int64_t group = (sequence.entry * output.groups + sequence.groups) * shape.kv_heads;
    out = output.out.data() + row * shape.heads * shape.d_value;
    lse = output.lse.data() + row * shape.heads;
    semantic = output.rep_semantic.data() + group * shape.d_semantic();
    positional = output.rep_positional.data() + group * shape.d_positional();
    bias = output.rep_bias.data() + group;
  }
};

void run_reference(const OpInput& input, OpOutput& output, Progress& progress) {
  const auto narrow = [](const std::vector<double>& from, float* to) {
    std::ranges::transform(from, to, [](double value) { return static_cast<float>(value); });
  };
  const std::int64_t chunks =
      std::accumulate(input.prefill.begin(), input.prefill.end(), std::int64_t{0});
  for (const Sequence& sequence : sequences(input)) {
    const Range all{0, sequence.tokens.size()};
    progress.step("reference", static_cast<double>(all.size()));
    const reference::Result result = reference::attention(
        input.spec, input.weights(), queries_of(input, sequence, all),
        entries_of(input, sequence, all), input.prefill.empty() ? all.size() : chunks);
    const Place place(output, sequence);
    narrow(result.out, place.out);
    narrow(result.lse, place.lse);
    narrow(result.rep_semantic, place.semantic);
    narrow(result.rep_positional, place.positional);
    narrow(result.rep_bias, place.bias);
  }
}

/// Feeds the layer: documents in one call, or the prompt's chunks and then token by token.
class LayerFeed {
 public:
  LayerFeed(const OpInput& input, OpOutput& output, Progress& progress, LayerRunner& runner)
      : input_(input),
        output_(output),
        progress_(progress),
        runner_(runner),
        sequences_(sequences(input)) {}

  void run() {
    if (!input_.documents.empty()) {
      progress_.step("documents", static_cast<double>(input_.length));
      std::vector<cuda::HostRun> runs;
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        runs.push_back(run_of(i, {0, sequences_[i].tokens.size()}));
      }
      runner_.prefill(runs);
    } else {
      for (std::int64_t t = prefill(); t < input_.length; ++t) {
        step({t, t + 1}, "decode");
        runner_.decode(runs_of({t, t + 1}));
      }
    }
    for (std::size_t i = 0; i < sequences_.size(); ++i) copy_representatives(i);
  }

 private:
  cuda::HostRun run_of(std::size_t i, Range part) {
    const Sequence& sequence = sequences_[i];
    const Place place(output_, sequence, part.begin);
    return {static_cast<int>(i), queries_of(input_, sequence, part),
            entries_of(input_, sequence, part), place.out, place.lse};
  }

  std::vector<cuda::HostRun> runs_of(Range part) {
    std::vector<cuda::HostRun> runs;
    for (std::size_t i = 0; i < sequences_.size(); ++i) runs.push_back(run_of(i, part));
    return runs;
  }

  void step(Range part, const char* label) {
    interrupt_check();
    progress_.step(label, static_cast<double>(part.size() * input_.batch));
  }

  /// Feeds the prompt's chunks, or all of it at once where the summary waits for its end; returns
  /// its length.
  std::int64_t prefill() {
    const Settings& settings = input_.spec.settings;
    std::vector<std::int64_t> chunks = input_.prefill;
    if (summary_waits(settings)) {
      chunks = {std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0})};
    }
    std::int64_t position = 0;
    for (const std::int64_t chunk : chunks) {
      if (chunk == 0) continue;
      const Range part{position, position + chunk};
      step(part, "prefill");
      runner_.prefill(runs_of(part));
      position = part.end;
    }
    return position;
  }

  void copy_representatives(std::size_t i) {
    const Cache cache = runner_.cache(static_cast<int>(i));
    const Place place(output_, sequences_[i]);
    const AttentionShape& shape = input_.spec.shape;
    const std::int64_t kv_heads = shape.kv_heads;
    for (std::int64_t j = 0; j < cache.groups(); ++j) {
      const Entries row = cache.representative(j);
      widen(row.semantic, 1, place.semantic + j * kv_heads * shape.d_semantic());
      widen(row.positional, 1, place.positional + j * kv_heads * shape.d_positional());
      for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
        place.bias[j * kv_heads + kv] = cache.bias(j, kv);
      }
    }
  }

  static void widen(const ConstTensor& from, std::int64_t rows, float* to) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < from.shape[1]; ++j) {
        const void* row = from.row(i, j);
        for (std::int64_t k = 0; k < from.shape[2]; ++k) {
          *to++ = from.dtype == DType::f32 ? static_cast<const float*>(row)[k]
                                           : bf16_to_f32(static_cast<const bf16_bits*>(row)[k]);
        }
      }
    }
  }

  const OpInput& input_;
  OpOutput& output_;
  Progress& progress_;
  LayerRunner& runner_;
  std::vector<Sequence> sequences_;
};

std::unique_ptr<LayerRunner> runner_for(Backend backend, const OpInput& input, int threads,
                                        const cuda::LayerOptions& options) {
  std::int64_t longest = 1;
  const std::vector<Sequence> all = sequences(input);
  for (const Sequence& sequence : all) longest = std::max(longest, sequence.tokens.size());
  const auto count = static_cast<int>(all.size());
  return backend == Backend::cuda
             ? layer_runner_cuda(input.spec, input.weights(), count, longest, options)
             : layer_runner_cpu(input.spec, input.weights(), count, threads);
}

std::vector<SettingOverride> overrides_of(const OpFlags& flags) {
  std::vector<SettingOverride> overrides = flags.knobs.overrides();
  if (flags.prefill.given()) {
    const std::vector<std::int64_t> chunks =
        counts_parse("--prefill", flags.prefill.text, 1, kLongestLength);
    overrides.push_back({"prefill", fmt::format("{}", fmt::join(chunks, ","))});
  }
  return overrides;
}

void run(const OpFlags& flags) {
  const auto [backend, cuda_options] = flags.where.read();
  if (flags.in.empty()) fail_input("IN is empty; it takes the path of a safetensors file");
  const int threads = flags.common.threads();
  const std::vector<SettingOverride> overrides = overrides_of(flags);
  const OpInput input = OpInput::read(flags.in, overrides);
  writable_check(flags.out);

  OpOutput output(input);
  {
    Progress progress(static_cast<double>(input.batch * input.length));
    if (backend == Backend::reference) {
      run_reference(input, output, progress);
    } else {
      LayerFeed(input, output, progress, *runner_for(backend, input, threads, cuda_options)).run();
    }
  }
  const InterruptShield shield;
  interrupt_check();
  FileWriter writer(flags.out);
  op_output_write(writer, output);
}

}  // namespace

Command op_attention_command(CLI::App& parent) {
  auto flags = std::make_shared<OpFlags>();
  CLI::App* app = parent.add_subcommand("attention", "Prefill and decode of one attention layer");
  app->footer(kOpExamples);
  app->add_option("IN", flags->in, "safetensors file to read")->required()->type_name("FILE");
  app->add_option("OUT", flags->out, "safetensors file to write")->required()->type_name("FILE");
  flags->where.add(*app, LayerWhereFlags::Reference::yes);
  flags->prefill.add(*app, "--prefill", "N,N,...",
                     "chunk sizes of the prompt; the rest is decoded");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::yes);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
