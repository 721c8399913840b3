#include "formats/checkpoint.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "formats/checkpoint_json.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"
#include "formats/model_path.h"
#include "formats/published.h"
#include "formats/safetensors_set.h"
#include "formats/tokenizer/tokenizer_load.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace lca {

namespace fs = std::filesystem;

struct Checkpoint::State {
  Kind kind = Kind::huggingface;
  fs::path path;
  ModelConfig config;
  std::optional<Gguf> gguf;
  std::optional<SafetensorsSet> safetensors;
  std::vector<StoredTensor> tensors;
};

namespace {

StoredTensor stored(const GgufTensor& tensor) {
  return {tensor.name, tensor.type, tensor.shape, tensor.bytes.data()};
}

/// The storage type of a safetensors type; nothing for those no weight has.
std::optional<PackedType> packed_type(TensorType type) {
  switch (type) {
    case TensorType::f32:
      return PackedType::f32;
    case TensorType::f16:
      return PackedType::f16;
    case TensorType::bf16:
      return PackedType::bf16;
    default:
      return std::nullopt;
  }
}

StoredTensor stored(const SafetensorsSet::Member& member) {
  const TensorInfo& tensor = *member.tensor;
  const std::optional<PackedType> type = packed_type(tensor.dtype);
  if (!type) {
    fail_input("{}: tensor \"{}\" is {}; weights are read as F32, F16 or BF16: convert them",
               member.file->name(), text_printable(tensor.name), tensor_type_name(tensor.dtype));
  }
  return {tensor.name, *type, tensor.shape, tensor.bytes.data()};
}

// --- experts in a stack --------------------------------------------------------------------------

/// Rows `first` … of one expert's matrix, out of the stack [experts, rows, columns] of all.
StoredTensor expert_cut(const StoredTensor& stack, std::int64_t expert, std::int64_t first,
                        std::int64_t rows, std::string_view file) {
  if (stack.shape.size() != 3 || expert >= stack.shape[0] || first + rows > stack.shape[1]) {
    fail_input("{}: tensor \"{}\" has shape [{}], which holds no expert {}", file,
               text_printable(stack.name), fmt::join(stack.shape, ","), expert);
  }
  const std::size_t row_bytes = packed_bytes(stack.type, stack.shape[2]);
  const auto row = static_cast<std::size_t>(expert * stack.shape[1] + first);
  return {stack.name, stack.type, {rows, stack.shape[2]}, stack.data + row * row_bytes};
}

StoredTensor expert_cut(const StoredTensor& stack, std::int64_t expert, std::string_view file) {
  return expert_cut(stack, expert, 0, stack.shape.size() == 3 ? stack.shape[1] : 0, file);
}

/// The half of a stack of gate and up matrices, gate first.
StoredTensor expert_cut_half(const StoredTensor& stack, std::int64_t expert, bool up,
                             std::string_view file) {
  const std::int64_t rows = stack.shape.size() == 3 ? stack.shape[1] / 2 : 0;
  return expert_cut(stack, expert, up ? rows : 0, rows, file);
}

/// "model.layers.3.mlp.experts.7.up_proj.weight", taken apart.
struct ExpertName {
  std::string stack;  ///< "model.layers.3.mlp.experts."
  std::int64_t expert;
  std::string_view matrix;  ///< "up_proj"
};

std::optional<ExpertName> expert_name_parse(std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.", kWeight = ".weight";
  const std::size_t at = name.find(kExperts);
  if (at == std::string_view::npos || !name.ends_with(kWeight)) return std::nullopt;
  const std::string_view stack = name.substr(0, at + kExperts.size());
  std::string_view rest = name.substr(stack.size());
  rest.remove_suffix(std::min(rest.size(), kWeight.size()));
  std::int64_t expert = 0;
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data(), end, expert);
  if (error != std::errc() || expert < 0 || stop == end || *stop != '.') return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()) + 1);
  return ExpertName{std::string(stack), expert, rest};
}

