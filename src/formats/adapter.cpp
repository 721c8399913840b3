#include "formats/adapter.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/adapter_config.h"
#include "formats/model_path.h"
#include "formats/settings_json.h"

#include <cstring>
#include <utility>

namespace lca {
namespace {

constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kOldWeightsFile = "adapter_model.bin";
constexpr std::string_view kSettingsFile = "lca.json";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffix = ".weight";

/// A tensor's name taken apart: base_model.model.MODULE.lora_A.weight, or with the adapter's name
/// before the end.
struct LoraName {
  std::string_view module;
  bool is_a = false;
};

std::optional<LoraName> name_parse(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  if (name.size() < kPrefix.size() + kSuffix.size()) return std::nullopt;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  for (const auto& [marker, is_a] : {std::pair<std::string_view, bool>{".lora_A", true},
                                     std::pair<std::string_view, bool>{".lora_B", false}}) {
    const std::size_t at = name.rfind(marker);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view rest = name.substr(at + marker.size());
    // Nothing follows, or one part: the name the adapter had in training.
    const bool has_name =
        rest.size() > 1 && rest[0] == '.' && rest.find('.', 1) == std::string_view::npos;
    if (rest.empty() || has_name) return LoraName{name.substr(0, at), is_a};
  }
  return std::nullopt;
}

template <typename Bits>
bool has_exponent(std::span<const std::byte> bytes, Bits exponent) {
  for (std::size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    if ((bits & exponent) == exponent) return true;  // infinity or NaN
  }
  return false;
}

bool has_nonfinite(const TensorInfo& tensor) {
  if (tensor.dtype == TensorType::f32) {
    return has_exponent<std::uint32_t>(tensor.bytes, 0x7f800000u);
  }
  const std::uint16_t exponent = tensor.dtype == TensorType::f16 ? 0x7c00u : 0x7f80u;
  return has_exponent<std::uint16_t>(tensor.bytes, exponent);
}

PackedMatrix matrix_check(const TensorInfo& tensor, const std::string& where) {
  PackedMatrix matrix;
  switch (tensor.dtype) {
    case TensorType::f32:
      matrix.type = PackedType::f32;
      break;
    case TensorType::f16:
      matrix.type = PackedType::f16;
      break;
    case TensorType::bf16:
      matrix.type = PackedType::bf16;
      break;
    default:
      fail_input("{}: dtype {} is not supported; save the adapter as F32, F16 or BF16", where,
                 tensor_type_name(tensor.dtype));
  }
  if (tensor.shape.size() != 2 || tensor.bytes.empty()) {
    fail_input("{}: must be a matrix with rows and columns", where);
  }
  if (has_nonfinite(tensor)) fail_input("{}: holds NaN or infinity", where);
  matrix.data = tensor.bytes.data();
  matrix.rows = tensor.shape[0];
  matrix.columns = tensor.shape[1];
  return matrix;
}

}  // namespace

/// Puts an adapter together.
class AdapterReader {
 public:
  AdapterReader(std::string name, const AdapterConfig& config) : config_(config) {
    adapter_.name_ = std::move(name);
    adapter_.base_model_ = config.base_model;
  }

  void weights_take(Safetensors file) {
    adapter_.file_ = std::move(file);
    const std::string& name = adapter_.file_->name();
    for (const TensorInfo& tensor : adapter_.file_->tensors()) matrix_take(tensor, name);
    if (adapter_.modules_.empty()) fail_input("{}: holds no LoRA matrices", name);
    for (auto& [module, pair] : adapter_.modules_) pair_check(module, pair, name);
  }

  void settings_take(std::string_view text, std::string_view where, std::int64_t layers) {
    adapter_.settings_ = settings_layers_from_json(text, where, layers);
  }

  Adapter finish() { return std::move(adapter_); }

