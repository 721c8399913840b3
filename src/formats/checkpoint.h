#pragma once
/// A model on disk: a Hugging Face folder or a GGUF file, seen in one way.

#include "formats/model_config.h"
#include "ops/packed.h"

#include <lca/file_access.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// A tensor as it is stored, in the file's memory.
struct StoredTensor {
  std::string name;  ///< as the file spells it
  PackedType type = PackedType::f32;
  std::vector<std::int64_t> shape;  ///< row-major
  const std::byte* data = nullptr;

  std::int64_t values() const;
  /// Bytes it takes in the file.
  std::size_t bytes() const;
};

/// An opened checkpoint. Tensors stay mapped, or in memory, as long as it lives.
class Checkpoint {
 public:
  enum class Kind : std::uint8_t { huggingface, gguf, published };

  /// Opens a folder with config.json and safetensors (one file, or shards with
  /// model.safetensors.index.json), or a .gguf file (any part of a split one). Throws Error naming
  /// what is missing or wrong and what to do.
  static Checkpoint open(const std::filesystem::path& path, FileAccess access = FileAccess::map);
  /// The configuration of a published model (published.h) without a file, tensors or tokenizer.
  static Checkpoint published(std::string_view name);

  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  Kind kind() const;
  /// Absolute.
  const std::filesystem::path& path() const;
  const ModelConfig& config() const;

  /// The tensor that Hugging Face calls `name` ("model.layers.3.mlp.up_proj.weight"). For GGUF the
  /// name is translated, an expert's matrix is cut out of its stack, and two names of our own reach
  /// a split kv_b: "model.layers.N.self_attn.k_b_proj.weight" [H, d_c, d_n] and
  /// "….v_b_proj.weight" [H, d_v, d_c].
  std::optional<StoredTensor> find(std::string_view name) const;
  /// All tensors of a type we read, sorted by the file's own names. `find` throws Error for others.
  const std::vector<StoredTensor>& tensors() const;
  /// Whether q and k rows are permuted for adjacent-pair RoPE, as GGUF's llama has them: row i of a
  /// head here is row permuted_row(i) there.
  bool permuted_qk() const;

  /// The tokenizer; throws Error where the checkpoint has none or one we cannot read.
  Tokenizer tokenizer() const;
  /// The chat template's text; empty where there is none.
  std::string chat_template() const;
  /// Ids that end a reply, each once: the config's and those of generation_config.json.
  std::vector<std::int32_t> end_tokens() const;

  /// Throws Error where a file of weights was cut short since it was opened: what was read of it,
  /// and whatever was computed from that, is then worth nothing.
  void require_intact() const;

  struct State;

 private:
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Where row `row` (0 … width−1 of one head) of a Hugging Face q or k projection lies in GGUF's
/// llama: i → 2i, i + width/2 → 2i + 1.
constexpr std::int64_t permuted_row(std::int64_t row, std::int64_t width) {
  const std::int64_t half = width / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

}  // namespace lca
