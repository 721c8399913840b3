// Condensing as an operator on the GPU against the double-precision reference on the same bf16
// values, both passes: strided tensors, packed documents, NaN in outputs and scratch.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "attention/reference/operator.h"
#include "attention/rotate.h"
#include "cuda/operator_device.h"
#include "support/compare.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

constexpr double kNear = 1e-3;  // mechanism §3: either may be selected

struct Compared {
  std::int64_t groups = 0;
  std::int64_t near = 0;
  double worst = 0;
};

/// One case of condensation, both passes.
class CondenseOperator {
 public:
  CondenseOperator(const OperatorSpec& spec, const Gaps& gaps, std::uint64_t seed)
      : spec_(spec),
        gaps_(gaps),
        random_(seed),
        inputs_(random_values(spec, DType::bf16, random_)),
        m_(spec.groups()),
        kv_(spec.layer.shape.kv_heads),
        g_(spec.layer.settings.group) {
    place_.backend = Backend::cuda;
    for (std::size_t i = 0; i < 5; ++i) {
      on_gpu_.emplace_back(*inputs_.all()[i], i < 4 ? gaps.row : 3 * gaps.row, gaps.head);
    }
    const auto of = [](const DeviceTensor& tensor) { return tensor.view(); };
    gpu_in_ = {{of(on_gpu_[0]), of(on_gpu_[1])}, {of(on_gpu_[2]), of(on_gpu_[3])}, of(on_gpu_[4])};
    if (spec.layer.shape.form == Form::gqa) gpu_in_.queries.nope = gpu_in_.w_uk = {};
  }

  void forward(Compared& compared) {
    const AttentionShape& shape = spec_.layer.shape;
    const Values semantic(DType::bf16, m_, kv_, shape.d_semantic());
    const Values positional(DType::bf16, m_, kv_, shape.d_positional());
    const DeviceTensor rep_semantic(semantic, gaps_.row, gaps_.head);
    const DeviceTensor rep_positional(positional, gaps_.row, gaps_.head);
    const DeviceArray<float> bias(nan_float(m_ * kv_ + 1));
    const DeviceArray<float> scores(nan_float(m_ * kv_ * g_ + 1));
    OperatorScratch scratch(spec_, OperatorPart::condense, place_);
    CondenseOutputs to;
    to.semantic = rep_semantic.tensor();
    to.positional = rep_positional.tensor();
    to.bias = bias.data();
    to.scores = scores.data();
    operator_condense(spec_, gpu_in_, to, place_);
    scratch.guard_check();
    scores_ = scores.download();
    ASSERT_TRUE(std::isnan(scores_.back()));
    scores_.pop_back();
    std::vector<float> got_bias = bias.download();
    ASSERT_TRUE(std::isnan(got_bias.back()));

    Values want_semantic(DType::f64, m_, kv_, shape.d_semantic());
    Values want_positional(DType::f64, m_, kv_, shape.d_positional());
    std::vector<float> want_scores(scores_.size()), want_bias(static_cast<std::size_t>(m_ * kv_));
    CondenseOutputs want;
    want.semantic = want_semantic.tensor();
    want.positional = want_positional.tensor();
    want.bias = want_bias.data();
    want.scores = want_scores.data();
    reference::condense(spec_, inputs_.condense_inputs(), want);

    std::vector<double> got_semantic = rep_semantic.download();
    std::vector<double> got_positional = rep_positional.download();
    std::vector<double> s = want_semantic.doubles(), p = want_positional.doubles();
    const Settings& settings = spec_.layer.settings;
    for (std::int64_t item = 0; item < m_ * kv_; ++item) {
      ++compared.groups;
      if (!is_near(want_scores.data() + item * g_)) continue;
      ++compared.near;
      // The choice decides; what was not written is NaN all the same.
      const auto skip = [&](std::vector<double>& got, const std::vector<double>& from,
                            std::int64_t width) {
        for (std::int64_t i = item * width; i < (item + 1) * width; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (!std::isnan(got[at])) got[at] = from[at];
        }
      };
      if (settings.semantic_pool == Pool::select) skip(got_semantic, s, shape.d_semantic());
      if (settings.positional_pool == Pool::select) skip(got_positional, p, shape.d_positional());
      float& b = got_bias[static_cast<std::size_t>(item)];
      if (selects(settings) && !std::isnan(b)) b = want_bias[static_cast<std::size_t>(item)];
    }
    got_bias.pop_back();
    expect("rep semantic", s, got_semantic, 1e-2, compared);
    expect("rep positional", p, got_positional, 1e-2, compared);
    expect("scores", floats_like(want_scores).doubles(), floats_like(scores_).doubles(), 1e-3,
           compared);
    EXPECT_LE(error_of(floats_like(want_bias).doubles(), floats_like(got_bias).doubles(),
                       kErrorFloorBias),
              1e-2);
  }

