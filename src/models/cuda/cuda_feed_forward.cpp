// The other half of a layer on the GPU: products, feed-forward and experts, and the head with
// logits or the likeliest tokens.

#include <algorithm>

#include "core/cuda/profile_range.h"
#include "models/cuda/cuda_stages.h"
#include "models/cuda/stage_spaces.h"
#include "ops/cuda/thin.h"

namespace lca::cuda {

void CudaStages::product_part(const DeviceLinear& layer, std::int64_t first, std::int64_t count,
                              const bf16* x, std::int64_t rows, float* out, std::int64_t stride) {
  Product call;
  call.a = x;
  call.b = layer.weight + first * layer.in;
  call.c = out;
  call.c_float = true;
  call.rows = rows;
  call.columns = count;
  call.inner = call.a_stride = call.b_stride = layer.in;
  call.c_stride = stride;
  multiply(call);
}

/// With few rows the weights are what takes time: kernels that only stream them.
void CudaStages::multiply(const Product& call) {
  if (call.rows <= kThinRows && call.alpha == 1) {
    Thin thin;
    thin.x = call.a;
    thin.w = call.b;
    thin.y = call.c;
    thin.rows = static_cast<int>(call.rows);
    thin.columns = static_cast<int>(call.columns);
    thin.inner = static_cast<int>(call.inner);
    thin.x_stride = call.a_stride;
    thin.w_stride = call.b_stride;
    thin.y_stride = call.c_stride;
    thin.y_float = call.c_float;
    thin.accumulate = call.accumulate;
    if (thin_fits(thin)) {
      thin_multiply(thin, queue_);
      return;
    }
  }
  model_.product_space().multiply(call, queue_);
}

/// out = x · Wᵀ in bf16, or in float32 where `wide`; with `residual` it is
/// added there, scaled as the model does.
void CudaStages::product(const DeviceLinear& layer, const bf16* x, std::int64_t rows, void* out,
                         bool wide, bool residual) {
  Product call;
  call.a = x;
  call.b = layer.weight;
  call.c = out;
  call.c_float = wide;
  call.rows = rows;
  call.columns = call.c_stride = layer.out;
  call.inner = call.a_stride = call.b_stride = layer.in;
  if (residual) {
    call.accumulate = true;
    call.alpha = static_cast<float>(config().residual_scale);
  }
  multiply(call);
}

/// Normed rows of the residual at the beginning of the work memory, where all
/// stages have them.
bf16* CudaStages::norm(const float* weight, RowRange rows) {
  RowsNorm job;
  job.x = hidden(rows.first);
  job.x_stride = job.width = config().hidden;
  job.weight = weight;
  job.eps = config().norm_eps;
  job.rows = rows.count;
  job.out = lane_->work.as<bf16>();
  rows_norm(job, queue_);
  return job.out;
}

void CudaStages::feed_forward(std::size_t index, RowRange asked) {
  const DeviceScope scope(model_.device);
  const ProfileRange range("lca feed forward");
  if (mode_ != Mode::replay) {
    const RowRange rows = single_ ? RowRange{0, padded_} : asked;
    const DeviceLayer& layer = weights(index);
    grow(lane_->work, feed_forward_bytes(config(), model_.widths, rows.count));
    DeviceCarver carver(lane_->work.as<void>());
    const FeedForwardSpace space(config(), model_.widths, rows.count, carver);
    norm(layer.feed_forward_norm, rows);
    if (layer.has_experts()) {
      ExpertsCall call;
      call.x = space.normed;
      call.residual = hidden(rows.first);
      call.rows = rows.count;
      call.forced = tap_.forced;
      call.chosen = tap_.chosen;
      if (clock_.on()) {
        const auto layers = static_cast<std::int64_t>(model_.weights.layers.size());
        const std::int64_t each = rows.count * model_.weights.experts.route.per_token;
        grow(chosen_, static_cast<std::size_t>(layers * each) * sizeof(int));
        call.chosen = chosen_.as<int>() + static_cast<std::int64_t>(index) * each;
        chosen_rows_ = rows.count;
      }
      experts_run(model_.weights.experts, layer.experts, call, space.experts, model_.kernels,
                  queue_);
    }
    const DeviceFeedForward& dense = layer.feed_forward;
    if (!dense.down.empty()) {
      product(dense.gate_up, space.normed, rows.count, space.gate_up, true);
      rows_swiglu(space.gate_up, dense.gate_up.bias, rows.count, dense.down.in, space.inner,
                  queue_);
      product(dense.down, space.inner, rows.count, hidden(rows.first), true, true);
      if (dense.down.bias != nullptr) {
        rows_add_bias(dense.down.bias, static_cast<float>(config().residual_scale), rows.count,
                      config().hidden, hidden(rows.first), queue_);
      }
    }
  }
  clock_.mark(weights(index).has_experts() ? "experts" : "feed-forward", queue_);
  if (!single_ || !last_layer(index)) return;
  if (mode_ != Mode::replay) {
    DeviceCarver carver(lane_->work.as<void>());
    const HeadSpace space(config(), padded_, carver);
    head(nullptr, padded_);
    rows_argmax(space.logits, padded_, config().vocabulary, space.parts, space.picks, queue_);
    clock_.mark("head", queue_);
  }
  if (mode_ == Mode::capture) {
    capturing_ = false;
    step_->graph.capture_end(capture_stream_);
  }
  if (mode_ != Mode::eager) step_->graph.launch(model_.stream);
}

/// Final norm and logits of rows `from` (null: the first rows) at the head's
/// place in the work memory.
void CudaStages::head(const std::int32_t* from, std::int64_t rows) {
  DeviceCarver carver(lane_->work.as<void>());
  const HeadSpace space(config(), rows, carver);
  RowsNorm job;
  job.x = hidden_;
  job.x_stride = job.width = config().hidden;
  job.from = from;
  job.weight = model_.weights.norm;
  job.eps = config().norm_eps;
  job.factor = static_cast<float>(1 / config().logit_divisor);
  job.rows = rows;
  job.out = space.normed;
  rows_norm(job, queue_);
  product(model_.weights.head, space.normed, rows, space.logits, true);
  logits_ = space.logits;
  picks_ = space.picks;
}

/// Logits of some rows of a prompt.
void CudaStages::prompt_head(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  grow(lane_->work, head_bytes(config(), rows));
  DeviceCarver carver(lane_->work.as<void>());
  const HeadSpace space(config(), rows, carver);
  table_copied_.wait();
  auto* const host = static_cast<std::int32_t*>(
      table_host_.require(static_cast<std::size_t>(rows) * sizeof(std::int32_t)));
  std::int64_t at = 0;
  for (const RowRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) {
      host[at++] = static_cast<std::int32_t>(range.first + i);
    }
  }
  check(cudaMemcpyAsync(space.from, host, static_cast<std::size_t>(rows) * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice, model_.stream),
        "copying a step to the GPU");
  table_copied_.record(model_.stream);
  clock_.mark({}, queue_);
  head(space.from, rows);
  clock_.mark("head", queue_);
}

