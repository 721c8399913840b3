#pragma once
/// The tiny checkpoints of tests/golden/models and what transformers says they answer.

#include <lca/session.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lca::test {

/// One folder of tests/golden/models.
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name);
  ~GoldenModel();
  GoldenModel(const GoldenModel&) = delete;
  GoldenModel& operator=(const GoldenModel&) = delete;

  /// What to load: a folder or a file. Twins that share another folder's weights are put together
  /// in a temporary one.
  const std::filesystem::path& path() const { return path_; }
  /// Where the golden files lie: here, or in the folder a twin shares weights with.
  const std::filesystem::path& golden() const { return golden_; }
  /// The adapter's folder, where the case is one; `path` is then its base model.
  const std::string& adapter() const { return adapter_; }

  std::shared_ptr<const Model> load(Precision precision = Precision::f32,
                                    CacheStorage cache = CacheStorage::plain) const;

 private:
  std::filesystem::path path_;
  std::filesystem::path golden_;
  std::filesystem::path temporary_;
  std::string adapter_;
};

/// Names of all folders that begin with `prefix`.
std::vector<std::string> golden_model_names(const std::string& prefix = "");

/// What a golden file holds.
struct GoldenLogits {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;       ///< [n, vocabulary]
  std::int64_t prompt = 0;         ///< tokens that were the prompt; the rest was decoded
  std::vector<Settings> settings;  ///< of each layer: the metadata's `lca`; or dense
};
GoldenLogits golden_logits(const std::filesystem::path& file, std::int64_t layers);

/// Logits of every position: the prompt in the given chunks, the rest token by token.
std::vector<float> session_logits(const std::shared_ptr<const Model>& model,
                                  std::span<const std::int32_t> tokens,
                                  const std::vector<Settings>& settings, std::int64_t chunk,
                                  std::int64_t prompt);

/// Errors of the same logits where float32 sums were added in another order: they grow a little
/// from layer to layer.
inline constexpr double kSameLogits = 2e-5;

/// max|Δ| / max|expected|; infinite where sizes differ or a value is not finite.
double logits_error(std::span<const float> expected, std::span<const float> actual);

/// Settings of method dense.
Settings dense_settings();

}  // namespace lca::test
