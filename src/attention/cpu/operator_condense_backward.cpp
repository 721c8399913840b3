// The backward pass of condensation (mechanism §8), in phases; each divides its work over the
// threads, and every sum has one order:
//   1. summaries: mean queries and score vectors again;
//   2. groups: gradients of the members' rows, stored, and of the group's score vectors, kept;
//   3. heads (MLA): the gradient of W_uk, summed over the summaries in order;
//   4. summaries: gradients of mean queries from those of score vectors (MLA: products with W_uk);
//   5. rows: each query adds its summaries up in order; rows in no group become 0.
// α follows the scores that the forward pass wrote, so that both make the same choices.
//
// Memory beside the tensors, in floats a summary: H·(d_n + d_r) for mean queries, and twice the
// score vectors, d_c + d_r where heads are summed (GQA: KV·d), times the heads where one is chosen.

#include <algorithm>
#include <vector>

#include "attention/cpu/operator.h"
#include "attention/cpu/operator_groups.h"
#include "attention/cpu/pool_grad.h"
#include "core/context_state.h"
#include "ops/matmul.h"

namespace lca::cpu {

namespace {

/// Rows of tokens in one task.
constexpr std::int64_t kGradRows = 64;
/// Summaries in one product of the gradient of W_uk.
constexpr std::int64_t kWeightSummaries = 256;

/// Stores a row of a gradient, or adds it to what is there; `old` is scratch of as many floats.
void grad_store(float* row, std::int64_t width, const Tensor& to, std::int64_t i, std::int64_t j,
                bool accumulate, float* old) {
  if (accumulate) {
    vector_widen(to.row(i, j), to.dtype, width, old);
    vector_add_scaled(1, old, DType::f32, width, row);
  }
  vector_store(row, width, to.dtype, to.row(i, j));
}

class CondenseBackward {
 public:
  CondenseBackward(const GroupPlan& plan, const CondenseOutputs& out,
                   const CondenseOutputGrads& out_grads, const CondenseInputGrads& in_grads,
                   Context& context)
      : plan_(plan),
        shape_(plan.shape),
        settings_(plan.layer.settings),
        mla_(shape_.form == Form::mla),
        out_(out),
        out_grads_(out_grads),
        grads_(in_grads),
        context_(context) {}

  void run() {
    if (mla_) matmul_prepare();
    Carver count;
    [[maybe_unused]] const Memory planned(count, plan_, context_.threads());
    Carver carver(context_.state().workspace.prepare(count.used()));
    const Memory memory(carver, plan_, context_.threads());
    memory_ = &memory;
    each(plan_.summary_batches, &CondenseBackward::make_vectors);
    each(plan_.batches, &CondenseBackward::groups_backward);
    if (plan_.prompt) sum_over_groups();
    if (mla_) {
      if (!grads_.w_uk.empty()) {
        context_.state().pool.run(shape_.heads, [&](std::int64_t head, int worker) {
          weight_backward(head, memory.workers[static_cast<std::size_t>(worker)]);
        });
      }
      each(plan_.summary_batches, &CondenseBackward::means_backward);
    }
    std::vector<GroupBatch> rows;
    for (std::size_t i = 0; i < plan_.documents.size(); ++i) {
      const std::int64_t length = plan_.documents[i].length;
      for (std::int64_t row = 0; row < length; row += kGradRows) {
        rows.push_back({i, row, std::min(kGradRows, length - row)});
      }
    }
    each(rows, &CondenseBackward::rows_backward);
  }

 private:
  /// One worker's scratch memory.
  struct Worker {
    float* weight;            ///< [d_n][d_c]
    float* weight_grad;       ///< the same
    float* transposed;        ///< [d_n][kWeightSummaries]
    float* alpha;             ///< [g]
    float* score_grad;        ///< [g]: of α, then of the scores
    float* row[8];            ///< one row of any width each
    std::int32_t* winner[3];  ///< one index a column each

