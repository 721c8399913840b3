/// `lca op backward`: the gradients of one attention layer on tensors from a file.

#include "arguments.h"
#include "attention/reference/backward.h"
#include "command.h"
#include "core/error.h"
#include "formats/op_file.h"
#include "interrupt.h"
#include "terminal.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace lca::cli {
namespace {

constexpr const char* kOpBackwardExamples =
    "IN is that of `lca op attention` with grad_out [B,n,H,d_v], the gradient of out; OUT gets "
    "the\n"
    "gradient d_NAME of every input NAME. Computed by the reference, in double precision.\n"
    "\n"
    "Examples:\n"
    "  lca op backward in.safetensors gradients.safetensors\n"
    "  lca op backward in.safetensors gradients.safetensors --group 8 --mass score";

struct OpBackwardFlags {
  CommonFlags common;
  KnobFlags knobs;
  std::string in, out;
};

void append_floats(const reference::Array& from, std::vector<float>& to) {
  std::ranges::transform(from.values, std::back_inserter(to),
                         [](double value) { return static_cast<float>(value); });
}

OpGradients gradients_of(const OpInput& input) {
  OperatorSpec spec;
  spec.layer = input.spec;
  spec.starts = input.documents;
  if (spec.starts.empty()) spec.starts = {0, input.length};

  OpGradients all;
  all.shape = input.spec.shape;
  all.batch = input.batch;
  all.length = input.length;
  Progress progress(static_cast<double>(input.batch * input.length));
  reference::Array w_uk, w_uv;
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    interrupt_check();
    progress.step("reference", static_cast<double>(input.length));
    const reference::Gradients part = reference::attention_backward(
        spec, input.weights(), input.queries(entry), input.entries(entry), input.out_grad(entry));
    append_floats(part.q_nope, all.nope);
    append_floats(part.q_rope, all.rope);
    append_floats(part.semantic, all.semantic);
    append_floats(part.positional, all.positional);
    const auto add = [entry](const reference::Array& from, reference::Array& to) {
      if (entry == 0) {
        to = from;
      } else {
        std::ranges::transform(to.values, from.values, to.values.begin(), std::plus<>());
      }
    };
    add(part.w_uk, w_uk);
    add(part.w_uv, w_uv);
  }
  append_floats(w_uk, all.w_uk);
  append_floats(w_uv, all.w_uv);
  return all;
}

void run_backward(const OpBackwardFlags& flags) {
  if (flags.in.empty()) fail_input("IN is empty; it takes the path of a safetensors file");
  flags.common.threads();  // checked, though one thread computes
  const std::vector<SettingOverride> overrides = flags.knobs.overrides();
  const OpInput input = OpInput::read(flags.in, overrides, OpTask::backward);
  writable_check(flags.out);
  const OpGradients gradients = gradients_of(input);
  const InterruptShield shield;
  interrupt_check();
  FileWriter writer(flags.out);
  op_gradients_write(writer, gradients);
}

}  // namespace

Command op_backward_command(CLI::App& parent) {
  auto flags = std::make_shared<OpBackwardFlags>();
  CLI::App* app = parent.add_subcommand("backward", "Gradients of one attention layer");
  app->footer(kOpBackwardExamples);
  app->add_option("IN", flags->in, "safetensors file to read")->required()->type_name("FILE");
  app->add_option("OUT", flags->out, "safetensors file to write")->required()->type_name("FILE");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::yes);
  return {app, [flags] { run_backward(*flags); }};
}

}  // namespace lca::cli
