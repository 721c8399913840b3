// Mixtures of experts and thin products on made-up weights, and how long they take.

#include "bench/cuda/bench_experts.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "bench/cuda/bench_inputs.h"
#include "bench/cuda/stopwatch.h"
#include "core/cuda/memory.h"
#include "core/error.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_kernels.h"
#include "ops/cuda/product.h"
#include "ops/cuda/thin.h"

namespace lca::cuda {
namespace {

ExpertsShape shape_of(const ExpertsSetup& setup) {
  ExpertsShape shape;
  shape.hidden = setup.hidden;
  shape.width = setup.width;
  shape.shared = setup.shared;
  shape.route.experts = setup.experts;
  shape.route.per_token = setup.per_token;
  return shape;
}

/// Seconds of one of many calls that keep the GPU busy for `budget` seconds.
template <typename Call>
double sustained(cudaStream_t stream, double budget, const Call& call) {
  Stopwatch watch(stream);
  call();
  const double once = std::max(watch.median(3, call), 1e-6);
  const int count = std::max(3, static_cast<int>(budget / once));
  const auto all = [&] {
    for (int i = 0; i < count; ++i) call();
  };
  return watch.median(1, all) / count;
}

/// Layers with weights of their own, and the rows that pass them.
class ExpertLayers {
 public:
  ExpertLayers(const ExpertsSetup& setup, std::int64_t rows, const Queue& queue)
      : setup_(setup), shape_(shape_of(setup)), rows_(rows), queue_(queue), inputs_(queue.stream) {
    // As many layers as it takes to find nothing in L2; few rows hit few experts.
    const double one =
        2.0 * static_cast<double>(shape_.gate_up_elements() + shape_.down_elements());
    const double hit =
        std::min(1.0, static_cast<double>(rows * shape_.visits()) / shape_.experts());
    sets_ = rows > 512 ? 1 : std::clamp(sets_for(*queue.device, one * hit) + 1, 2, 6);
    const float scale = 1 / std::sqrt(static_cast<float>(setup.hidden));
    for (int i = 0; i < sets_; ++i) {
      ExpertsWeights weights;
      weights.gate_up = inputs_.random(shape_.gate_up_elements(), scale);
      weights.down =
          inputs_.random(shape_.down_elements(), 1 / std::sqrt(static_cast<float>(setup.width)));
      weights.router = inputs_.random<float>(std::int64_t{setup.experts} * setup.hidden, scale);
      bias_.push_back(inputs_.allocate<float>(setup.experts));
      weights.router_bias = bias_.back();
      layers_.push_back(weights);
    }
    x_ = inputs_.random(rows * setup.hidden);
    residual_ = inputs_.random<float>(rows * setup.hidden);
    chosen_ = inputs_.allocate<int>(rows * setup.per_token);
    workspace_.require(experts_workspace(shape_, rows));
    for (int i = 0; i < sets_; ++i) skew(i);
  }

  int sets() const { return sets_; }
  Kernels kernels() const { return setup_.portable ? Kernels::portable : Kernels::fast; }

  void run(int set) const {
    ExpertsCall call;
    call.x = x_;
    call.residual = residual_;
    call.rows = rows_;
    call.chosen = chosen_;
    experts_run(shape_, layers_[static_cast<std::size_t>(set)], call, workspace_.as<void>(),
                kernels(), queue_);
  }

  /// Rows of each expert, shared ones left out.
  std::vector<std::int64_t> counts(int set) const {
    run(set);
    std::vector<int> chosen(static_cast<std::size_t>(rows_ * setup_.per_token));
    check(cudaMemcpyAsync(chosen.data(), chosen_, chosen.size() * sizeof(int),
                          cudaMemcpyDeviceToHost, queue_.stream),
          "reading the choice");
    check(cudaStreamSynchronize(queue_.stream), "running on the GPU");
    std::vector<std::int64_t> counts(static_cast<std::size_t>(setup_.experts), 0);
    for (const int expert : chosen) ++counts[static_cast<std::size_t>(expert)];
    return counts;
  }

  double largest(const std::vector<std::int64_t>& counts) const {
    return static_cast<double>(*std::ranges::max_element(counts)) * setup_.experts /
           static_cast<double>(rows_ * setup_.per_token);
  }

  const ExpertsShape& shape() const { return shape_; }
  const ExpertsWeights& weights() const { return layers_[0]; }
  const bf16* x() const { return x_; }

