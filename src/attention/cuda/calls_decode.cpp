// A decode step of one layer: absorbed queries and their summaries, attention, values.

#include "attention/cuda/calls.h"
#include "attention/cuda/decode/decode_queries.h"
#include "ops/cuda/thin.h"

namespace lca::cuda {
namespace {

bool heads_apart(const LayerView& layer) {
  return layer.condenses() && layer.spec.settings.head_reduce == HeadReduce::max;
}

StepSpace carve(const LayerSpec& spec, const DecodePlan& plan, bool float_out,
                DeviceCarver& carver) {
  const AttentionShape& shape = spec.shape;
  const bool mla = shape.form == Form::mla;
  const std::int64_t batch = plan.batch;
  const std::int64_t heads = shape.heads;
  StepSpace space;
  space.kernel_space = carver.take<char>(static_cast<std::int64_t>(plan.workspace_bytes));
  space.rope = carver.take<bf16>(batch * heads * shape.d_rope);
  space.semantic = carver.take<bf16>(batch * shape.kv_heads * shape.d_semantic());
  space.positional = carver.take<bf16>(batch * shape.kv_heads * shape.d_positional());
  space.lse = carver.take<float>(batch * heads);
  if (mla && float_out) {
    space.out_float = carver.take<float>(batch * heads * shape.d_value);
  } else {
    space.out = carver.take<bf16>(batch * heads * shape.d_value);
  }
  if (!mla) return space;
  space.nope = carver.take<bf16>(batch * heads * shape.d_nope);
  space.absorbed = carver.take<bf16>(batch * heads * (shape.d_latent + shape.d_rope));
  space.latent = carver.take<bf16>(batch * heads * shape.d_latent);
  if (spec.settings.method == MethodKind::lca) {
    space.summary = carver.take<float>(batch * summary_width(shape, spec.settings.head_reduce));
    if (batch <= kThinRows && spec.settings.head_reduce != HeadReduce::max) {
      space.each = carver.take<float>(batch * heads * (shape.d_latent + shape.d_rope));
    }
  }
  return space;
}

/// A step of few rows: absorbed queries by the kernels that stream the weights. Where queries are
/// summarised they stay in float32, in `each` or as summaries of each head, and step_queries rounds
/// and adds them. False where there are no such kernels.
bool queries_absorb_thin(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
                         const Queue& queue) {
  const AttentionShape& shape = layer.spec.shape;
  const std::int64_t width = shape.d_latent + shape.d_rope;
  const bool apart = heads_apart(layer);
  if (layer.w_uk_turned == nullptr || (layer.condenses() && !apart && space.each == nullptr)) {
    return false;
  }
  Thin absorb;
  absorb.x = space.nope;
  absorb.w = layer.w_uk_turned;
  absorb.y_float = layer.condenses();
  absorb.y = !layer.condenses() ? static_cast<void*>(space.absorbed)
             : apart            ? space.summary
                                : space.each;
  absorb.rows = plan.batch;
  absorb.columns = static_cast<int>(shape.d_latent);
  absorb.inner = static_cast<int>(shape.d_nope);
  absorb.x_stride = shape.heads * shape.d_nope;
  absorb.w_stride = shape.d_nope;
  absorb.y_stride = shape.heads * width;
  absorb.batch = static_cast<int>(shape.heads);
  absorb.x_batch = shape.d_nope;
  absorb.w_batch = shape.d_latent * shape.d_nope;
  absorb.y_batch = width;
  if (!thin_fits(absorb)) return false;
  thin_multiply(absorb, queue);
  return true;
}

/// Head by head W_ukᵀ q into the latent parts of `absorbed`, or of float summaries of each head.
void queries_absorb(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
                    const ProductSpace& products, const Queue& queue) {
  const AttentionShape& shape = layer.spec.shape;
  const std::int64_t width = shape.d_latent + shape.d_rope;
  Product absorb;
  absorb.a = space.nope;
  absorb.b = layer.w_uk;
  absorb.c = space.absorbed;
  absorb.rows = plan.batch;
  absorb.columns = absorb.b_stride = shape.d_latent;
  absorb.inner = shape.d_nope;
  absorb.a_stride = shape.heads * shape.d_nope;
  absorb.c_stride = shape.heads * width;
  absorb.b_transposed = false;
  absorb.batch = static_cast<int>(shape.heads);
  absorb.a_batch = shape.d_nope;
  absorb.b_batch = shape.d_nope * shape.d_latent;
  absorb.c_batch = width;
  if (heads_apart(layer)) {
    absorb.c = space.summary;
    absorb.c_float = true;
  }
  products.multiply(absorb, queue);
  if (!layer.condenses() || heads_apart(layer)) return;
  // The sum over heads of the same products, in float32 all the way: q and W_uk as one long row and
  // one tall matrix.
  absorb.c = space.summary;
  absorb.c_float = true;
  absorb.inner = absorb.a_stride = shape.heads * shape.d_nope;
  absorb.c_stride = width;
  absorb.batch = 1;
  products.multiply(absorb, queue);
}

/// Outputs from attended latents: head by head W_uv.
void values_project(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
                    const ProductSpace& products, const Queue& queue) {
  const AttentionShape& shape = layer.spec.shape;
  if (layer.w_uk_turned != nullptr) {
    Thin thin;
    thin.x = space.latent;
    thin.w = layer.w_uv;
    thin.y_float = space.out_float != nullptr;
    thin.y = thin.y_float ? static_cast<void*>(space.out_float) : space.out;
    thin.rows = plan.batch;
    thin.columns = static_cast<int>(shape.d_value);
    thin.inner = static_cast<int>(shape.d_latent);
    thin.x_stride = shape.heads * shape.d_latent;
    thin.w_stride = shape.d_latent;
    thin.y_stride = shape.heads * shape.d_value;
    thin.batch = static_cast<int>(shape.heads);
    thin.x_batch = shape.d_latent;
    thin.w_batch = shape.d_value * shape.d_latent;
    thin.y_batch = shape.d_value;
    if (thin_fits(thin)) {
      thin_multiply(thin, queue);
      return;
    }
  }
  Product project;
  project.a = space.latent;
  project.b = layer.w_uv;
  project.c_float = space.out_float != nullptr;
  project.c = project.c_float ? static_cast<void*>(space.out_float) : space.out;
  project.rows = plan.batch;
  project.columns = shape.d_value;
  project.inner = project.b_stride = shape.d_latent;
  project.a_stride = shape.heads * shape.d_latent;
  project.c_stride = shape.heads * shape.d_value;
  project.batch = static_cast<int>(shape.heads);
  project.a_batch = shape.d_latent;
  project.b_batch = shape.d_value * shape.d_latent;
  project.c_batch = shape.d_value;
  products.multiply(project, queue);
}

}  // namespace

std::size_t step_space_bytes(const LayerSpec& spec, const DecodePlan& plan, bool float_out) {
  DeviceCarver carver;
  carve(spec, plan, float_out, carver);
  return carver.used();
}

StepSpace step_space(const LayerSpec& spec, const DecodePlan& plan, bool float_out, void* memory) {
  DeviceCarver carver(memory);
  return carve(spec, plan, float_out, carver);
}

void step_run(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
              const ProductSpace& products, const Queue& queue) {
  const LayerCache& cache = layer.cache;
  const bool thin = layer.mla() && queries_absorb_thin(layer, plan, space, queue);
  if (layer.mla() && !thin) queries_absorb(layer, plan, space, products, queue);
  StepQueries queries;
  queries.shape = layer.spec.shape;
  queries.reduce = layer.spec.settings.head_reduce;
  queries.summarise = layer.mla() && layer.condenses();
  queries.sessions = space.sessions;
  queries.batch = plan.batch;
  queries.nope = space.nope;
  queries.rope = space.rope;
  queries.absorbed = space.absorbed;
  queries.summary = space.summary;
  if (thin && layer.condenses() && !heads_apart(layer)) queries.each = space.each;
  queries.recent = cache.recent;
  step_queries(queries, queue);

  Decode step;
  step.shape = layer.spec.shape;
  step.settings = layer.spec.settings;
  step.rotation = cache.rotation;
  step.scale = static_cast<float>(layer.spec.softmax_scale());
  step.pool = cache.pool;
  step.exact = cache.exact;
  step.sessions = space.sessions;
  step.batch = plan.batch;
  step.queries = layer.mla() ? space.absorbed : space.rope;
  step.summary = space.summary;
  step.semantic = space.semantic;
  step.positional = space.positional;
  step.out = layer.mla() ? space.latent : space.out;
  step.lse = space.lse;
  decode(step, plan, space.kernel_space, layer.kernels, queue);
  if (layer.mla()) values_project(layer, plan, space, products, queue);
}

}  // namespace lca::cuda
