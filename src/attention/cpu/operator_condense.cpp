// Condensation as an operator: all groups of packed documents, a batch at a time (mechanism §3–§5).
// Memory beside the tensors: the score vectors of one batch a thread.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/operator.h"
#include "attention/cpu/operator_groups.h"
#include "core/context_state.h"
#include "ops/matmul.h"

namespace lca::cpu {

namespace {

/// One worker's scratch memory.
struct CondenseScratch {
  ScoreVectors vectors;
  float* weight;      ///< one head of W_uk in float32
  float* alpha;       ///< [g]
  float* semantic;    ///< a representative before it is rounded
  float* positional;  ///< the same
  float* row;         ///< [2][d_positional], for rotated rows

  CondenseScratch(Carver& carver, const LayerSpec& spec)
      : vectors(carver, spec, condense_batch_groups(spec.settings)),
        weight(carver.take<float>(ScoreVectors::weight_floats(spec))),
        alpha(carver.take<float>(spec.settings.group)),
        semantic(carver.take<float>(spec.shape.d_semantic())),
        positional(carver.take<float>(spec.shape.d_positional())),
        row(carver.take<float>(2 * spec.shape.d_positional())) {}
};

/// One representative of one KV head.
void representative_make(const GroupMembers& members, std::int64_t summary,
                         const CondenseScratch& scratch, const CondenseOutputs& out) {
  const GroupPlan& plan = members.plan;
  const Settings& settings = plan.layer.settings;
  const std::int64_t j = members.document.first_group + members.group;
  const std::int64_t kv = members.kv;
  const std::span<float> alpha(scratch.alpha, static_cast<std::size_t>(settings.group));
  for (std::int64_t k = 0; k < settings.group; ++k) {
    const PoolRow semantic = members.semantic(k);
    const PoolRow positional = members.positional(k);
    alpha[static_cast<std::size_t>(k)] =
        scratch.vectors
            .score(summary, kv, semantic.data, semantic.dtype, positional.data, positional.dtype)
            .value;
  }
  const std::int64_t at = j * plan.shape.kv_heads + kv;
  if (out.scores != nullptr) {
    std::copy(alpha.begin(), alpha.end(), out.scores + at * settings.group);
  }
  const GroupWeights weights = group_weights(alpha);

  const bool has_mass = settings.mass == Mass::score;
  pool_rows(
      settings.semantic_pool, [&](std::int64_t k) { return members.semantic(k); }, weights.best,
      alpha, scratch.semantic);
  // The mass is that of the keys at token positions (mechanism §10).
  if (has_mass || !plan.rotates) {
    pool_rows(
        settings.positional_pool, [&](std::int64_t k) { return members.positional(k); },
        weights.best, alpha, scratch.positional);
  }
  float bias = settings.mass == Mass::count ? std::log(static_cast<float>(settings.group)) : 0.0F;
  if (has_mass) {
    const float own =
        scratch.vectors
            .score(summary, kv, scratch.semantic, DType::f32, scratch.positional, DType::f32)
            .value;
    bias = weights.top + std::log(weights.sum) - own;
  }
  if (plan.rotates) {
    pool_rows(
        settings.positional_pool, [&](std::int64_t k) { return members.rotated(k); }, weights.best,
        alpha, scratch.positional);
  }
  out.bias[at] = bias;
  vector_store(scratch.semantic, plan.shape.d_semantic(), out.semantic.dtype,
               out.semantic.row(j, kv));
  vector_store(scratch.positional, plan.shape.d_positional(), out.positional.dtype,
               out.positional.row(j, kv));
}

}  // namespace

void condense(const OperatorSpec& spec, const CondenseInputs& in, const CondenseOutputs& out,
              Context& context) {
  const ContextUse use(context);
  const GroupPlan plan(spec, in);
  if (plan.groups == 0) return;
  if (plan.layer.shape.form == Form::mla) matmul_prepare();
  Carver count;
  for (int i = 0; i < context.threads(); ++i) CondenseScratch(count, plan.layer);
  Carver carver(context.state().workspace.prepare(count.used()));
  std::vector<CondenseScratch> scratch;
  scratch.reserve(static_cast<std::size_t>(context.threads()));
  for (int i = 0; i < context.threads(); ++i) scratch.emplace_back(carver, plan.layer);
  context.state().pool.run(std::ssize(plan.batches), [&](std::int64_t task, int worker) {
    const GroupBatch& batch = plan.batches[static_cast<std::size_t>(task)];
    const GroupDocument& document = plan.documents[batch.document];
    const CondenseScratch& own = scratch[static_cast<std::size_t>(worker)];
    // In `prompt` mode all groups have the same summary.
    const std::int64_t summaries = plan.prompt ? 1 : batch.count;
    for (std::int64_t i = 0; i < summaries; ++i) {
      plan.average(document, plan.prompt ? 0 : batch.first + i, own.vectors, i);
    }
    own.vectors.make(in.w_uk, 0, summaries, own.weight);
    for (std::int64_t i = 0; i < batch.count; ++i) {
      for (std::int64_t kv = 0; kv < plan.shape.kv_heads; ++kv) {
        const GroupMembers members{plan, document, batch.first + i,
                                   kv,   own.row,  own.row + plan.shape.d_positional()};
        representative_make(members, plan.prompt ? 0 : i, own, out);
      }
    }
  });
}

}  // namespace lca::cpu