    Worker(Carver& carver, const GroupPlan& plan) {
      const AttentionShape& shape = plan.shape;
      weight = carver.take<float>(ScoreVectors::weight_floats(plan.layer));
      weight_grad = carver.take<float>(ScoreVectors::weight_floats(plan.layer));
      transposed = carver.take<float>(shape.d_nope * kWeightSummaries);
      alpha = carver.take<float>(plan.layer.settings.group);
      score_grad = carver.take<float>(plan.layer.settings.group);
      const std::int64_t width = std::max({shape.d_semantic(), shape.d_positional(), shape.d_nope});
      for (float*& one : row) one = carver.take<float>(width);
      for (std::int32_t*& one : winner) one = carver.take<std::int32_t>(width);
    }
  };

  struct Memory {
    ScoreVectors vectors;
    float* semantic_grad;    ///< [vectors][groups][d_c], MLA
    float* positional_grad;  ///< [groups][KV][vectors][d_rope]
    std::vector<Worker> workers;

    Memory(Carver& carver, const GroupPlan& plan, int threads)
        : vectors(carver, plan.layer, plan.summaries) {
      const AttentionShape& shape = plan.shape;
      semantic_grad = carver.take<float>(vectors.count() * plan.groups * shape.d_latent);
      positional_grad =
          carver.take<float>(plan.groups * shape.kv_heads * vectors.count() * shape.d_rope);
      for (int i = 0; i < threads; ++i) workers.emplace_back(carver, plan);
    }
  };

  void each(const std::vector<GroupBatch>& batches,
            void (CondenseBackward::*body)(const GroupBatch&, const Worker&)) {
    context_.state().pool.run(std::ssize(batches), [&](std::int64_t task, int worker) {
      (this->*body)(batches[static_cast<std::size_t>(task)],
                    memory_->workers[static_cast<std::size_t>(worker)]);
    });
  }

  const ScoreVectors& vectors() const { return memory_->vectors; }
  float* semantic_grad(std::int64_t group, std::int64_t vector) const {
    return memory_->semantic_grad + (vector * plan_.groups + group) * shape_.d_latent;
  }
  float* positional_grad(std::int64_t group, std::int64_t kv, std::int64_t vector) const {
    return memory_->positional_grad +
           ((group * shape_.kv_heads + kv) * vectors().count() + vector) * shape_.d_rope;
  }

  void make_vectors(const GroupBatch& batch, const Worker& worker) {
    const GroupDocument& document = plan_.documents[batch.document];
    const std::int64_t first = document.first_summary + batch.first;
    for (std::int64_t i = 0; i < batch.count; ++i) {
      plan_.average(document, batch.first + i, vectors(), first + i);
    }
    vectors().make(plan_.in.w_uk, first, batch.count, worker.weight);
  }

  void groups_backward(const GroupBatch& batch, const Worker& worker) {
    const GroupDocument& document = plan_.documents[batch.document];
    for (std::int64_t j = batch.first; j < batch.first + batch.count; ++j) {
      for (std::int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
        group_backward({plan_, document, j, kv, worker.row[0], worker.row[1]}, worker);
      }
    }
  }

