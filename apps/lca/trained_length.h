#pragma once
/// What people are told about the length a model was trained for: how far it reaches with the
/// settings at hand, and once where a context is longer (mechanism §10).

#include <lca/model.h>
#include <lca/settings.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lca::cli {

/// "trained for 8,192 tokens; about 115,000 tokens with g 16, w 1024". `trained` is 0 where it is
/// not known.
std::string trained_text(std::int64_t trained, std::span<const Settings> layers);

/// The longest context that stays within `trained` positions; null: unknown, or no limit.
nlohmann::ordered_json longest_in_range_json(std::int64_t trained,
                                             std::span<const Settings> layers);

/// Says once on standard error that a context needs more positions than the model was trained for.
class ContextWarning {
 public:
  /// `consequence` ends the sentence: what becomes of it.
  ContextWarning(const ModelInfo& info, std::vector<Settings> layers,
                 std::string consequence = "its answers may make no sense")
      : trained_(info.context), layers_(std::move(layers)), consequence_(std::move(consequence)) {}

  void check(std::int64_t length);
  /// What was printed: one sentence, or none.
  const std::vector<std::string>& given() const { return given_; }

 private:
  std::int64_t trained_;
  std::vector<Settings> layers_;
  std::string consequence_;
  std::vector<std::string> given_;
};

}  // namespace lca::cli
