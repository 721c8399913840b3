#pragma once
/// Flags that the commands on models share: which model, its settings, how it is loaded, and how
/// replies are sampled. All flags are checked before anything is loaded.

#include "arguments.h"
#include "formats/checkpoint.h"
#include "where_flags.h"

#include <lca/generate.h>
#include <lca/model.h>
#include <lca/session.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::cli {

/// MODEL, the first argument of every command on models: a path, or a built-in name.
class ModelArgument {
 public:
  enum class Need { required, optional };

  void add(CLI::App& app, Need need = Need::required);
  /// As the flag `--model`, for a command with a default model.
  void add_flag(CLI::App& app, const std::string& fallback);
  bool given() const { return !text_.empty(); }
  /// The model's path; throws Error that says what to do if it does not exist.
  std::filesystem::path path() const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// `--adapter`. A built-in name has an adapter of its own, trained for LCA: it is used with method
/// lca unless the flag says otherwise.
class AdapterFlag {
 public:
  void add(CLI::App& app, const std::string& help);
  bool given() const { return flag_.given(); }
  /// Throws Error where its value is wrong.
  void check() const;
  /// The folder to apply to `model`, a path or name, in layers with these settings; empty: none.
  std::string folder(std::string_view model, std::span<const Settings> layers) const;
  /// The same, with a line on standard error where the name's own adapter is used.
  std::string folder_shown(std::string_view model, std::span<const Settings> layers) const;

 private:
  TextFlag flag_;
};

/// `--weights`, for every command that loads a model or reports its size.
class WeightsFlag {
 public:
  void add(CLI::App& app);
  bool given() const { return flag_.given(); }
  WeightPacking read() const;

 private:
  TextFlag flag_;
};

/// `--cache`, for the same commands.
class CacheFlag {
 public:
  void add(CLI::App& app);
  bool given() const { return flag_.given(); }
  CacheStorage read() const;

 private:
  TextFlag flag_;
};

/// MODEL, `--adapter` and every knob: what decides the settings of each layer (mechanism §6).
class ModelFlags {
 public:
  /// `precision` is the default: auto, f32 or bf16.
  void add(CLI::App& app, const std::string& precision);
  /// For a command that can do without a file: `--random NAME` and `--skew X` instead of MODEL.
  void add_for_measuring(CLI::App& app);
  /// For a command with a default model that compares methods: `--model` and no `--method`.
  void add_for_comparison(CLI::App& app, const std::string& model);
  /// Throws Error naming the first flag that is wrong.
  void check() const;

  std::filesystem::path path() const { return model_.path(); }
  /// The shape that `--random` names, empty without it.
  const std::string& random() const { return random_.text; }
  /// MODEL as it was given.
  const std::string& text() const { return model_.text(); }
  int threads() const { return common_.threads(); }
  /// Loads it, with progress on standard error. `saved` are the settings of a session that it is
  /// to continue: one of another method than lca has no adapter unless the flag names it.
  std::shared_ptr<const Model> load(std::span<const Settings> saved = {}) const;
  /// The same without an adapter.
  std::shared_ptr<const Model> load_base() const;
  /// The model's own settings with the flags applied.
  SessionOptions session_options(const Model& model) const;

 private:
  void add_common(CLI::App& app, const std::string& precision, KnobFlags::MethodFlag method_flag);
  std::shared_ptr<const Model> load_with(const std::string& adapter) const;
  Precision precision() const;
  std::int64_t chunk() const;
  GroupStorage groups() const;
  double skew() const;

  ModelArgument model_;
  CommonFlags common_;
  KnobFlags knobs_;
  WeightsFlag weights_;
  CacheFlag cache_;
  WhereFlags where_;
  AdapterFlag adapter_;
  TextFlag precision_, chunk_, groups_, random_, skew_;
};

/// The settings a checkpoint's layers start from: its adapter's (`folder` may be empty), its own,
/// else preset training-free.
std::vector<Settings> settings_of(const Checkpoint& checkpoint, const std::string& folder);

/// `-n`, `--stop`, `--temperature` and the other flags of a reply.
class ReplyFlags {
 public:
  /// `tokens` is the default of `-n`.
  void add(CLI::App& app, const std::string& tokens);
  /// Checked; `end_tokens` are those of the model, dropped with `--ignore-eos`.
  GenerateOptions read(std::vector<std::int32_t> end_tokens) const;

 private:
  TextFlag tokens_, temperature_, top_k_, top_p_, min_p_, penalty_, seed_;
  std::vector<std::string> stops_;
  bool ignore_end_ = false;
};

/// A whole file, or standard input if `path` is "-". Messages begin with `flag`.
std::string text_read(std::string_view flag, const std::string& path);

}  // namespace lca::cli
