#pragma once
/// What the commands of `lca eval` share: the fingerprint of a run, replies with progress.

#include "eval/results_file.h"
#include "eval/runner.h"
#include "model_flags.h"
#include "texts_flag.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

/// What a fingerprint of results begins with: the command, the model with its adapter, its settings
/// and how it is computed with.
nlohmann::ordered_json run_fingerprint(std::string_view command, const Model& model,
                                       const SessionOptions& options);

/// 16 hexadecimal digits that tell texts apart.
std::string texts_fingerprint(std::span<const TextsFlag::Text> texts);

/// A results file where `flag` names one.
std::unique_ptr<eval::ResultsFile> results_open(const TextFlag& flag,
                                                const nlohmann::ordered_json& fingerprint);

/// `eval::replies_run` with a progress bar: `label` is what is counted, `note` what is known by
/// now. False: Ctrl-C ended it, and the signal is pending.
bool replies_shown(const std::shared_ptr<const Model>& model, Context& context,
                   std::span<const std::size_t> which, const eval::PromptMaker& make,
                   const eval::ReplyTaker& done, const SessionOptions& session,
                   std::string_view label, const std::function<std::string()>& note);

/// "92 %"; "–" of nothing.
std::string share_text(std::int64_t part, std::int64_t whole);

}  // namespace lca::cli