/// An expert of a folder whose experts are stacked as transformers holds them in memory:
/// gate_up_proj [experts, 2·width, hidden] and down_proj [experts, hidden, width].
std::optional<StoredTensor> stacked_expert_find(const SafetensorsSet& set,
                                                const ModelConfig& config, std::string_view name) {
  const std::optional<ExpertName> parsed = expert_name_parse(name);
  if (!parsed) return std::nullopt;
  const bool down = parsed->matrix == "down_proj";
  if (!down && parsed->matrix != "up_proj" && parsed->matrix != "gate_proj") return std::nullopt;
  const SafetensorsSet::Member* member =
      set.find(parsed->stack + (down ? "down_proj" : "gate_up_proj"));
  if (member == nullptr) return std::nullopt;
  const StoredTensor stack = stored(*member);
  const std::int64_t width = config.experts.width;
  const std::vector<std::int64_t> expected =
      down ? std::vector{config.experts.count, config.hidden, width}
           : std::vector{config.experts.count, 2 * width, config.hidden};
  const std::string& file = member->file->name();
  if (stack.shape != expected) {
    fail_input("{}: tensor \"{}\" has shape [{}], not [{}]", file, text_printable(stack.name),
               fmt::join(stack.shape, ","), fmt::join(expected, ","));
  }
  return down ? expert_cut(stack, parsed->expert, file)
              : expert_cut_half(stack, parsed->expert, parsed->matrix == "up_proj", file);
}

std::optional<StoredTensor> gguf_find(const Gguf& file, std::string_view name) {
  const std::optional<GgufName> place = gguf_name_from_hf(name);
  if (!place) return std::nullopt;
  const GgufTensor* tensor = file.find(place->tensor);
  if (tensor != nullptr) {
    const StoredTensor whole = stored(*tensor);
    return place->expert ? expert_cut(whole, *place->expert, file.name()) : whole;
  }
  if (!place->expert) return std::nullopt;
  // Some files keep gate and up in one stack.
  for (const std::string_view half : {"ffn_gate_exps", "ffn_up_exps"}) {
    const std::size_t at = place->tensor.find(half);
    if (at == std::string::npos) continue;
    std::string fused = place->tensor;
    fused.replace(at, half.size(), "ffn_gate_up_exps");
    const GgufTensor* both = file.find(fused);
    if (both == nullptr) return std::nullopt;
    return expert_cut_half(stored(*both), *place->expert, half == "ffn_up_exps", file.name());
  }
  return std::nullopt;
}

// --- opening -------------------------------------------------------------------------------------

void open_gguf(Checkpoint::State& state, FileAccess access) {
  state.kind = Checkpoint::Kind::gguf;
  state.gguf = Gguf::open(state.path, access);
  state.config = mapped_read([&] { return model_config_from_gguf(*state.gguf); },
                             [&] { state.gguf->require_intact(); });
  for (const GgufTensor& tensor : state.gguf->tensors()) state.tensors.push_back(stored(tensor));
}

void open_huggingface(Checkpoint::State& state, FileAccess access) {
  const fs::path config = state.path / "config.json";
  state.config = text_read(config, [&](std::string_view text) {
    return model_config_from_json(text, path_shown(config));
  });
  state.safetensors = SafetensorsSet::open(state.path, access);
  for (const SafetensorsSet::Member& member : state.safetensors->members()) {
    if (packed_type(member.tensor->dtype)) state.tensors.push_back(stored(member));
  }
  if (state.safetensors->find("lm_head.weight") != nullptr) return;
  if (state.config.head_stated) {
    fail_input(
        "{}: tie_word_embeddings is false, but there is no tensor \"lm_head.weight\": complete the "
        "weights, or set the field to true if the embedding is the head",
        path_shown(config));
  }
  state.config.tied = true;  // some configurations say nothing and leave the head out
}

}  // namespace

std::int64_t StoredTensor::values() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count *= dim;
  return count;
}