  /// `wanted` is a mask over q_nope, q_rope, semantic, positional, w_uk.
  void backward(bool accumulate, unsigned wanted, Compared& compared) {
    const AttentionShape& shape = spec_.layer.shape;
    Values grad_semantic(DType::bf16, m_, kv_, shape.d_semantic());
    Values grad_positional(DType::bf16, m_, kv_, shape.d_positional());
    grad_semantic.fill_normal(1, random_);
    grad_positional.fill_normal(1, random_);
    const std::vector<float> grad_bias = random_float(random_, m_ * kv_);
    const DeviceTensor gpu_semantic(grad_semantic, gaps_.row, gaps_.head);
    const DeviceTensor gpu_positional(grad_positional, gaps_.row, gaps_.head);
    const DeviceArray<float> gpu_bias(grad_bias);
    const DeviceArray<float> gpu_scores(scores_);

    OperatorValues before = OperatorValues::of(spec_, DType::bf16);  // NaN
    OperatorValues want = OperatorValues::of(spec_, DType::f64);
    std::vector<DeviceTensor> grads;
    for (std::size_t i = 0; i < 5; ++i) {
      if (accumulate) before.all()[i]->fill_normal(0.1, random_);
      grads.emplace_back(*before.all()[i], i < 4 ? gaps_.row : 3 * gaps_.row, gaps_.head);
    }
    const bool mass = spec_.layer.settings.mass == Mass::score;
    const Values none_semantic(DType::bf16, m_, kv_, shape.d_semantic());
    const Values none_positional(DType::bf16, m_, kv_, shape.d_positional());
    // Of the representatives only the scores are read.
    DeviceTensor rep_semantic(none_semantic), rep_positional(none_positional);
    const DeviceArray<float> rep_bias(nan_float(m_ * kv_));
    CondenseOutputs out;
    out.semantic = rep_semantic.tensor();
    out.positional = rep_positional.tensor();
    out.bias = rep_bias.data();
    out.scores = gpu_scores.data();
    CondenseInputGrads to;
    const auto want_tensor = [&](std::size_t i) {
      return (wanted >> i & 1) != 0 ? grads[i].tensor() : Tensor{};
    };
    if (shape.form == Form::mla) {
      to.q_nope = want_tensor(0);
      to.w_uk = want_tensor(4);
    }
    to.q_rope = want_tensor(1);
    to.semantic = want_tensor(2);
    to.positional = want_tensor(3);
    to.accumulate = accumulate;
    OperatorScratch scratch(spec_, OperatorPart::condense_backward, place_);
    operator_condense_backward(
        spec_, gpu_in_, out,
        {gpu_semantic.view(), gpu_positional.view(), mass ? gpu_bias.data() : nullptr}, to, place_);
    scratch.guard_check();

    Values host_semantic = none_semantic, host_positional = none_positional;
    std::vector<float> host_bias(static_cast<std::size_t>(m_ * kv_));
    CondenseOutputs host;
    host.semantic = host_semantic.tensor();
    host.positional = host_positional.tensor();
    host.bias = host_bias.data();
    host.scores = scores_.data();
    CondenseInputGrads all;
    all.q_nope = want.q_nope.tensor();
    all.q_rope = want.q_rope.tensor();
    all.semantic = want.semantic.tensor();
    all.positional = want.positional.tensor();
    all.w_uk = want.w_uk.tensor();
    reference::condense_backward(
        spec_, inputs_.condense_inputs(), host,
        {grad_semantic.view(), grad_positional.view(), mass ? grad_bias.data() : nullptr}, all);
    for (std::size_t i = 0; i < 5; ++i) {
      const Values& expected = *want.all()[i];
      if (expected.size() == 0) continue;
      const std::vector<double> got = grads[i].download();
      std::vector<double> values = expected.doubles();
      if ((wanted >> i & 1) == 0) {
        for (std::size_t k = 0; k < got.size(); ++k) {
          const double old = before.all()[i]->get(static_cast<std::int64_t>(k));
          ASSERT_TRUE(got[k] == old || (std::isnan(got[k]) && std::isnan(old)));
        }
        continue;
      }
      if (accumulate) {
        for (std::size_t k = 0; k < values.size(); ++k) {
          values[k] += before.all()[i]->get(static_cast<std::int64_t>(k));
        }
      }
      expect(OperatorValues::kNames[i], values, got, kToleranceBf16, compared);
    }
  }

