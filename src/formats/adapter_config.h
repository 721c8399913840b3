#pragma once
/// `adapter_config.json` of a PEFT LoRA adapter.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Values for the modules that a name or a regular expression matches, in the order of the file.
class ModulePatterns {
 public:
  ModulePatterns();
  ~ModulePatterns();
  ModulePatterns(ModulePatterns&&) noexcept;
  ModulePatterns& operator=(ModulePatterns&&) noexcept;

  /// Throws Error beginning with `where` where `pattern` is no regular expression.
  void add(std::string_view pattern, double value, std::string_view where);
  /// The value of the first pattern that matches the end of the module's name from some dot on, as
  /// PEFT matches them; else `fallback`.
  double find(std::string_view module, double fallback) const;

 private:
  struct Pattern;
  std::vector<Pattern> patterns_;
};

/// What the file says about all matrices.
struct AdapterConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  bool by_root = false;  ///< rslora: divided by √rank instead of the rank
  ModulePatterns ranks, alphas;
  std::string base_model;

  std::int64_t rank_of(std::string_view module) const;
  double scale_of(std::string_view module) const;
};

/// Reads the file; throws Error beginning with `where` that names the field where it is wrong or
/// asks for something that is not done here.
AdapterConfig adapter_config_from_json(std::string_view text, std::string_view where);

}  // namespace lca