 private:
  void matrix_take(const TensorInfo& tensor, const std::string& file) {
    const std::string where =
        fmt::format("{}: tensor \"{}\"", file, text_printable(tensor.name, 200));
    if (tensor.name.find("lora_embedding_") != std::string::npos) {
      fail_input("{}: changes of embeddings are not supported", where);
    }
    const std::optional<LoraName> name = name_parse(tensor.name);
    if (!name) {
      fail_input("{}: is no LoRA matrix ({}MODULE.lora_A{}); only those are supported", where,
                 kPrefix, kSuffix);
    }
    LoraPair& pair = adapter_.modules_[std::string(name->module)];
    PackedMatrix& matrix = name->is_a ? pair.a : pair.b;
    if (!matrix.empty()) {
      fail_input("{}: the module has two lora_{} matrices", where, name->is_a ? 'A' : 'B');
    }
    matrix = matrix_check(tensor, where);
  }

  void pair_check(const std::string& module, LoraPair& pair, const std::string& file) const {
    const std::string where = fmt::format("{}: module \"{}\"", file, text_printable(module, 200));
    if (pair.a.empty() || pair.b.empty()) {
      fail_input("{}: lora_{} has no lora_{}", where, pair.a.empty() ? 'B' : 'A',
                 pair.a.empty() ? 'A' : 'B');
    }
    const std::int64_t rank = config_.rank_of(module);
    if (pair.a.rows != rank || pair.b.columns != rank) {
      fail_input("{}: lora_A [{}, {}] and lora_B [{}, {}] are not of rank {}, which {} says", where,
                 pair.a.rows, pair.a.columns, pair.b.rows, pair.b.columns, rank, kConfigFile);
    }
    pair.scale = config_.scale_of(module);
  }

  const AdapterConfig& config_;
  Adapter adapter_;
};

Adapter Adapter::open(const std::filesystem::path& folder, std::int64_t layers, FileAccess access) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string shown = path_printable(folder.native());
  if (!fs::exists(folder, ignored)) fail_not_found("{}: there is no such folder", shown);
  if (!fs::is_directory(folder, ignored)) {
    fail_input("{}: is not a folder; name the one with {}", shown, kConfigFile);
  }
  const fs::path config_path = folder / kConfigFile;
  const fs::path weights_path = folder / kWeightsFile;
  const fs::path settings_path = folder / kSettingsFile;
  if (!fs::exists(config_path, ignored)) {
    fail_not_found("{}: there is no {}: not the folder of a PEFT adapter", shown, kConfigFile);
  }
  if (!fs::exists(weights_path, ignored)) {
    if (fs::exists(folder / kOldWeightsFile, ignored)) {
      fail_input("{}: only safetensors are read, not {}; save the adapter again as {}", shown,
                 kOldWeightsFile, kWeightsFile);
    }
    fail_not_found("{}: there is no {}", shown, kWeightsFile);
  }

  const AdapterConfig config = text_read(config_path, [&](std::string_view text) {
    return adapter_config_from_json(text, path_shown(config_path));
  });
  const fs::path plain = fs::absolute(folder, ignored).lexically_normal();
  const fs::path last = plain.has_filename() ? plain.filename() : plain.parent_path().filename();
  AdapterReader reader(last.native(), config);
  if (fs::exists(settings_path, ignored)) {
    text_read(settings_path, [&](std::string_view text) {
      reader.settings_take(text, path_shown(settings_path), layers);
    });
  }
  reader.weights_take(Safetensors::open(weights_path, access));
  return reader.finish();
}

Adapter Adapter::parse(std::string_view config, std::span<const std::byte> weights,
                       std::string_view settings, std::int64_t layers, std::string_view name) {
  const std::string shown = path_printable(name);
  const AdapterConfig checked =
      adapter_config_from_json(config, fmt::format("{}/{}", shown, kConfigFile));
  AdapterReader reader(std::string(name), checked);
  if (!settings.empty()) {
    reader.settings_take(settings, fmt::format("{}/{}", shown, kSettingsFile), layers);
  }
  reader.weights_take(Safetensors::parse(weights, fmt::format("{}/{}", name, kWeightsFile)));
  return reader.finish();
}

const LoraPair* Adapter::find(std::string_view module) const {
  const auto at = modules_.find(module);
  return at != modules_.end() ? &at->second : nullptr;
}

std::int64_t Adapter::parameters() const {
  std::int64_t count = 0;
  for (const auto& [module, pair] : modules_) {
    count += pair.a.rows * pair.a.columns + pair.b.rows * pair.b.columns;
  }
  return count;
}

}  // namespace lca
