#pragma once
/// What an adapter and a method cost in everyday use: how far a model's predictions of the base
/// model's own replies are from the base's.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "eval/cluster_mean.h"
#include "eval/logits_read.h"

namespace lca::eval {

/// A model as it is used: with these settings, on this context.
struct EverydayArm {
  std::shared_ptr<const Model> model;
  Context& context;
  SessionOptions session;
};

/// A prompt and the base's greedy reply to it.
struct EverydayText {
  std::vector<std::int32_t> ids;  ///< both
  std::int64_t prompt = 0;        ///< tokens of the prompt
  bool ended = false;             ///< the reply was ended by an end token, which is not in `ids`
};

/// Sums over the tokens of a reply, its end token included.
struct EverydayScore {
  std::int64_t tokens = 0;
  double kl = 0;                       ///< KL(base ‖ other), nats
  double base_nll = 0, other_nll = 0;  ///< −ln p of the tokens the base chose
  std::int64_t agreed = 0;             ///< tokens that the other model would choose too
};

/// Scores the replies `which`. Two models of one vocabulary, else Error (incompatible). `done` is
/// called on the calling thread. Throws Error (cancelled) where `stop` is requested.
void everyday_run(const EverydayArm& base, const EverydayArm& other,
                  std::span<const std::size_t> which,
                  const std::function<const EverydayText&(std::size_t)>& text,
                  const std::function<void(std::size_t, const EverydayScore&)>& done,
                  const std::stop_token& stop);

}  // namespace lca::eval
