#include "support/golden_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include <unistd.h>

#include "formats/safetensors.h"
#include "formats/settings_json.h"
#include "support/worst.h"

namespace lca::test {

namespace fs = std::filesystem;

namespace {

fs::path models_folder() { return fs::path(LCA_SOURCE_DIR) / "tests/golden/models"; }

/// The one word a small text file holds.
std::string word_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

fs::path weights_of(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".gguf") && name.find("-00002-of") == std::string::npos) return entry.path();
  }
  return folder;
}

template <typename T>
std::vector<T> tensor_values(const Safetensors& file, const char* name, TensorType type) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != type) {
    throw std::runtime_error(file.name() + " has no such tensor: " + name);
  }
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

}  // namespace

GoldenModel::GoldenModel(const std::string& name) {
  golden_ = models_folder() / name;
  path_ = golden_;
  if (fs::exists(golden_ / "adapter_config.json")) {
    adapter_ = golden_;
    path_ = weights_of(models_folder() / word_of(golden_ / "base_model"));
    return;
  }
  const fs::path twin = golden_ / "same_weights_as";
  if (!fs::exists(twin)) {
    path_ = weights_of(golden_);
    return;
  }
  const fs::path other = models_folder() / word_of(twin);
  static int counter = 0;
  temporary_ = fs::temp_directory_path() /
               ("lca-golden-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  fs::create_directories(temporary_);
  fs::copy_file(golden_ / "config.json", temporary_ / "config.json");
  for (const auto& entry : fs::directory_iterator(other)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("model")) fs::create_symlink(entry.path(), temporary_ / file);
  }
  path_ = temporary_;
  const auto is_golden = [](const fs::directory_entry& entry) {
    return entry.path().filename().native().starts_with("golden");
  };
  if (std::none_of(fs::directory_iterator(golden_), {}, is_golden)) golden_ = other;
}

GoldenModel::~GoldenModel() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::shared_ptr<const Model> GoldenModel::load(Precision precision, CacheStorage cache) const {
  ModelOptions options;
  options.path = path_;
  options.adapter = adapter_;
  options.precision = precision;
  options.cache = cache;
  if (cache != CacheStorage::plain) options.device = "cpu";
  return Model::load(options);
}

std::vector<std::string> golden_model_names(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(models_folder())) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && name.starts_with(prefix)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

Settings dense_settings() {
  Settings settings;
  settings.method = MethodKind::dense;
  return settings;
}

GoldenLogits golden_logits(const fs::path& path, std::int64_t layers) {
  const Safetensors file = Safetensors::open(path);
  GoldenLogits golden;
  golden.tokens = tensor_values<std::int32_t>(file, "tokens", TensorType::i32);
  golden.logits = tensor_values<float>(file, "logits", TensorType::f32);
  golden.prompt = static_cast<std::int64_t>(golden.tokens.size());
  if (file.find("prompt_tokens") != nullptr) {
    golden.prompt = tensor_values<std::int32_t>(file, "prompt_tokens", TensorType::i32).at(0);
  }
  const auto found = file.metadata().find("lca");
  if (found == file.metadata().end()) {
    golden.settings = {dense_settings()};
  } else {
    golden.settings = settings_layers_from_json(found->second, path.native(), layers);
  }
  return golden;
}

std::vector<float> session_logits(const std::shared_ptr<const Model>& model,
                                  std::span<const std::int32_t> tokens,
                                  const std::vector<Settings>& settings, std::int64_t chunk,
                                  std::int64_t prompt) {
  Context context(2);
  SessionOptions options;
  options.settings = settings;
  options.chunk = chunk;
  Session session(model, context, options);
  const std::int64_t vocabulary = model->info().vocabulary;
  std::vector<float> all(tokens.size() * static_cast<std::size_t>(vocabulary),
                         std::numeric_limits<float>::quiet_NaN());
  const auto keep = [&](std::int64_t first, std::int64_t count, const float* rows) {
    std::copy_n(rows, count * vocabulary, all.begin() + first * vocabulary);
  };
  if (prompt > 0) session.prefill(tokens.first(static_cast<std::size_t>(prompt)), {}, keep);
  for (auto at = static_cast<std::size_t>(prompt); at < tokens.size(); ++at) {
    session.decode(tokens[at]);
    keep(static_cast<std::int64_t>(at), 1, session.logits().data());
  }
  return all;
}

double logits_error(std::span<const float> expected, std::span<const float> actual) {
  const double error = worst_difference(expected, actual) / largest(expected);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace lca::test
