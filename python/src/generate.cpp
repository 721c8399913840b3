/// Replies: one in a session, or many at once.

#include "engine_types.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <optional>

namespace lca::python {
namespace {

using Ids = std::vector<std::int32_t>;

nb::object logprobs_tuple(const TokenLogprobs& token) {
  nb::list top;
  for (const TokenLogprob& other : token.top) top.append(nb::make_tuple(other.id, other.logprob));
  return nb::make_tuple(token.id, token.logprob, top);
}

nb::dict generated_dict(const Generated& generated) {
  nb::dict reply;
  reply["text"] = generated.text;
  reply["tokens"] = nb::cast(generated.tokens);
  const std::string_view reason = stop_reason_name(generated.reason);
  reply["reason"] = nb::str(reason.data(), reason.size());
  reply["prompt_tokens"] = generated.prompt_tokens;
  reply["reused_tokens"] = generated.reused_tokens;
  reply["prefill_seconds"] = generated.prefill_seconds;
  reply["first_seconds"] = generated.first_seconds;
  reply["decode_seconds"] = generated.decode_seconds;
  nb::list logprobs;
  for (const TokenLogprobs& token : generated.logprobs) logprobs.append(logprobs_tuple(token));
  reply["logprobs"] = logprobs;
  return reply;
}

GenerateOptions options_make(std::int64_t max_tokens, const nb::dict& sampling,
                             std::vector<std::string> stops, Ids end_tokens, bool logprobs,
                             std::int64_t top_logprobs) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.stops = std::move(stops);
  options.end_tokens = std::move(end_tokens);
  options.logprobs = logprobs;
  options.top_logprobs = top_logprobs;
  for (const auto& [key, value] : sampling) {
    const auto name = nb::cast<std::string>(key);
    Sampling& to = options.sampling;
    if (name == "temperature") to.temperature = nb::cast<double>(value);
    if (name == "top_k") to.top_k = nb::cast<std::int64_t>(value);
    if (name == "top_p") to.top_p = nb::cast<double>(value);
    if (name == "min_p") to.min_p = nb::cast<double>(value);
    if (name == "repetition_penalty") to.repetition_penalty = nb::cast<double>(value);
    if (name == "seed") to.seed = nb::cast<std::uint64_t>(value);
  }
  options.sampling.validate();
  return options;
}

nb::dict generate_in_session(PySession& self, const Ids& prompt, GenerateOptions options,
                             const nb::object& on_piece, const nb::object& progress) {
  const PyCallback piece(on_piece), report(progress);
  if (report) {
    options.progress = [&](PrefillProgress at) { return report(at.done, at.total); };
  }
  std::function<bool(const GeneratePiece&)> hand_out;
  if (piece) {
    hand_out = [&](const GeneratePiece& part) {
      return piece(std::string(part.text), Ids(part.ids.begin(), part.ids.end()));
    };
  }
  const Generated reply = run_interruptible([&](const std::stop_token& stop) {
    options.stop = stop;
    return generate(self.session, prompt, options, hand_out);
  });
  return generated_dict(reply);
}

/// One reply for each prompt, in their order, by continuous batching.
nb::list generate_batch(const std::shared_ptr<Model>& model,
                        const std::shared_ptr<Context>& context, const std::vector<Ids>& prompts,
                        const std::string& preset, const nb::dict& changes, std::int64_t chunk,
                        const GenerateOptions& options) {
  SessionOptions session;
  if (!preset.empty() || nb::len(changes) > 0) {
    session.settings = settings_change(model->settings(), preset, changes);
  }
  session.chunk = chunk;
  std::vector<Generated> replies(prompts.size());
  std::exception_ptr failure;
  run_interruptible([&](const std::stop_token& stop) {
    Engine engine(model, *context);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request request;
      request.prompt = prompts[i];
      request.options = session;
      request.generate = options;
      RequestCallbacks callbacks;
      callbacks.finished = [&replies, i](RequestResult result) {
        replies[i] = std::move(result.generated);
      };
      callbacks.failed = [&failure](const Error& error, RequestResult) {
        if (!failure) failure = std::make_exception_ptr(error);
      };
      engine.submit(std::move(request), std::move(callbacks));
    }
    while (!failure && !stop.stop_requested() && engine.step(stop)) {
    }
  });
  if (failure) std::rethrow_exception(failure);
  nb::list results;
  for (const Generated& reply : replies) results.append(generated_dict(reply));
  return results;
}

}  // namespace

void generate_bind(nb::module_& module) {
  nb::class_<GenerateOptions>(module, "GenerateOptions");
  module.def("generate_options", &options_make, nb::arg("max_tokens"), nb::arg("sampling"),
             nb::arg("stops"), nb::arg("end_tokens"), nb::arg("logprobs"), nb::arg("top_logprobs"));
  module.def("generate", &generate_in_session, nb::arg("session"), nb::arg("prompt"),
             nb::arg("options"), nb::arg("on_piece").none(), nb::arg("progress").none());
  module.def("generate_batch", &generate_batch, nb::arg("model"), nb::arg("context"),
             nb::arg("prompts"), nb::arg("preset"), nb::arg("changes"), nb::arg("chunk"),
             nb::arg("options"));
}

}  // namespace lca::python
