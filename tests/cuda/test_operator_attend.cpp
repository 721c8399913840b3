// Attention as an operator on the GPU against the double-precision reference on the same bf16
// values, both passes: strided tensors, packed documents, NaN in outputs and scratch.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention/reference/operator.h"
#include "attention/rotate.h"
#include "cuda/operator_device.h"
#include "support/compare.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

/// One case of attention, both passes.
void attend_both(const OperatorSpec& spec, const Gaps& gaps, bool portable, Random& random,
                 double& worst) {
  SCOPED_TRACE(describe(spec) + (portable ? " portable" : ""));
  const AttentionShape& shape = spec.layer.shape;
  const bool mla = shape.form == Form::mla;
  const std::int64_t n = spec.tokens();
  const std::int64_t m = spec.groups();
  const std::int64_t value_heads = mla ? shape.heads : shape.kv_heads;
  const std::int64_t d_nope = mla ? shape.d_nope : 0;
  // Queries, then keys and values of tokens and of representatives.
  const auto tensors = [&](DType dtype) {
    std::vector<Values> list;
    list.emplace_back(dtype, n, shape.heads, d_nope);
    list.emplace_back(dtype, n, shape.heads, shape.d_rope);
    for (const std::int64_t rows : {n, m}) {
      list.emplace_back(dtype, rows, shape.heads, d_nope);
      list.emplace_back(dtype, rows, shape.kv_heads, shape.d_rope);
      list.emplace_back(dtype, rows, value_heads, shape.d_value);
    }
    return list;
  };
  std::vector<Values> host = tensors(DType::bf16);
  for (Values& values : host) values.fill_normal(1, random);
  const std::vector<float> bias = random_float(random, m * shape.kv_heads);
  const DeviceArray<float> gpu_bias(bias);
  const auto to_device = [&](const std::vector<Values>& list) {
    std::vector<DeviceTensor> device;
    for (const Values& values : list) device.emplace_back(values, gaps.row, gaps.head);
    return device;
  };
  const std::vector<DeviceTensor> device = to_device(host);
  const auto inputs = [&](const auto& list, const float* biases) {
    const auto nope = [&](std::size_t i) { return mla ? list[i].view() : ConstTensor{}; };
    AttendInputs in;
    in.queries = {nope(0), list[1].view()};
    in.exact = {nope(2), list[3].view(), list[4].view()};
    in.groups = {nope(5), list[6].view(), list[7].view()};
    in.bias = biases;
    return in;
  };
  const AttendInputs gpu_in = inputs(device, gpu_bias.data());
  const AttendInputs host_in = inputs(host, bias.data());
  const DeviceTensor out(Values(DType::bf16, n, shape.heads, shape.d_value));
  const DeviceArray<float> lse(nan_float(n * shape.heads));
  OperatorPlace place;
  place.backend = Backend::cuda;
  place.portable = portable;
  const OperatorScratch scratch(spec, OperatorPart::attend, place);
  operator_attend(spec, gpu_in, {out.tensor(), lse.data()}, place);
  scratch.guard_check();

  Values want(DType::f64, n, shape.heads, shape.d_value);
  std::vector<float> want_lse(static_cast<std::size_t>(n * shape.heads));
  AttendOutputs to;
  to.out = want.tensor();
  to.lse = want_lse.data();
  reference::attend(spec, host_in, to);
  EXPECT_LE(error_of(want.doubles(), out.download()), kToleranceBf16);
  EXPECT_LE(error_of(floats_like(want_lse).doubles(), floats_like(lse.download()).doubles(), 1.0),
            1e-2);
  if (::testing::Test::HasFailure()) return;

  Values out_grad(DType::bf16, n, shape.heads, shape.d_value);
  out_grad.fill_normal(1, random);
  const DeviceTensor gpu_out_grad(out_grad, gaps.row, gaps.head);
  const auto grads = [&](auto& list, float* biases) {
    const auto nope = [&](std::size_t i) { return mla ? list[i].tensor() : Tensor{}; };
    AttendInputGrads of;
    of.q_nope = nope(0);
    of.q_rope = list[1].tensor();
    of.exact = {nope(2), list[3].tensor(), list[4].tensor()};
    of.groups = {nope(5), list[6].tensor(), list[7].tensor()};
    of.bias = biases;
    return of;
  };
  std::vector<DeviceTensor> gpu_grads = to_device(tensors(DType::bf16));
  const DeviceArray<float> gpu_bias_grad(nan_float(m * shape.kv_heads));
  const OperatorScratch back_scratch(spec, OperatorPart::attend_backward, place);
  operator_attend_backward(spec, gpu_in, out.view(), lse.data(), gpu_out_grad.view(),
                           grads(gpu_grads, gpu_bias_grad.data()), place);
  back_scratch.guard_check();
  std::vector<Values> want_grads = tensors(DType::f64);
  std::vector<float> want_bias(bias.size());
  reference::attend_backward(spec, host_in, out_grad.view(), grads(want_grads, want_bias.data()));
  for (std::size_t i = 0; i < want_grads.size(); ++i) {
    if (want_grads[i].size() == 0) continue;
    const double error = error_of(want_grads[i].doubles(), gpu_grads[i].download());
    EXPECT_LE(error, kToleranceBf16) << "gradient " << i;
    worst = std::fmax(worst, error);
  }
  EXPECT_LE(
      error_of(floats_like(want_bias).doubles(), floats_like(gpu_bias_grad.download()).doubles()),
      kToleranceBf16)
      << "gradient of the bias";
}

