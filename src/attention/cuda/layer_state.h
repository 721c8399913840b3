#pragma once
/// What a cuda::Layer holds on the GPU, and the pieces its calls are made of.

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/condense.h"
#include "attention/cuda/decode.h"
#include "attention/cuda/layer.h"
#include "attention/cuda/prefill.h"
#include "attention/cuda/session_rows.h"
#include "attention/cuda/transfer.h"

namespace lca::cuda {

struct Layer::State {
  State(const LayerSpec& spec, const LayerWeights& weights, int sequences, std::int64_t longest,
        const LayerOptions& options);

  void prefill(std::span<const HostRun> runs);
  void decode(std::span<const HostRun> runs);
  HostGroups groups(int sequence);

 private:
  struct Sequence {
    std::int64_t length = 0;
    bf16* semantic = nullptr;  // [sink + ring][KV][d], of ring_semantic_
    bf16* positional = nullptr;
    Buffer summary;                   // [n_q][KV][summary_width] float
    Buffer recent_nope, recent_rope;  // ring of the last n_q − 1 queries, [recent_][H][d]
    Buffer pages;                     // int32
    std::vector<std::int32_t> page_list;
  };

  /// A run's place in the workspace of a prefill. Positions [0, sink) and [sink + gone, after) of
  /// its sequence are rows of `exact`; queries of positions [before − recent, after) are rows of q.
  struct Piece {
    const HostRun* run = nullptr;
    Sequence* sequence = nullptr;
    std::int64_t before = 0, after = 0;  // lengths
    std::int64_t groups_before = 0, groups_after = 0;
    std::int64_t gone = 0;
    std::int64_t recent = 0;
    std::int64_t query_row = 0;  // of position before − recent
    std::int64_t exact_row = 0, group_row = 0;

    std::int64_t tokens() const { return after - before; }
    std::int64_t query_rows() const { return recent + tokens(); }
    std::int64_t exact_rows() const { return after - gone; }
  };
  struct Rows {
    std::int64_t query = 0, exact = 0, group = 0;
  };

  void pool_make(int sequences, std::int64_t pages_each);
  void sequences_make(int sequences, std::int64_t pages_each);
  double bytes_planned(int sequences, std::int64_t pages_each) const;
  void check_run(const HostRun& run, std::int64_t longest_run) const;

  /// Gives every listed sequence pages for its representatives at `length` and one more.
  void pages_require(std::span<Sequence* const> list, std::span<const std::int64_t> lengths);

  std::vector<Piece> pieces_plan(std::span<const HostRun> runs, Rows& rows);
  void workspace_make(const Rows& rows);
  void queries_load(const Piece& piece);
  void entries_load(const Piece& piece);
  void groups_condense(const Piece& piece);
  void keys_rebuild(const bf16* latents, std::int64_t rows, bf16* nope, bf16* value);
  void attend(std::span<const Piece> pieces, const Rows& rows);
  void entries_keep(const Piece& piece);
  void queries_keep(const Piece& piece);
  void recent_keep(Sequence& sequence, std::int64_t first, std::int64_t end, const bf16* nope,
                   const bf16* rope);
  QueryRows query_rows(const Piece& piece) const;
  /// Reduced queries of `count` groups from `first` on: [count][KV][summary_width].
  const float* summaries(const Layout& law, std::int64_t prompt, const QueryRows& queries,
                         std::int64_t first, std::int64_t count);
  HeadRows heads_view(const bf16* data, std::int64_t heads, std::int64_t width) const;
  bool condensing() const { return spec_.settings.method == MethodKind::lca; }
  bool is_mla() const { return shape_.form == Form::mla; }
  std::int64_t semantic_values() const { return shape_.kv_heads * shape_.d_semantic(); }
  std::int64_t positional_values() const { return shape_.kv_heads * shape_.d_positional(); }

  LayerSpec spec_;
  AttentionShape shape_;
  Layout layout_;
  LayerOptions options_;
  Kernels kernels_;
  float scale_;
  std::int64_t longest_;
  std::int64_t ring_;           // rows after the sink
  std::int64_t recent_;         // raw queries kept
  std::int64_t summary_width_;  // of all KV heads
  Stream stream_;
  Transfer transfer_;

  Buffer w_uk_, w_uv_;
  GroupPool pool_;
  PoolMemory pool_memory_;
  std::int32_t pages_left_ = 0;  // pages below this number belong to nobody
  std::vector<Sequence> sequences_;
  Buffer ring_semantic_, ring_positional_;  // of all sequences
  ExactPool rings_;
  Buffer views_;

  // Workspace of prefill; see workspace_make for the shapes.
  Buffer nope_, rope_, out_, lse_, exact_semantic_, exact_positional_, exact_nope_, exact_value_;
  Buffer group_semantic_, group_positional_, group_bias_, group_nope_, group_value_, runs_;
  // Of condensing, for one slice of groups.
  Buffer means_nope_, means_rope_, summary_, new_semantic_, new_positional_, new_bias_;
  // Of decoding.
  Buffer absorbed_, latent_, step_out_, workspace_;
  DecodePlan plan_;
  bool planned_ = false;
};

}  // namespace lca::cuda