 private:
  /// A bias for expert 0 that gives it `skew` times the mean.
  void skew(int set) {
    double low = 0, high = 16, bias = 0;
    for (int round = 0; round < 12; ++round) {
      std::vector<float> values(static_cast<std::size_t>(setup_.experts), 0.0f);
      values[0] = static_cast<float>(bias);
      check(cudaMemcpy(bias_[static_cast<std::size_t>(set)], values.data(),
                       values.size() * sizeof(float), cudaMemcpyHostToDevice),
            "setting the router's bias");
      if (setup_.skew <= 1) return;
      const std::vector<std::int64_t> got = counts(set);
      const double share = static_cast<double>(got[0]) * setup_.experts /
                           static_cast<double>(rows_ * setup_.per_token);
      (share < setup_.skew ? low : high) = bias;
      if (std::abs(share - setup_.skew) < 0.02 * setup_.skew) return;
      bias = (low + high) / 2;
    }
  }

  ExpertsSetup setup_;
  ExpertsShape shape_;
  std::int64_t rows_;
  Queue queue_;
  Inputs inputs_;
  int sets_ = 1;
  std::vector<ExpertsWeights> layers_;
  std::vector<float*> bias_;
  bf16* x_ = nullptr;
  float* residual_ = nullptr;
  int* chosen_ = nullptr;
  Buffer workspace_;
};

/// The two grouped products alone, on rows sorted once.
void products_time(const ExpertLayers& layers, const ExpertsSetup& setup, std::int64_t rows,
                   const Queue& queue, ExpertsTimed& timed) {
  const ExpertsShape& shape = layers.shape();
  const std::int64_t visits = rows * shape.visits();
  Inputs memory(queue.stream);
  Route route;
  route.x = layers.x();
  route.router = layers.weights().router;
  route.bias = layers.weights().router_bias;
  route.rows = static_cast<int>(rows);
  route.hidden = shape.hidden;
  route.logits = memory.allocate<float>(rows * setup.experts);
  route.chosen = memory.allocate<int>(rows * setup.per_token);
  route.weights = memory.allocate<float>(rows * setup.per_token);
  const Sorted sorted{memory.allocate<int>(shape.experts() + 1), memory.allocate<int>(visits),
                      memory.allocate<int>(visits)};
  bf16* const moved = memory.allocate(visits * shape.hidden);
  bf16* const given = memory.allocate(visits * shape.hidden);
  bf16* const act = memory.allocate(visits * shape.stored_width());
  route_choose(shape.route, route, queue);
  route_sort(shape.route, shape.shared, route.chosen, route.rows, sorted, queue);
  route_gather(layers.x(), sorted.source, rows * setup.per_token, shape.hidden, moved, queue);

  Grouped gate_up;
  gate_up.x = moved;
  gate_up.w = layers.weights().gate_up;
  gate_up.begin = sorted.begin;
  gate_up.out = act;
  gate_up.experts = shape.experts();
  gate_up.columns = 2 * shape.stored_width();
  gate_up.inner = shape.hidden;
  gate_up.sorted_rows = visits;
  gate_up.glu = true;
  Grouped down = gate_up;
  down.x = act;
  down.w = layers.weights().down;
  down.out = given;
  down.columns = shape.hidden;
  down.inner = shape.stored_width();
  down.glu = false;
  const GroupedRows shared{layers.x(), rows, setup.experts};
  constexpr double kBudget = 0.5;
  timed.gate_up = sustained(queue.stream, kBudget, [&] { grouped_sm90(gate_up, shared, queue); });
  timed.down = sustained(queue.stream, kBudget, [&] { grouped_sm90(down, {}, queue); });
  Combine combine;
  combine.y = given;
  combine.place = sorted.place;
  combine.weights = route.weights;
  combine.residual = memory.random<float>(rows * shape.hidden);
  combine.rows = route.rows;
  combine.hidden = shape.hidden;
  combine.per_token = setup.per_token;
  combine.shared = shape.shared;
  constexpr double kShort = 0.05;
  timed.combine = sustained(queue.stream, kShort, [&] { route_combine(combine, queue); });
  timed.router = sustained(queue.stream, kShort, [&] {
    route_choose(shape.route, route, queue);
    route_sort(shape.route, shape.shared, route.chosen, route.rows, sorted, queue);
  });
}

}  // namespace

ExpertsTimed bench_experts(const ExpertsSetup& setup, std::int64_t rows) {
  const Device& device = Device::at(setup.device);
  device.select();
  const Stream stream(device);
  const Queue queue = stream.queue();
  const ExpertLayers layers(setup, rows, queue);
  const ExpertsShape& shape = layers.shape();
  ExpertsTimed timed;
  timed.rows = rows;
  double hit = 0;
  for (int set = 0; set < layers.sets(); ++set) {
    const std::vector<std::int64_t> counts = layers.counts(set);
    hit += static_cast<double>(std::ranges::count_if(counts, [](auto n) { return n > 0; }));
    timed.largest += layers.largest(counts) / layers.sets();
  }
  hit = hit / layers.sets() + setup.shared;
  timed.hit = static_cast<int>(std::lround(hit));
  timed.bytes = hit * 6.0 * setup.width * setup.hidden;
  timed.operations = 6.0 * static_cast<double>(rows * shape.visits()) * setup.width * setup.hidden;
  timed.gate_up_operations = timed.operations * 2 / 3;
  if (rows > 512) {
    timed.seconds = sustained(queue.stream, 0.5, [&] { layers.run(0); });
    if (experts_path(shape, rows, layers.kernels(), device) == ExpertsPath::grouped) {
      products_time(layers, setup, std::min(rows, kExpertRowsAtOnce), queue, timed);
      const double slices =
          static_cast<double>(rows) / static_cast<double>(std::min(rows, kExpertRowsAtOnce));
      timed.router *= slices;
      timed.combine *= slices;
      timed.gate_up *= slices;
      timed.down *= slices;
    }
  } else {
    timed.seconds =
        time_graph(queue.stream, layers.sets(), 400, [&](int set) { layers.run(set); }).seconds;
  }
  return timed;
}

double bench_product_rate(int device, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  const Device& gpu = Device::at(device);
  gpu.select();
  const Stream stream(gpu);
  BenchProducts products(gpu);
  Inputs inputs(stream);
  Product product;
  product.a = inputs.random(rows * inner);
  product.b = inputs.random(columns * inner, 1 / std::sqrt(static_cast<float>(inner)));
  product.c = inputs.allocate(rows * columns);
  product.rows = rows;
  product.columns = product.c_stride = columns;
  product.inner = product.a_stride = product.b_stride = inner;
  const double seconds =
      sustained(stream, 1.0, [&] { products.space().multiply(product, stream); });
  return 2.0 * static_cast<double>(rows * columns) * static_cast<double>(inner) / seconds;
}

double bench_copy_rate(int device) {
  const Device& gpu = Device::at(device);
  gpu.select();
  const Stream stream(gpu);
  Inputs inputs(stream);
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto* const from = inputs.random(kBytes / 2);
  auto* const to = inputs.allocate(kBytes / 2);
  const double seconds = sustained(stream, 0.1, [&] {
    check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), "copying");
  });
  return 2.0 * kBytes / seconds;
}