const float* CudaStages::logits(std::span<const RowRange> ranges) {
  const DeviceScope scope(model_.device);
  const ProfileRange mark("lca logits");
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  const std::int64_t width = config().vocabulary;
  auto* const host = static_cast<float*>(
      results_->require(static_cast<std::size_t>(rows * width) * sizeof(float)));
  const auto bring = [&](std::int64_t from, std::int64_t count, float* to) {
    check(cudaMemcpyAsync(to, logits_ + from * width,
                          static_cast<std::size_t>(count * width) * sizeof(float),
                          cudaMemcpyDeviceToHost, model_.stream),
          "copying logits from the GPU");
  };
  if (single_) {
    float* to = host;
    for (const RowRange& range : ranges) {
      bring(range.first, range.count, to);
      to += range.count * width;
    }
  } else {
    prompt_head(ranges);
    bring(0, rows, host);
  }
  model_.stream.wait();
  return host;
}

void CudaStages::picks(std::span<const RowRange> ranges, std::span<std::int32_t> out) {
  const DeviceScope scope(model_.device);
  const ProfileRange mark("lca picks");
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  const std::int64_t count = single_ ? padded_ : rows;
  if (!single_) {
    prompt_head(ranges);
    DeviceCarver carver(lane_->work.as<void>());
    const HeadSpace space(config(), rows, carver);
    rows_argmax(space.logits, rows, config().vocabulary, space.parts, space.picks, queue_);
  }
  const auto bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
  auto* const host = static_cast<std::int32_t*>(results_->require(bytes));
  check(cudaMemcpyAsync(host, picks_, bytes, cudaMemcpyDeviceToHost, model_.stream),
        "copying tokens from the GPU");
  model_.stream.wait();
  auto to = out.begin();
  std::int64_t at = 0;
  for (const RowRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i, ++at) {
      *to++ = host[single_ ? range.first + i : at];
    }
  }
}

std::size_t CudaStages::activation_bytes(const CudaModel& model, std::int64_t rows) {
  return held_bytes(model.config, rows) + StepArrays(DeviceCarver(), rows, 0, 0).bytes +
         std::max(feed_forward_bytes(model.config, model.widths, rows),
                  projected_bytes(model.config, model.widths, rows));
}

}  // namespace lca::cuda