  bool condensed() const { return m_ > 0; }

 private:
  bool is_near(const float* scores) const {
    if (g_ == 1) return false;
    float best = -INFINITY, next = -INFINITY;
    for (std::int64_t t = 0; t < g_; ++t) {
      if (scores[t] > best) {
        next = best;
        best = scores[t];
      } else if (scores[t] > next) {
        next = scores[t];
      }
    }
    return static_cast<double>(best - next) < kNear * std::fmax(1.0, std::fabs(best));
  }

  static void expect(const std::string& name, const std::vector<double>& want,
                     const std::vector<double>& got, double tolerance, Compared& compared) {
    const double error = error_of(want, got);
    compared.worst = std::fmax(compared.worst, error);
    EXPECT_LE(error, tolerance) << name;
  }

  OperatorSpec spec_;
  Gaps gaps_;
  Random random_;
  OperatorValues inputs_;
  std::int64_t m_, kv_, g_;
  OperatorPlace place_;
  std::vector<DeviceTensor> on_gpu_;
  CondenseInputs gpu_in_;
  std::vector<float> scores_;
};

/// Both passes of one case.
void condense_both(const OperatorSpec& spec, const Gaps& gaps, std::uint64_t seed,
                   Compared& compared) {
  SCOPED_TRACE(describe(spec) + " seed " + std::to_string(seed));
  CondenseOperator op(spec, gaps, seed);
  op.forward(compared);
  if (::testing::Test::HasFailure()) return;
  op.backward(seed % 3 == 0, seed % 5 == 0 ? static_cast<unsigned>(seed % 32) : 31u, compared);
}

TEST(CudaOperator, CondensingRandomLayersMatchesTheReferenceInBothPasses) {
  LCA_NEEDS_GPU();
  Random random(16001);
  Compared compared;
  for (std::uint64_t i = 0; i < 240; ++i) {
    const std::int64_t tokens = random.integer(1, 160);
    OperatorSpec spec = operator_spec(random_shape(random), random_settings(random, tokens), {});
    spec.layer.settings.method = MethodKind::lca;
    random_positions(spec.layer, random);
    const bool packed =
        spec.layer.settings.summary == Summary::streaming && random.chance(0.5) && tokens > 1;
    spec.starts = packed ? random_starts(tokens, random.integer(2, 40), random)
                         : std::vector<std::int64_t>{0, tokens};
    const Gaps gaps = random.pick<Gaps>({{0, 0}, {24, 0}, {16, 8}, {3, 1}});
    condense_both(spec, gaps, 100 + i, compared);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared.groups, 1000);
  EXPECT_LT(static_cast<double>(compared.near), 0.06 * static_cast<double>(compared.groups));
  RecordProperty("worst_error", std::to_string(compared.worst));
}