ThinTimed bench_thin(int device, int rows, int columns, int inner, int batch) {
  const Device& gpu = Device::at(device);
  gpu.select();
  const Stream stream(gpu);
  BenchProducts products(gpu);
  Inputs inputs(stream);
  const std::int64_t size = std::int64_t{columns} * inner;
  const int sets = std::min(sets_for(gpu, 2.0 * static_cast<double>(size) * batch), 32);
  std::vector<bf16*> weights;
  for (int i = 0; i < sets; ++i) weights.push_back(inputs.random(size * batch));
  Thin thin;
  thin.x = inputs.random(std::int64_t{rows} * inner * batch);
  thin.y = inputs.allocate(std::int64_t{rows} * columns * batch);
  thin.rows = rows;
  thin.columns = columns;
  thin.inner = inner;
  thin.x_stride = std::int64_t{inner} * batch;
  thin.w_stride = inner;
  thin.y_stride = std::int64_t{columns} * batch;
  thin.batch = batch;
  thin.x_batch = inner;
  thin.w_batch = size;
  thin.y_batch = columns;
  Product product;
  product.a = thin.x;
  product.c = thin.y;
  product.rows = rows;
  product.columns = columns;
  product.inner = inner;
  product.a_stride = thin.x_stride;
  product.b_stride = thin.w_stride;
  product.c_stride = thin.y_stride;
  product.batch = batch;
  product.a_batch = thin.x_batch;
  product.b_batch = thin.w_batch;
  product.c_batch = thin.y_batch;
  ThinTimed timed{rows, columns, inner, batch, 0, 0};
  timed.thin = time_graph(stream, sets, 200, [&](int set) {
                 thin.w = weights[static_cast<std::size_t>(set)];
                 thin_multiply(thin, stream.queue());
               }).seconds;
  timed.blas = time_graph(stream, sets, 200, [&](int set) {
                 product.b = weights[static_cast<std::size_t>(set)];
                 products.space().multiply(product, stream);
               }).seconds;
  return timed;
}

}  // namespace lca::cuda
