#pragma once
/// A language model from disk: a Hugging Face folder or a GGUF file, as it is.

#include <lca/chat.h>
#include <lca/file_access.h>
#include <lca/memory.h>
#include <lca/settings.h>
#include <lca/shape.h>
#include <lca/tensor.h>
#include <lca/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lca {

/// What products of activations and weights are computed in. `f32` is the reference; `bf16` rounds
/// both factors (sums stay float32) and stores the cache in bf16.
enum class Precision : std::uint8_t { automatic, f32, bf16 };

/// What becomes of the weights of linear layers while a model is loaded: they stay as on disk, or
/// plain numbers (F32, F16, BF16) are packed into ggml's blocks of 8 or 4 bits a value.
enum class WeightPacking : std::uint8_t { keep, q8_0, q4_0 };

/// How to load a model.
struct ModelOptions {
  std::string path;  ///< a folder or a .gguf file
  /// Instead of a path, for measurements: the name of a published model (lca/shape.h), whose
  /// weights are random numbers made on the GPU, and whose settings are preset `training`.
  std::string random;
  /// Of such a model: how often the first expert of a layer is chosen, in multiples of the mean.
  double random_skew = 1;
  std::string adapter;  ///< a PEFT LoRA folder; empty: none
  /// Where it runs: "cpu", "cuda", "cuda:1", or "auto", a GPU where there is one that can.
  std::string device = "auto";
  int threads = 0;  ///< that load it; 0: one per core this process may use
  FileAccess access = FileAccess::map;
  /// `automatic`: bf16. Where the processor does not multiply it, factors are rounded and
  /// multiplied as float32, so that sessions move between processors.
  Precision precision = Precision::automatic;
  WeightPacking weights = WeightPacking::keep;
  GroupStorage groups = GroupStorage::bf16;  ///< other than bf16: on a GPU only
  CacheStorage cache = CacheStorage::plain;  ///< other than plain: on the CPU only
  /// Told how much is done, 0 … 1; what it throws ends the loading.
  std::function<void(double)> progress;
};

/// Facts about a loaded model.
struct ModelInfo {
  std::string path;          ///< absolute
  std::string format;        ///< "huggingface", "gguf" or "random"
  std::string architecture;  ///< "llama", "qwen2", "deepseek_v2", "minicpm3"
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;       ///< positions it was trained for
  std::int64_t parameters = 0;    ///< tied ones once; an adapter's not counted
  std::size_t weight_bytes = 0;   ///< as they are kept: packed where that was asked for
  std::string adapter;            ///< the folder of its adapter, absolute; empty: none
  std::size_t adapter_bytes = 0;  ///< beside the weights; 0 on a GPU, where it is merged into them
  AttentionShape attention;
  double softmax_scale = 0;
  Precision precision = Precision::f32;  ///< what `automatic` became
  WeightPacking weights = WeightPacking::keep;
  GroupStorage groups = GroupStorage::bf16;
  CacheStorage cache = CacheStorage::plain;
  bool trained = false;        ///< it, or its adapter, was fine-tuned for its `settings`
  std::string device = "cpu";  ///< where it runs: "cpu", "cuda:0", …
  std::vector<std::int32_t> end_tokens;
};

/// An immutable model. Thread-safe: any number of sessions in any number of threads may share it.
class Model {
 public:
  /// Opens, checks and binds every tensor; throws Error naming what is missing or wrong.
  static std::shared_ptr<const Model> load(const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const;
  /// The adapter's settings, else the checkpoint's, else preset `training-free`: one per layer.
  const std::vector<Settings>& settings() const;
  const Tokenizer& tokenizer() const;
  /// How conversations with it are written: in the format of its chat template. Throws Error
  /// (incompatible) where that is of an unknown kind; `chat` with a format goes around it.
  ChatTemplate chat() const;
  ChatTemplate chat(ChatFormat format) const;
  /// Tokens that end a reply: the checkpoint's and, where it has a known one, its chat format's.
  const std::vector<std::int32_t>& end_tokens() const;
  /// What it holds: its weights.
  Memory memory() const;
  /// The type its caches store, but for rows of 8 bits: bf16 or f32, after the precision.
  DType cache_dtype() const;
  /// 32 hexadecimal digits that tell checkpoints and their adapters apart: configuration, every
  /// tensor's name, shape, type and samples of its bytes; not where the files lie, nor how they are
  /// computed with. Computed when first asked for.
  const std::string& fingerprint() const;

  struct State;
  const State& state() const { return *state_; }

 private:
  explicit Model(std::unique_ptr<State> state);
  static std::shared_ptr<const Model> load_unguarded(const ModelOptions& options);
  std::unique_ptr<State> state_;
};

}  // namespace lca