  /// One group of one KV head.
  void group_backward(const GroupMembers& members, const Worker& worker) {
    const GroupDocument& document = members.document;
    const std::int64_t j = document.first_group + members.group;
    const std::int64_t kv = members.kv;
    const std::int64_t summary = document.first_summary + (plan_.prompt ? 0 : members.group);
    const std::int64_t g = settings_.group;
    const std::int64_t d_semantic = shape_.d_semantic();
    const std::int64_t d_positional = shape_.d_positional();
    const auto semantic = [&](std::int64_t k) { return members.semantic(k); };
    const auto positional = [&](std::int64_t k) { return members.positional(k); };
    const auto rotated = [&](std::int64_t k) { return members.rotated(k); };

    const std::span<float> alpha(worker.alpha, static_cast<std::size_t>(g));
    std::copy_n(out_.scores + (j * shape_.kv_heads + kv) * g, g, alpha.begin());
    const GroupWeights weights = group_weights(alpha);
    float* semantic_out = worker.row[2];    // gradient of the pooled semantic row
    float* positional_out = worker.row[3];  // of the pooled positional row at token positions
    float* kept_out = worker.row[4];        // of the row that is kept, where it is another
    float* pooled = worker.row[5];
    float* other = worker.row[6];
    const auto out_row = [&](const ConstTensor& from, std::int64_t width, float* to) {
      vector_widen(from.row(j, kv), from.dtype, width, to);
    };
    out_row(out_grads_.semantic, d_semantic, semantic_out);
    out_row(out_grads_.positional, d_positional, plan_.rotates ? kept_out : positional_out);
    if (plan_.rotates) std::fill_n(positional_out, d_positional, 0.0F);

    for (std::int64_t vector = 0; vector < vectors().count(); ++vector) {
      if (mla_) std::fill_n(semantic_grad(j, vector), d_semantic, 0.0F);
      std::fill_n(positional_grad(j, kv, vector), d_positional, 0.0F);
    }
    float bias_grad = 0;
    // A group of one token is its own representative: its b is 0 whatever the scores are.
    const bool has_mass = settings_.mass == Mass::score && out_grads_.bias != nullptr && g > 1;
    if (has_mass) {
      // b = log Σ exp(s) − s_rep: first what goes through the representative's own score.
      bias_grad = out_grads_.bias[j * shape_.kv_heads + kv];
      pool_rows(settings_.semantic_pool, semantic, weights.best, alpha, pooled);
      pool_rows(settings_.positional_pool, positional, weights.best, alpha, other);
      score_backward(j, summary, kv, -bias_grad, {pooled, DType::f32, d_semantic},
                     {other, DType::f32, d_positional}, semantic_out, positional_out);
    }

    const PoolGrad semantic_pool(settings_.semantic_pool, semantic_out, d_semantic, weights, alpha,
                                 worker.winner[0]);
    const PoolGrad positional_pool(settings_.positional_pool, positional_out, d_positional, weights,
                                   alpha, worker.winner[1]);
    const PoolGrad kept_pool(settings_.positional_pool, kept_out, d_positional, weights, alpha,
                             worker.winner[2]);
    const bool has_token_part = !plan_.rotates || has_mass;
    float* score_grad = worker.score_grad;
    std::fill_n(score_grad, g, 0.0F);
    semantic_pool.look(semantic, pooled, score_grad);
    if (has_token_part) positional_pool.look(positional, pooled, score_grad);
    if (plan_.rotates) kept_pool.look(rotated, pooled, score_grad);
    // Softmax, and the log-sum-exp of b. Counted from the best row's, so that nothing cancels where
    // that row has nearly all the weight.
    const float best_grad = score_grad[weights.best];
    float mean = 0;
    for (std::int64_t k = 0; k < g; ++k) {
      score_grad[k] -= best_grad;
      mean += alpha[static_cast<std::size_t>(k)] * score_grad[k];
    }
    for (std::int64_t k = 0; k < g; ++k) {
      score_grad[k] = alpha[static_cast<std::size_t>(k)] * (score_grad[k] - mean + bias_grad);
    }

    float* semantic_row = pooled;
    float* positional_row = other;
    for (std::int64_t k = 0; k < g; ++k) {
      std::fill_n(semantic_row, d_semantic, 0.0F);
      std::fill_n(positional_row, d_positional, 0.0F);
      semantic_pool.add(k, semantic_row);
      if (plan_.rotates) {
        float* kept = worker.row[0];
        std::fill_n(kept, d_positional, 0.0F);
        kept_pool.add(k, kept);
        const RowRotation rotation = plan_.rotation();
        vector_angles(rotation, -members.difference(k), worker.row[1]);
        vector_rotate(rotation, worker.row[1], 1, kept, DType::f32, d_positional, positional_row);
      }
      if (has_token_part) positional_pool.add(k, positional_row);
      score_backward(j, summary, kv, score_grad[k], semantic(k), positional(k), semantic_row,
                     positional_row);
      if (!grads_.semantic.empty()) {
        grad_store(semantic_row, d_semantic, grads_.semantic, members.token(k), kv,
                   grads_.accumulate, worker.row[7]);
      }
      if (!grads_.positional.empty()) {
        grad_store(positional_row, d_positional, grads_.positional, members.token(k), kv,
                   grads_.accumulate, worker.row[7]);
      }
    }
  }

