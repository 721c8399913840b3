#pragma once
/// A made-up mixture of experts on host and GPU, and what it gives in double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/support.h"
#include "ops/cuda/experts.h"

namespace lca::test {

struct ExpertsCase {
  int hidden = 64, width = 64, shared = 0;
  int experts = 8, per_token = 2;
  int groups = 0, top_groups = 0;  ///< 0: not limited to groups
  bool normalise = false;
  float scale = 1;
  std::int64_t rows = 1;
  double skew = 0;     ///< added to the logits of expert 1
  bool empty = false;  ///< half of the experts are never chosen
  bool forced = false;
  int checked = 1 << 20;  ///< rows that are compared, spread over all
  std::uint64_t seed = 1;

  cuda::ExpertsShape shape() const {
    cuda::ExpertsShape shape;
    shape.hidden = hidden;
    shape.width = width;
    shape.shared = shared;
    shape.route.experts = experts;
    shape.route.per_token = per_token;
    shape.route.group_limited = groups > 0;
    shape.route.groups = std::max(groups, 1);
    shape.route.top_groups = std::max(top_groups, 1);
    shape.route.normalise = normalise;
    shape.route.scale = scale;
    return shape;
  }
  std::string describe() const {
    std::ostringstream text;
    text << "hidden " << hidden << " width " << width << " experts " << experts << " of which "
         << per_token << " + " << shared << ", rows " << rows << " skew " << skew
         << (empty ? " half empty" : "") << (forced ? " forced" : "");
    return text.str();
  }
};

/// A shape that reaches the three fast paths on Hopper.
inline ExpertsCase hopper_case(std::int64_t rows) {
  ExpertsCase c;
  c.hidden = 256;
  c.width = 160;
  c.experts = 16;
  c.per_token = 4;
  c.shared = 2;
  c.rows = rows;
  return c;
}

/// Weights and rows on the host and on the GPU.
class ExpertsProblem {
 public:
  explicit ExpertsProblem(const ExpertsCase& c) : c_(c) {
    Random random(c.seed * 7919 + 13);
    const std::int64_t size = std::int64_t{c.width} * c.hidden;
    const int all = c.experts + c.shared;
    gate_ = values(random, all * size, 1 / std::sqrt(c.hidden));
    up_ = values(random, all * size, 1 / std::sqrt(c.hidden));
    down_ = values(random, all * size, 1 / std::sqrt(c.width));
    x_ = values(random, c.rows * c.hidden, 1);
    router_.resize(static_cast<std::size_t>(c.experts) * static_cast<std::size_t>(c.hidden));
    for (float& value : router_) {
      value = static_cast<float>(2 * (random.unit() - 0.5) * 2 / std::sqrt(c.hidden));
    }
    bias_.assign(static_cast<std::size_t>(c.experts), 0.0f);
    if (c.skew != 0) bias_[std::min<std::size_t>(1, bias_.size() - 1)] = float(c.skew);
    if (c.empty) {
      for (std::size_t e = 0; e < bias_.size(); e += 2) bias_[e] = -100;
    }
    residual_.resize(static_cast<std::size_t>(c.rows * c.hidden));
    for (float& value : residual_) value = static_cast<float>(random.unit() - 0.5);
    forced_.resize(static_cast<std::size_t>(c.rows * c.per_token));
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const std::int64_t first = random.integer(0, c.experts - 1);
      for (int i = 0; i < c.per_token; ++i) {
        forced_[at(row * c.per_token + i)] = static_cast<int>((first + i) % c.experts);
      }
    }
  }

  /// Runs it with a workspace of NaN and compares the result.
  void expect_right(cuda::Kernels kernels, double most = 6e-3) const {
    SCOPED_TRACE(c_.describe());
    const ExpertsOnGpu on_gpu(*this);
    on_gpu.run(kernels, gpu_queue());
    compare(on_gpu.residual.download(), on_gpu.chosen.download(), most);
    on_gpu.expect_workspace_kept();
  }

