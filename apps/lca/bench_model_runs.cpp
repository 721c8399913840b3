#include "bench_model_runs.h"

#include "core/cuda/device_name.h"
#include "core/pages.h"
#include "engine/session_fill.h"
#include "interrupt.h"
#include "machine.h"
#include "models/model_state.h"
#include "ops/likeliest.h"
#include "reply.h"
#include "terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lca::cli {
namespace {

/// Random ids of the whole vocabulary, the same for the same seed.
class MadeUpTokens {
 public:
  MadeUpTokens(std::int64_t vocabulary, std::uint64_t seed)
      : vocabulary_(static_cast<std::uint64_t>(vocabulary)), state_(seed + 1) {}

  std::int32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int32_t>((state_ >> 33) % vocabulary_);
  }
  std::vector<std::int32_t> next(std::int64_t count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = next();
    return tokens;
  }

 private:
  std::uint64_t vocabulary_;
  std::uint64_t state_;
};

/// One token for each of several sessions, and the likeliest next one of each.
class DecodeSteps {
 public:
  DecodeSteps(std::vector<Session>& sessions, std::int64_t vocabulary)
      : made_up_(vocabulary, 1), tokens_(sessions.size()), picks_(sessions.size()) {
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      Step& step = steps_.emplace_back();
      step.session = &sessions[i];
      step.tokens = {&tokens_[i], 1};
      step.greedy = &picks_[i];
    }
  }

  void run() {
    interrupt_check();
    for (std::int32_t& token : tokens_) token = made_up_.next();
    sessions_forward(steps_);
  }

 private:
  MadeUpTokens made_up_;
  std::vector<std::int32_t> tokens_, picks_;
  std::vector<Step> steps_;
};

/// Profiled runs must not take longer than this.
constexpr double kProfileSeconds = 12;
constexpr std::int64_t kProfileSteps = 4;

}  // namespace

void ModelTimes::add(double seconds) {
  best = count == 0 ? seconds : std::min(best, seconds);
  sum += seconds;
  ++count;
}

ModelBench::ModelBench(std::shared_ptr<const Model> model, SessionOptions options,
                       ModelWanted wanted, int threads)
    : model_(std::move(model)),
      options_(std::move(options)),
      wanted_(std::move(wanted)),
      context_(threads),
      on_gpu_(model_->info().device != "cpu") {}

void ModelBench::require_memory() {
  if (on_gpu_) return;  // its own errors say what is missing
  const auto require = [&](std::int64_t length, std::int64_t batch, const std::string& what) {
    const Memory memory = session_memory(*model_, options_, length, context_.threads());
    const auto caches = static_cast<double>(memory.caches);
    memory_require(caches * static_cast<double>(batch - 1) + static_cast<double>(memory.total()),
                   what);
  };
  if (!wanted_.prompts.empty()) {
    const std::int64_t length = wanted_.prompts.back();
    require(length, 1, fmt::format("--prompt {}", length));
  }
  if (!wanted_.depths.empty()) {
    const std::int64_t depth = wanted_.depths.back();
    const std::int64_t batch = wanted_.batches.back();
    require(decoded_end(depth), batch, fmt::format("--depths {} with --batch {}", depth, batch));
  }
}

std::int64_t ModelBench::longest() const {
  const std::int64_t prompt = wanted_.prompts.empty() ? 0 : wanted_.prompts.back();
  return wanted_.depths.empty() ? prompt : std::max(prompt, decoded_end(wanted_.depths.back()));
}

/// The last position a decoding run after `depth` tokens can reach.
std::int64_t ModelBench::decoded_end(std::int64_t depth) const {
  const auto runs = static_cast<std::int64_t>(wanted_.batches.size());
  return depth + 1 + runs * (1 + kProfileSteps + wanted_.repeat * wanted_.generate);
}

ModelReport ModelBench::measure() {
  std::vector<std::int64_t> lengths;  // a prompt is also the context of the depth of its length
  std::ranges::set_union(wanted_.prompts, wanted_.depths, std::back_inserter(lengths));
  for (const std::int64_t length : lengths) {
    std::vector<Session> sessions;
    if (std::ranges::binary_search(wanted_.prompts, length)) {
      sessions.push_back(prefill_measure(length));
    }
    if (std::ranges::binary_search(wanted_.depths, length)) {
      for (const std::int64_t batch : wanted_.batches) decode_measure(sessions, length, batch);
    }
  }
  return std::move(report_);
}