TEST(CudaOperator, CondensingModelShapesMatchesTheReferenceInBothPasses) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 16100;
  Compared compared;
  for (const AttentionShape& shape :
       {AttentionShape::mla(4, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
        AttentionShape::gqa(8, 2, 128, 128), AttentionShape::gqa(9, 3, 64, 64)}) {
    for (const std::int64_t group : {4, 8, 16, 32}) {
      for (const bool paper : {true, false}) {
        for (const bool entry : {false, true}) {
          Settings settings;
          settings.group = group;
          settings.window = seed % 3 == 0 ? 1 : 20;
          settings.sink = seed % 2 == 0 ? 0 : 5;
          settings.summary = Summary::streaming;
          settings.summary_queries = seed % 4 == 0 ? 1 : seed % 4 == 1 ? 40 : group;
          settings.semantic_pool = paper ? Pool::weighted : Pool::select;
          settings.mass = paper ? Mass::none : Mass::score;
          settings.head_reduce = seed % 5 == 0 ? HeadReduce::sum : HeadReduce::mean;
          if (entry) settings.positions = Positions::entry;
          OperatorSpec spec = operator_spec(shape, settings, {0, 150});
          if (seed % 7 < 3) spec.starts = {0, 3, 70, 71, 150};
          if (entry) {
            spec.layer.rotation = rotation_plain(shape.d_positional());
            spec.layer.rotation.layout = paper ? RopeLayout::halves : RopeLayout::adjacent;
          }
          const Gaps gaps = seed % 6 == 0 ? Gaps{3, 1} : seed % 6 < 3 ? Gaps{16, 8} : Gaps{};
          condense_both(spec, gaps, ++seed, compared);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  EXPECT_LT(static_cast<double>(compared.near), 0.06 * static_cast<double>(compared.groups));
  RecordProperty("worst_error", std::to_string(compared.worst));
}

TEST(CudaOperator, ManyPackedDocumentsFindTheirGroups) {
  LCA_NEEDS_GPU();
  Random random(16300);
  Compared compared;
  Settings settings;
  settings.group = 4;
  settings.window = 3;
  settings.summary = Summary::streaming;
  settings.summary_queries = 6;
  for (const AttentionShape& shape :
       {AttentionShape::gqa(2, 1, 64, 64), AttentionShape::mla(2, 64, 32, 256, 16)}) {
    const OperatorSpec spec = operator_spec(shape, settings, random_starts(6000, 1200, random));
    condense_both(spec, {}, 7, compared);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CudaOperator, LongDocumentsOfModelShapesCondenseByTheFusedSummary) {
  LCA_NEEDS_GPU();
  Compared compared;
  Settings settings;
  settings.group = 4;
  settings.window = 64;
  settings.summary = Summary::streaming;
  settings.summary_queries = 4;
  // Groups enough for query_summary to pay: 64 for each of half of the SMs.
  const OperatorSpec spec =
      operator_spec(AttentionShape::mla(1, 64, 32, 256, 8), settings, {0, 9000, 9100, 18500});
  condense_both(spec, {}, 11, compared);
}

TEST(CudaOperator, GradientsAreTheSameBitsInEveryRunAndInGraphs) {
  LCA_NEEDS_GPU();
  Settings settings;
  settings.group = 8;
  settings.window = 40;
  settings.summary = Summary::streaming;
  settings.summary_queries = 8;
  const AttentionShape shape = AttentionShape::mla(4, 64, 32, 256, 16);
  const OperatorSpec spec = operator_spec(shape, settings, {0, 900, 2500, 4000});
  Random random(16400);
  const OperatorValues inputs = random_values(spec, DType::bf16, random);
  std::vector<DeviceTensor> in;
  for (std::size_t i = 0; i < 5; ++i) in.emplace_back(*inputs.all()[i]);
  const CondenseInputs gpu_in{
      {in[0].view(), in[1].view()}, {in[2].view(), in[3].view()}, in[4].view()};
  const std::int64_t m = spec.groups();
  Values grad_semantic(DType::bf16, m, 1, shape.d_latent);
  Values grad_positional(DType::bf16, m, 1, shape.d_rope);
  grad_semantic.fill_normal(1, random);
  grad_positional.fill_normal(1, random);
  const DeviceTensor gpu_semantic(grad_semantic), gpu_positional(grad_positional);
  std::vector<std::vector<std::vector<double>>> results;
  for (int run = 0; run < 3; ++run) {
    const DeviceTensor rep_semantic(Values(DType::bf16, m, 1, shape.d_latent));
    const DeviceTensor rep_positional(Values(DType::bf16, m, 1, shape.d_rope));
    const DeviceArray<float> bias(nan_float(m)), scores(nan_float(m * settings.group));
    const OperatorValues empty = OperatorValues::of(spec, DType::bf16);
    std::vector<DeviceTensor> grads;
    for (std::size_t i = 0; i < 5; ++i) grads.emplace_back(*empty.all()[i]);
    const cuda::Stream stream(gpu());
    OperatorPlace place;
    place.backend = Backend::cuda;
    place.stream = static_cast<cudaStream_t>(stream);
    OperatorPlace back = place;
    OperatorScratch scratch(spec, OperatorPart::condense, place);
    OperatorScratch back_scratch(spec, OperatorPart::condense_backward, back);
    CondenseOutputs out;
    out.semantic = rep_semantic.tensor();
    out.positional = rep_positional.tensor();
    out.bias = bias.data();
    out.scores = scores.data();
    CondenseInputGrads to;
    to.q_nope = grads[0].tensor();
    to.q_rope = grads[1].tensor();
    to.semantic = grads[2].tensor();
    to.positional = grads[3].tensor();
    to.w_uk = grads[4].tensor();
    const auto call = [&] {
      operator_condense(spec, gpu_in, out, place);
      operator_condense_backward(spec, gpu_in, out,
                                 {gpu_semantic.view(), gpu_positional.view(), nullptr}, to, back);
    };
    if (run < 2) {
      call();
    } else {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
      call();
      cuda::check(cudaStreamEndCapture(stream, &graph), "capturing");
      cuda::check(cudaGraphInstantiate(&exec, graph, 0), "making a graph");
      cuda::check(cudaGraphLaunch(exec, stream), "launching a graph");
      stream.wait();
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
    stream.wait();
    results.emplace_back();
    for (const DeviceTensor& grad : grads) results.back().push_back(grad.download());
    results.back().push_back(rep_semantic.download());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace lca::test