  /// The gradient `grad` of one entry's score: to the entry's own rows, and to the score vectors.
  void score_backward(std::int64_t j, std::int64_t summary, std::int64_t kv, float grad,
                      const PoolRow& semantic, const PoolRow& positional, float* semantic_row,
                      float* positional_row) {
    std::int64_t vector = 0;
    if (vectors().count() > 1) {
      vector =
          vectors()
              .score(summary, kv, semantic.data, semantic.dtype, positional.data, positional.dtype)
              .vector;
    }
    const float factor = grad * vectors().factor();
    vector_add_scaled(factor, positional.data, positional.dtype, positional.width,
                      positional_grad(j, kv, vector));
    vector_add_scaled(factor, vectors().positional(summary, kv, vector), DType::f32,
                      positional.width, positional_row);
    if (!mla_) return;
    vector_add_scaled(factor, semantic.data, semantic.dtype, semantic.width,
                      semantic_grad(j, vector));
    vector_add_scaled(factor, vectors().semantic(summary, vector), DType::f32, semantic.width,
                      semantic_row);
  }

  /// `prompt`: all groups of the one document share its summary; group 0 takes their sum.
  void sum_over_groups() {
    for (std::int64_t vector = 0; vector < vectors().count(); ++vector) {
      for (std::int64_t j = 1; j < plan_.groups; ++j) {
        if (mla_) {
          vector_add_scaled(1, semantic_grad(j, vector), DType::f32, shape_.d_latent,
                            semantic_grad(0, vector));
        }
        for (std::int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
          vector_add_scaled(1, positional_grad(j, kv, vector), DType::f32, shape_.d_rope,
                            positional_grad(0, kv, vector));
        }
      }
    }
  }

  std::int64_t vector_of(std::int64_t head) const {
    return vectors().count() == 1 ? 0 : head % shape_.heads_per_kv();
  }

  /// MLA: Σ over summaries of the mean query times the gradient of its score vector.
  void weight_backward(std::int64_t head, const Worker& worker) {
    const std::int64_t d_nope = shape_.d_nope;
    const std::int64_t d_latent = shape_.d_latent;
    if (plan_.summaries == 0) std::fill_n(worker.weight_grad, d_nope * d_latent, 0.0F);
    for (std::int64_t first = 0; first < plan_.summaries; first += kWeightSummaries) {
      const std::int64_t count = std::min(kWeightSummaries, plan_.summaries - first);
      for (std::int64_t i = 0; i < count; ++i) {
        const float* mean = vectors().mean_nope(head, first + i);
        for (std::int64_t k = 0; k < d_nope; ++k) worker.transposed[k * count + i] = mean[k];
      }
      matmul_nn({worker.transposed, d_nope, count, count},
                {semantic_grad(first, vector_of(head)), count, d_latent, d_latent},
                worker.weight_grad, d_latent, first > 0);
    }
    for (std::int64_t k = 0; k < d_nope; ++k) {
      grad_store(worker.weight_grad + k * d_latent, d_latent, grads_.w_uk, head, k,
                 grads_.accumulate, worker.row[7]);
    }
  }