/// Reads a prompt. The time is that of the first token: from ids in the host's memory to its id
/// there.
Session ModelBench::session_make(std::int64_t length, ModelTimes* times) {
  Session session(model_, context_, options_);
  const std::vector<std::int32_t> tokens = MadeUpTokens(model_->info().vocabulary, 0).next(length);
  const Stopwatch watch;
  prefill_shown(session, tokens, "reading");
  likeliest_token(session.logits());
  if (times != nullptr) times->add(watch.seconds());
  return session;
}

void ModelBench::row_begin() {
  heap_trim();
  peak_memory_reset();
  cuda::memory_peak_reset();
}

void ModelBench::row_end(ModelRow& row) {
  row.peak = peak_memory();
  row.device_peak = cuda::memory_peak();
}

Session ModelBench::prefill_measure(std::int64_t length) {
  row_begin();
  ModelRow row{length, 1, length};
  std::optional<Session> session;
  for (std::int64_t run = 0; run < wanted_.repeat; ++run) {
    session.reset();
    session.emplace(session_make(length, &row.times));
  }
  row.cache = session->cache_bytes();
  row_end(row);
  if (on_gpu_ && row.times.best < kProfileSeconds) {
    const ModelBackend& backend = *model_->state().backend;
    backend.profile(true);
    session.reset();
    session.emplace(session_make(length));
    row.profile = backend.profile_take();
    row.profiled_steps = 1;
    backend.profile(false);
  }
  report_.prefill.push_back(row);
  return std::move(*session);
}

/// As many sessions as the batch: forks of the first, which decode other tokens, or, made up, each
/// with caches of its own.
void ModelBench::sessions_complete(std::vector<Session>& sessions, std::int64_t depth,
                                   std::int64_t batch) {
  const std::int64_t length = std::max<std::int64_t>(depth, 1);
  Progress progress(static_cast<double>(batch));
  while (std::ssize(sessions) < batch) {
    interrupt_check();
    if (wanted_.fill_random) {
      Session& made = sessions.emplace_back(model_, context_, options_);
      const auto seed = static_cast<std::uint32_t>(sessions.size());
      session_fill(made, MadeUpTokens(model_->info().vocabulary, seed).next(length), seed);
      progress.reached(static_cast<double>(sessions.size()), "filling caches");
    } else if (sessions.empty()) {
      sessions.push_back(session_make(length));
    } else {
      sessions.push_back(sessions.front().fork(sessions.front().length()));
    }
  }
}

/// Decodes in `batch` sessions of depth `depth`. The runs follow one another, so later ones are a
/// few tokens deeper.
void ModelBench::decode_measure(std::vector<Session>& sessions, std::int64_t depth,
                                std::int64_t batch) {
  row_begin();
  sessions_complete(sessions, depth, batch);
  DecodeSteps steps(sessions, model_->info().vocabulary);

  ModelRow row{depth, batch, batch * wanted_.generate};
  Progress progress(static_cast<double>(wanted_.repeat * wanted_.generate));
  const std::string label = fmt::format("decoding after {} tokens, batch {}", depth, batch);
  progress.step(label, 0);
  // The first step of its kind is prepared, the second captured where the GPU replays it.
  for (int i = 0; i < 3; ++i) steps.run();
  for (std::int64_t run = 0; run < wanted_.repeat; ++run) {
    const Stopwatch watch;
    for (std::int64_t i = 0; i < wanted_.generate; ++i) {
      steps.run();
      progress.reached(static_cast<double>(run * wanted_.generate + i + 1), label);
    }
    row.times.add(watch.seconds());
  }
  for (const Session& session : sessions) row.cache += session.cache_bytes();
  row_end(row);
  if (on_gpu_) {
    const ModelBackend& backend = *model_->state().backend;
    backend.profile(true);
    for (std::int64_t i = 0; i < kProfileSteps; ++i) steps.run();
    row.profile = backend.profile_take();
    row.profiled_steps = kProfileSteps;
    backend.profile(false);
  }
  report_.decode.push_back(row);
}

}  // namespace lca::cli