  /// Weights arranged on the GPU, rows, and a workspace of NaN.
  struct ExpertsOnGpu {
    explicit ExpertsOnGpu(const ExpertsProblem& problem)
        : shape(problem.c_.shape()),
          rows(problem.c_.rows),
          forced_used(problem.c_.forced),
          x(problem.x_),
          router(problem.router_),
          bias(problem.bias_),
          residual(problem.residual_),
          forced(problem.forced_),
          chosen(std::vector<int>(problem.forced_.size(), -7)),
          gate_up(nan_bf16(shape.gate_up_elements())),
          down(nan_bf16(shape.down_elements())),
          bytes(cuda::experts_workspace(shape, rows)),
          workspace(bytes + 256) {
      const DeviceArray<bf16> gate_from(problem.gate_), up_from(problem.up_),
          down_from(problem.down_);
      const std::int64_t size = std::int64_t{shape.width} * shape.hidden;
      for (int e = 0; e < shape.experts(); ++e) {
        cuda::expert_store(shape, e,
                           {gate_from.data() + e * size, up_from.data() + e * size,
                            down_from.data() + e * size, shape.width},
                           gate_up.data(), down.data(), gpu_queue());
      }
      cuda::check(cudaMemset(workspace.as<void>(), 0xff, workspace.bytes()), "poison");
      cuda::check(cudaDeviceSynchronize(), "arranging weights");
    }

    void run(cuda::Kernels kernels, const cuda::Queue& queue) const {
      cuda::ExpertsWeights weights;
      weights.router = router.data();
      weights.router_bias = bias.data();
      weights.gate_up = gate_up.data();
      weights.down = down.data();
      cuda::ExpertsCall call;
      call.x = x.data();
      call.residual = residual.data();
      call.rows = rows;
      call.forced = forced_used ? forced.data() : nullptr;
      call.chosen = chosen.data();
      cuda::experts_run(shape, weights, call, workspace.as<void>(), kernels, queue);
    }

    void expect_workspace_kept() const {
      std::vector<unsigned char> behind(256);
      cuda::check(cudaMemcpy(behind.data(), workspace.as<unsigned char>() + bytes, 256,
                             cudaMemcpyDeviceToHost),
                  "reading");
      EXPECT_TRUE(std::ranges::all_of(behind, [](unsigned char byte) { return byte == 0xff; }))
          << "the workspace is too small";
    }

    cuda::ExpertsShape shape;
    std::int64_t rows;
    bool forced_used;
    DeviceArray<bf16> x;
    DeviceArray<float> router, bias;
    DeviceArray<float> residual;
    DeviceArray<int> forced, chosen;
    DeviceArray<bf16> gate_up, down;
    std::size_t bytes;
    cuda::Buffer workspace;
  };

  const std::vector<bf16>& x() const { return x_; }
  const std::vector<float>& residual() const { return residual_; }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  /// Uniform: real shapes have many weights.
  static std::vector<bf16> values(Random& random, std::int64_t count, double deviation) {
    std::vector<bf16> made(at(count));
    const double range = deviation * std::sqrt(12.0);
    for (bf16& value : made) value = bf16_of(range * (random.unit() - 0.5));
    return made;
  }

