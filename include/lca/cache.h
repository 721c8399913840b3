#pragma once
/// The condensed cache of one attention layer and one sequence (mechanism §7).

#include <lca/settings.h>
#include <lca/shape.h>
#include <lca/tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace lca {

/// All that is fixed about one attention layer of one model.
struct LayerSpec {
  AttentionShape shape;
  Settings settings;
  DType dtype = DType::f32;  ///< what the cache stores, but for rows of 8 bits
  double scale = 0;          ///< softmax scale; 0 means shape.default_scale()
  Rotation rotation = {};    ///< needed where settings.positions is `entry`, else unused
  CacheStorage storage = CacheStorage::plain;

  /// Throws Error where shape, settings or scale are out of range.
  void validate() const;
  double softmax_scale() const { return scale > 0 ? scale : shape.default_scale(); }
  bool operator==(const LayerSpec&) const = default;
};

/// The law of size of mechanism §7: bytes a cache of `length` tokens holds, to the byte.
std::size_t cache_bytes(const LayerSpec& spec, std::int64_t length);

/// What a run of tokens leaves in the cache. RoPE and the latent norm are already applied.
struct Entries {
  ConstTensor semantic;    ///< MLA: c [L,1,d_c]; GQA: v [L,KV,d_v]
  ConstTensor positional;  ///< MLA: k_rope [L,1,d_r]; GQA: k [L,KV,d]

  /// Keys [L,KV,d] and values [L,KV,d_v].
  static Entries gqa(const ConstTensor& k, const ConstTensor& v) {
    return {.semantic = v, .positional = k};
  }
  /// Latents [L,1,d_c] and RoPE keys [L,1,d_r].
  static Entries mla(const ConstTensor& c, const ConstTensor& k_rope) {
    return {.semantic = c, .positional = k_rope};
  }
};

/// The queries of a run of tokens. RoPE is already applied.
struct Queries {
  ConstTensor nope;  ///< MLA: q_nope [L,H,d_n]; GQA: empty
  ConstTensor rope;  ///< MLA: q_rope [L,H,d_r]; GQA: q [L,H,d]

  /// Queries [L,H,d].
  static Queries gqa(const ConstTensor& q) { return {.nope = {}, .rope = q}; }
  /// Parts without and with position, [L,H,d_n] and [L,H,d_r].
  static Queries mla(const ConstTensor& q_nope, const ConstTensor& q_rope) {
    return {.nope = q_nope, .rope = q_rope};
  }
};

/// Receives the exact entries of a group at the moment it is condensed, for methods that recall
/// groups later. Rows are in the cache's dtype; those of 8 bits as the float32 values they stand
/// for.
class Archive {
 public:
  virtual ~Archive() = default;
  /// `entries` holds the g tokens of group `group`, whose first position is `position`.
  virtual void store(std::int64_t group, std::int64_t position, const Entries& entries) = 0;
};

/// One layer's memory of one sequence: representatives, sink, window, and the recent queries that
/// will score the next group. A method decides what enters and what leaves.
class Cache {
 public:
  explicit Cache(const LayerSpec& spec);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  const LayerSpec& spec() const;
  /// Tokens seen so far, n.
  std::int64_t length() const;
  /// Representatives held, m.
  std::int64_t groups() const;
  /// Bytes of representatives and exact tokens: the law of mechanism §7 once a run is complete.
  std::size_t bytes() const;
  /// Of these, bytes of representatives in pages that copies of the cache hold too.
  std::size_t shared_bytes() const;
  /// Everything else it holds: recent queries and spare capacity.
  std::size_t workspace_bytes() const;

  /// An independent copy that shares the representatives: they never change once written.
  Cache clone() const;
  /// The shortest prefix `truncate` accepts now.
  std::int64_t truncate_floor() const;
  /// Forgets everything after the first `length` tokens. Throws Error in `prompt` mode and where
  /// tokens of the prefix's window are condensed already.
  void truncate(std::int64_t length);

  /// Writes a self-describing byte stream with version and checksum.
  std::vector<std::byte> save() const;
  /// Reads what `save` wrote; throws Error on anything else.
  static Cache load(std::span<const std::byte> bytes);

  /// Hands every group that is condensed from now on to `archive` as well (null: off). The
  /// archive must outlive the cache or be replaced; copies and loaded caches start without one.
  void set_archive(Archive* archive);

  /// Representative j, as views: semantic [1,KV,d_semantic], positional [1,KV,d_positional]. Of 8
  /// bits, the float32 values it stands for, valid until this thread's next call.
  Entries representative(std::int64_t j) const;
  /// The logit bias of representative j for KV head `kv`: 0, log g or b_j.
  float bias(std::int64_t j, std::int64_t kv) const;

  struct State;
  State& state() { return *state_; }
  const State& state() const { return *state_; }

 private:
  explicit Cache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lca