  /// MLA: gradients of the mean queries' nope parts, in the place of those.
  void means_backward(const GroupBatch& batch, const Worker& worker) {
    if (grads_.q_nope.empty()) return;
    const std::int64_t first = plan_.documents[batch.document].first_summary + batch.first;
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const HeadWeight weight = head_weight(plan_.in.w_uk, head, worker.weight);
      matmul_nt(
          {semantic_grad(first, vector_of(head)), batch.count, shape_.d_latent, shape_.d_latent},
          {weight.data, shape_.d_nope, shape_.d_latent, weight.stride},
          vectors().mean_nope(head, first), shape_.d_nope);
    }
  }

  /// Queries that belong to summaries, and entries that belong to no group.
  void rows_backward(const GroupBatch& batch, const Worker& worker) {
    const GroupDocument& document = plan_.documents[batch.document];
    const std::int64_t sink = plan_.layout.group_range(0).begin;
    const std::int64_t condensed =
        document.groups == 0 ? sink : plan_.layout.group_range(document.groups - 1).end;
    // Summaries move on with their number: those that end before a row are left behind.
    std::int64_t begin = 0;
    for (std::int64_t t = batch.first; t < batch.first + batch.count; ++t) {
      while (begin < document.summaries && plan_.summary_range(document, begin).end <= t) ++begin;
      std::int64_t end = begin;
      while (end < document.summaries && plan_.summary_range(document, end).begin <= t) ++end;
      query_backward(document, t, {begin, end}, worker);
      const bool in_group = sink <= t && t < condensed;
      if (in_group || grads_.accumulate) continue;
      zero_row(grads_.semantic, document.start + t, worker);
      zero_row(grads_.positional, document.start + t, worker);
    }
  }

  void query_backward(const GroupDocument& document, std::int64_t t, const Range& summaries,
                      const Worker& worker) {
    if (summaries.size() == 0) {
      if (grads_.accumulate) return;
      zero_row(grads_.q_nope, document.start + t, worker);
      zero_row(grads_.q_rope, document.start + t, worker);
      return;
    }
    const auto sum = [&](const Tensor& to, std::int64_t head, std::int64_t width,
                         const auto& from) {
      if (to.empty() || width == 0) return;
      float* row = worker.row[0];
      std::fill_n(row, width, 0.0F);
      for (std::int64_t i = summaries.begin; i < summaries.end; ++i) {
        const auto size = static_cast<float>(plan_.summary_range(document, i).size());
        vector_add_scaled(1.0F / size, from(document.first_summary + i), DType::f32, width, row);
      }
      grad_store(row, width, to, document.start + t, head, grads_.accumulate, worker.row[7]);
    };
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      sum(grads_.q_nope, head, shape_.d_nope,
          [&](std::int64_t summary) { return vectors().mean_nope(head, summary); });
      sum(grads_.q_rope, head, shape_.d_rope, [&](std::int64_t summary) {
        return positional_grad(summary, head / shape_.heads_per_kv(), vector_of(head));
      });
    }
  }

  static void zero_row(const Tensor& to, std::int64_t row, const Worker& worker) {
    if (to.empty()) return;
    std::fill_n(worker.row[0], to.shape[2], 0.0F);
    for (std::int64_t column = 0; column < to.shape[1]; ++column) {
      vector_store(worker.row[0], to.shape[2], to.dtype, to.row(row, column));
    }
  }

  const GroupPlan& plan_;
  const AttentionShape& shape_;
  const Settings& settings_;
  bool mla_;
  const CondenseOutputs& out_;
  const CondenseOutputGrads& out_grads_;
  const CondenseInputGrads& grads_;
  Context& context_;
  const Memory* memory_ = nullptr;
};

}  // namespace

void condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                       const CondenseInputGrads& in_grads, Context& context) {
  const ContextUse use(context);
  CondenseBackward(GroupPlan(spec, in), out, out_grads, in_grads, context).run();
}

}  // namespace lca::cpu