TEST(CudaOperator, AttendingRandomLayersMatchesTheReferenceInBothPasses) {
  LCA_NEEDS_GPU();
  Random random(16500);
  double worst = 0;
  for (std::uint64_t i = 0; i < 120; ++i) {
    const std::int64_t tokens = random.integer(1, 160);
    OperatorSpec spec = operator_spec(random_shape(random), random_settings(random, tokens), {});
    spec.layer.settings.summary = Summary::streaming;
    random_positions(spec.layer, random);
    spec.starts = random.chance(0.5) && tokens > 1
                      ? random_starts(tokens, random.integer(2, 20), random)
                      : std::vector<std::int64_t>{0, tokens};
    attend_both(spec, random.pick<Gaps>({{0, 0}, {24, 0}, {16, 8}, {3, 1}}), random.chance(0.3),
                random, worst);
    if (::testing::Test::HasFailure()) return;
  }
  RecordProperty("worst_error", std::to_string(worst));
}

TEST(CudaOperator, AttendingModelShapesMatchesTheReferenceInBothPasses) {
  LCA_NEEDS_GPU();
  Random random(16600);
  double worst = 0;
  for (const AttentionShape& shape :
       {AttentionShape::mla(2, 128, 64, 512, 128), AttentionShape::gqa(4, 2, 128, 128),
        AttentionShape::gqa(3, 1, 64, 64)}) {
    for (const bool entry : {false, true}) {
      Settings settings;
      settings.group = entry ? 16 : 4;
      settings.window = 128;
      settings.sink = entry ? 16 : 0;
      settings.summary = Summary::streaming;
      settings.mass = Mass::score;
      if (entry) settings.positions = Positions::entry;
      OperatorSpec spec = operator_spec(shape, settings, {0, 300, 301, 700});
      if (entry) spec.layer.rotation = rotation_plain(shape.d_positional());
      attend_both(spec, entry ? Gaps{} : Gaps{16, 8}, false, random, worst);
      if (::testing::Test::HasFailure()) return;
    }
  }
  RecordProperty("worst_error", std::to_string(worst));
}

TEST(CudaOperator, WrongPlacesAreRefused) {
  LCA_NEEDS_GPU();
  const OperatorSpec spec = operator_spec(AttentionShape::gqa(2, 1, 8, 8), {}, {0, 4});
  const DeviceTensor q(Values(DType::bf16, 4, 2, 8)), k(Values(DType::bf16, 4, 1, 8));
  AttendInputs in;
  in.queries = Queries::gqa(q.view());
  in.exact = {{}, k.view(), k.view()};
  const DeviceTensor out(Values(DType::bf16, 4, 2, 8)), gap(Values(DType::bf16, 4, 2, 8), 8);
  OperatorPlace place;
  place.backend = Backend::cuda;
  EXPECT_THROW(operator_attend(spec, in, {out.tensor()}, place), Error);  // no workspace
  OperatorScratch scratch(spec, OperatorPart::attend, place);
  EXPECT_THROW(operator_attend(spec, in, {gap.tensor()}, place), Error);  // out has gaps
  place.device = 1000;
  EXPECT_THROW(operator_attend(spec, in, {out.tensor()}, place), Error);
}

}  // namespace
}  // namespace lca::test
