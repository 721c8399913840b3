#pragma once
/// The weights of a decoder, bound to a checkpoint's tensors.

#include <lca/method.h>
#include <lca/model.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/workspace.h"
#include "formats/adapter.h"
#include "formats/checkpoint.h"
#include "ops/linear.h"

namespace lca {

/// SwiGLU: down(silu(gate(x)) · up(x)).
struct FeedForwardWeights {
  Linear gate, up, down;
};

/// One layer. Weights that an architecture does not have stay empty.
struct DecoderLayer {
  const float* attention_norm = nullptr;
  Linear q;                          ///< GQA, and MLA without query compression
  Linear q_a, q_b;                   ///< MLA with it: q_b(norm(q_a(x)))
  const float* q_a_norm = nullptr;   ///< [query latent]
  Linear k, v;                       ///< GQA
  Linear kv_a;                       ///< MLA: latent and RoPE key
  const float* kv_a_norm = nullptr;  ///< [d_c]
  LayerWeights up_projections;       ///< MLA: kv_b split in two, unpacked
  Linear o;
  const float* feed_forward_norm = nullptr;
  FeedForwardWeights feed_forward;          ///< dense layers, and the shared experts of others
  Linear router;                            ///< layers with experts
  std::vector<FeedForwardWeights> experts;  ///< the same
};

/// All weights. Matrices point into the checkpoint's and the adapter's memory; those that were
/// converted are in `owned`.
struct DecoderWeights {
  PackedMatrix embedding;  ///< [vocabulary, hidden]
  std::vector<DecoderLayer> layers;
  const float* norm = nullptr;
  Linear head;
  std::int64_t parameters = 0;
  std::deque<AlignedBytes> owned;
};

/// How a matrix is used.
enum class MatrixRole : std::uint8_t { embedding, router, linear, head };

/// Calls visit(MatrixRole, Linear&) for every linear layer of the weights; const if they are.
template <typename Weights, typename Visit>
void linears_visit(Weights& weights, const Visit& visit) {
  const auto linear = [&](auto& layer, MatrixRole role = MatrixRole::linear) {
    if (!layer.empty()) visit(role, layer);
  };
  const auto feed_forward = [&](auto& part) {
    for (auto* layer : {&part.gate, &part.up, &part.down}) linear(*layer);
  };
  for (auto& layer : weights.layers) {
    for (auto* part :
         {&layer.q, &layer.q_a, &layer.q_b, &layer.k, &layer.v, &layer.kv_a, &layer.o}) {
      linear(*part);
    }
    linear(layer.router, MatrixRole::router);
    feed_forward(layer.feed_forward);
    for (auto& expert : layer.experts) feed_forward(expert);
  }
  linear(weights.head, MatrixRole::head);
}

/// Calls visit(MatrixRole, PackedMatrix&) for every matrix of the weights, the embedding first.
template <typename Weights, typename Visit>
void matrices_visit(Weights& weights, const Visit& visit) {
  visit(MatrixRole::embedding, weights.embedding);
  linears_visit(weights, [&](MatrixRole role, auto& layer) { visit(role, layer.weight); });
}

/// Finds and checks every tensor, and binds the adapter's updates (null: none). Throws Error naming
/// the first tensor that is missing, has the wrong shape, or holds a NaN or an infinity, and the
/// first module of the adapter that the model does not have. `dtype` is that of MLA's
/// up-projections. With `packing` the plain weights of linear layers and the embedding are packed
/// into `owned`, and the file's pages are released. `progress` receives 0 … 1.
DecoderWeights decoder_weights(Context& context, const Checkpoint& checkpoint,
                               const Adapter* adapter, DType dtype, WeightPacking packing,
                               const std::function<void(double)>& progress);

}  // namespace lca