std::size_t StoredTensor::bytes() const { return packed_bytes(type, values()); }

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const fs::path& path, FileAccess access) {
  auto state = std::make_unique<State>();
  state->path = path_require(path);
  std::error_code ignored;
  if (path_is_gguf(state->path)) {
    open_gguf(*state, access);
  } else if (!fs::is_directory(state->path, ignored)) {
    fail_input("{}: is no GGUF file; of a model in the Hugging Face format name the folder",
               path_shown(path));
  } else if (path_exists(state->path / "config.json")) {
    open_huggingface(*state, access);
  } else if (const std::optional<fs::path> file = folder_find_gguf(state->path)) {
    state->path = *file;
    open_gguf(*state, access);
  } else {
    fail_not_found("{}: there is neither config.json nor a .gguf file: not a model's folder",
                   path_shown(path));
  }
  return Checkpoint(std::move(state));
}

Checkpoint Checkpoint::published(std::string_view name) {
  auto state = std::make_unique<State>();
  state->kind = Kind::published;
  state->config = published_config(name);
  state->path = name;
  return Checkpoint(std::move(state));
}

Checkpoint::Kind Checkpoint::kind() const { return state_->kind; }
const fs::path& Checkpoint::path() const { return state_->path; }
const ModelConfig& Checkpoint::config() const { return state_->config; }
const std::vector<StoredTensor>& Checkpoint::tensors() const { return state_->tensors; }

bool Checkpoint::permuted_qk() const {
  return state_->kind == Kind::gguf && state_->config.architecture == Architecture::llama;
}

std::optional<StoredTensor> Checkpoint::find(std::string_view name) const {
  if (state_->kind == Kind::published) return std::nullopt;
  if (state_->kind == Kind::gguf) return gguf_find(*state_->gguf, name);
  if (const SafetensorsSet::Member* member = state_->safetensors->find(name)) {
    return stored(*member);
  }
  return stacked_expert_find(*state_->safetensors, state_->config, name);
}

Tokenizer Checkpoint::tokenizer() const {
  if (state_->kind == Kind::published) {
    fail_not_found("{} with random weights has no tokenizer; give it token ids",
                   state_->path.native());
  }
  return state_->gguf ? tokenizer_from_gguf(*state_->gguf) : tokenizer_from_folder(state_->path);
}

std::string Checkpoint::chat_template() const {
  if (state_->kind == Kind::published) return {};
  if (state_->kind == Kind::gguf) {
    const Gguf& gguf = *state_->gguf;
    return mapped_read([&] { return gguf.text("tokenizer.chat_template", ""); },
                       [&] { gguf.require_intact(); });
  }
  const fs::path plain = state_->path / "chat_template.jinja";
  if (path_exists(plain)) {
    return text_read(plain, [](std::string_view text) { return std::string(text); });
  }
  const fs::path config = state_->path / "tokenizer_config.json";
  if (!path_exists(config)) return {};
  return text_read(config, [&](std::string_view text) {
    return chat_template_from_json(text, path_shown(config));
  });
}

std::vector<std::int32_t> Checkpoint::end_tokens() const {
  std::vector<std::int32_t> ids = state_->config.end_tokens;
  const fs::path generation = state_->path / "generation_config.json";
  if (state_->kind == Kind::huggingface && path_exists(generation)) {
    const auto more = text_read(generation, [&](std::string_view text) {
      return end_tokens_from_json(text, path_shown(generation));
    });
    ids.insert(ids.end(), more.begin(), more.end());
  }
  std::vector<std::int32_t> unique;
  for (const std::int32_t id : ids) {
    if (std::ranges::find(unique, id) == unique.end()) unique.push_back(id);
  }
  return unique;
}

void Checkpoint::require_intact() const {
  if (state_->gguf) state_->gguf->require_intact();
  if (state_->safetensors) state_->safetensors->require_intact();
}

}  // namespace lca
