#pragma once
/// The files of `lca op`: one attention layer's inputs, settings, results and gradients.

#include "core/file.h"
#include "formats/settings_json.h"

#include <lca/cache.h>
#include <lca/method.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace lca {

/// A tensor converted and aligned, in memory of its own.
class OpTensor {
 public:
  OpTensor() = default;
  OpTensor(DType dtype, std::size_t values);

  DType dtype() const { return dtype_; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory_.get()); }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(memory_.get()); }
  /// The dense view of block `index`, of the given dimensions.
  ConstTensor view(std::int64_t index, std::int64_t d0, std::int64_t d1, std::int64_t d2) const;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  DType dtype_ = DType::f32;
  std::unique_ptr<Line[]> memory_;
};

/// What a file is read for: gradients need `grad_out` besides the inputs of attention.
enum class OpTask : std::uint8_t { attention, backward };

/// A checked input. Views stay valid as long as it lives, also after a move.
class OpInput {
 public:
  /// Reads and checks a file; throws Error naming file and tensor or field.
  static OpInput read(const std::filesystem::path& path,
                      std::span<const SettingOverride> overrides = {},
                      OpTask task = OpTask::attention);
  /// The same from bytes in memory, which may go afterwards; messages call them `name`.
  static OpInput parse(std::span<const std::byte> bytes, std::string_view name,
                       std::span<const SettingOverride> overrides = {},
                       OpTask task = OpTask::attention);

  LayerSpec spec;           ///< dtype: bf16 where both cached tensors are; scale is always set
  std::int64_t batch = 0;   ///< B
  std::int64_t length = 0;  ///< n
  /// Chunk sizes of the prompt; tokens after their sum are decoded. [n] where the file has none,
  /// and empty where there are documents.
  std::vector<std::int64_t> prefill;
  /// Starts of packed documents and, last, n; empty where the sequence is not packed.
  std::vector<std::int64_t> documents;

  /// m: representatives at the end, over all documents.
  std::int64_t groups() const;
  /// All n tokens of a batch entry; queries and weights keep the dtype of the file.
  Queries queries(std::int64_t entry) const;
  Entries entries(std::int64_t entry) const;
  LayerWeights weights() const;
  /// OpTask::backward: the gradient of the output, [n,H,d_v].
  ConstTensor out_grad(std::int64_t entry) const;

 private:
  friend class OpInputReader;
  OpTensor nope_, rope_;            // queries; GQA has no nope_
  OpTensor semantic_, positional_;  // cached pair, of one dtype
  OpTensor w_uk_, w_uv_;            // MLA only
  OpTensor out_grad_;               // OpTask::backward only
};

/// Results, batch entry after batch entry.
struct OpOutput {
  AttentionShape shape;
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t groups = 0;
  std::vector<float> out;             ///< [B,n,H,d_v]
  std::vector<float> lse;             ///< [B,n,H]
  std::vector<float> rep_semantic;    ///< [B,m,KV,d_semantic]: rep_c, or rep_v
  std::vector<float> rep_positional;  ///< [B,m,KV,d_positional]: rep_k_rope, or rep_k
  std::vector<float> rep_bias;        ///< [B,m,KV]

  OpOutput() = default;
  /// Zeros of the shapes that belong to an input.
  explicit OpOutput(const OpInput& input);
};

/// Writes all tensors and commits. Make the writer before the work, so that a bad path fails first.
void op_output_write(FileWriter& writer, const OpOutput& output);

/// Gradients of all inputs, batch entry after batch entry; those of the weights are summed over it.
struct OpGradients {
  AttentionShape shape;
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::vector<float> nope;        ///< MLA [B,n,H,d_n]
  std::vector<float> rope;        ///< [B,n,H,d_r], or [B,n,H,d]
  std::vector<float> semantic;    ///< [B,n,KV,d_semantic]: of c, or v
  std::vector<float> positional;  ///< [B,n,KV,d_positional]: of k_rope, or k
  std::vector<float> w_uk;        ///< MLA [H,d_n,d_c]
  std::vector<float> w_uv;        ///< MLA [H,d_v,d_c]
};

/// Writes each as the tensor `d_` and its input's name, and commits.
void op_gradients_write(FileWriter& writer, const OpGradients& gradients);

}  // namespace lca