  std::vector<double> scores_of(std::int64_t row) const {
    std::vector<double> scores(at(c_.experts));
    for (int e = 0; e < c_.experts; ++e) {
      double sum = bias_[at(e)];
      for (int k = 0; k < c_.hidden; ++k) {
        sum += double(router_[at(std::int64_t{e} * c_.hidden + k)]) *
               double_of(x_[at(row * c_.hidden + k)]);
      }
      scores[at(e)] = sum;
    }
    const double highest = *std::ranges::max_element(scores);
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - highest);
    for (double& score : scores) score /= total;
    return scores;
  }

  /// The choice is right, as far as float32 can tell scores apart.
  void choice_check(const std::vector<double>& scores, const int* chosen) const {
    std::vector<bool> taken(at(c_.experts), false);
    double lowest = 1;
    for (int i = 0; i < c_.per_token; ++i) {
      ASSERT_GE(chosen[i], 0);
      ASSERT_LT(chosen[i], c_.experts);
      ASSERT_FALSE(taken[at(chosen[i])]) << "expert " << chosen[i] << " is chosen twice";
      taken[at(chosen[i])] = true;
      lowest = std::min(lowest, scores[at(chosen[i])]);
      if (i > 0) {
        ASSERT_LE(scores[at(chosen[i])], scores[at(chosen[i - 1])] * (1 + 1e-4));
      }
    }
    if (c_.groups > 0) return;  // test_route.cpp compares those with the CPU
    for (int e = 0; e < c_.experts; ++e) {
      if (taken[at(e)]) continue;
      ASSERT_LE(scores[at(e)], lowest * (1 + 1e-4)) << "expert " << e;
    }
  }

  void add_expert(std::int64_t row, int expert, double weight, std::vector<double>& out) const {
    const std::int64_t first = std::int64_t{expert} * c_.width * c_.hidden;
    std::vector<double> act(at(c_.width));
    for (int i = 0; i < c_.width; ++i) {
      double g = 0, u = 0;
      const bf16* const gate = gate_.data() + first + std::int64_t{i} * c_.hidden;
      const bf16* const up = up_.data() + first + std::int64_t{i} * c_.hidden;
      const bf16* const x = x_.data() + row * c_.hidden;
      for (int k = 0; k < c_.hidden; ++k) {
        g += double_of(gate[k]) * double_of(x[k]);
        u += double_of(up[k]) * double_of(x[k]);
      }
      act[at(i)] = g / (1 + std::exp(-g)) * u;
    }
    for (int k = 0; k < c_.hidden; ++k) {
      double sum = 0;
      const bf16* const down = down_.data() + first + std::int64_t{k} * c_.width;
      for (int i = 0; i < c_.width; ++i) sum += double_of(down[i]) * act[at(i)];
      out[at(k)] += weight * sum;
    }
  }

  void compare(const std::vector<float>& got, const std::vector<int>& chosen, double most) const {
    RelativeError error;
    const std::int64_t step = std::max<std::int64_t>(1, c_.rows / c_.checked);
    for (std::int64_t row = 0; row < c_.rows; ++row) {
      if (row % step != 0 && row != c_.rows - 1) {  // at least a number
        for (int k = 0; k < c_.hidden; ++k) {
          ASSERT_TRUE(std::isfinite(got[at(row * c_.hidden + k)])) << "row " << row;
        }
        continue;
      }
      const std::vector<double> scores = scores_of(row);
      const int* const own = chosen.data() + row * c_.per_token;
      if (c_.forced) {
        for (int i = 0; i < c_.per_token; ++i) {
          ASSERT_EQ(own[i], forced_[at(row * c_.per_token + i)]);
        }
      } else {
        choice_check(scores, own);
        if (::testing::Test::HasFatalFailure()) FAIL() << "row " << row;
      }
      double total = 0;
      for (int i = 0; i < c_.per_token; ++i) total += scores[at(own[i])];
      std::vector<double> sum(at(c_.hidden), 0.0);
      for (int i = 0; i < c_.per_token; ++i) {
        const double weight = scores[at(own[i])] / (c_.normalise ? total : 1) * double{c_.scale};
        add_expert(row, own[i], weight, sum);
      }
      for (int s = 0; s < c_.shared; ++s) add_expert(row, c_.experts + s, 1, sum);
      for (int k = 0; k < c_.hidden; ++k) {
        const std::size_t i = at(row * c_.hidden + k);
        const double added = double(got[i]) - double(residual_[i]);
        ASSERT_NEAR(added, sum[at(k)], 0.05 * std::abs(sum[at(k)]) + 0.03)
            << "row " << row << " channel " << k;
        error.add(added, sum[at(k)]);
      }
    }
    EXPECT_LE(error.value(), most);
  }

  ExpertsCase c_;
  std::vector<bf16> gate_, up_, down_, x_;
  std::vector<float> router_, bias_, residual_;
  std::vector<int> forced_;
};

}  // namespace lca::test
