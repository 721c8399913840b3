#pragma once
/// Random tensors of a backward pass over long documents, and what the kernels make of them.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/backward/backward_plan.h"
#include "attention/cuda/prefill/prefill.h"
#include "attention/rotate.h"
#include "cuda/support.h"

namespace lca::test {

struct LongCase {
  const char* name;
  Form form;
  int heads, kv_heads;
  int width;  ///< of GQA's keys and values; MLA: 128+64/128
  std::int64_t group, window, sink;
  std::vector<std::int64_t> lengths;  ///< of documents
  bool entry = false;                 ///< positions are those of entries
  bool bias = false;
  bool cut = false;  ///< whether columns of representatives must have been cut into slices
};

class LongProblem {
 public:
  static constexpr std::size_t kTensors = 9, kBias = 8;

  /// [rows][heads][width] on both sides.
  struct Tensor {
    std::string name;
    std::int64_t rows = 0, heads = 0, width = 0;
    std::vector<bf16> host;
    DeviceArray<bf16> device;

    const bf16* at(std::int64_t row, std::int64_t head) const {
      return host.data() + (row * heads + head) * width;
    }
    cuda::HeadRows view(bool shared = false) const {
      if (width == 0) return {};
      return {device.data(), heads * width, shared ? 0 : width, static_cast<int>(width)};
    }
  };

  /// What the kernels wrote: q_nope, q_rope, then three parts of keys and of representatives, then
  /// biases.
  struct Gradients {
    std::vector<std::vector<bf16>> rows;
    std::vector<float> bias;

    double value(std::size_t tensor, std::size_t i) const {
      return tensor == kBias ? double_of(bias[i]) : double_of(rows[tensor][i]);
    }
  };

  explicit LongProblem(const LongCase& c) : setup(c), mla(c.form == Form::mla) {
    layout.group = c.group;
    layout.window = c.window;
    layout.sink = c.sink;
    for (const std::int64_t length : c.lengths) {
      runs.push_back({rows[0], 0, length, rows[0], 0, rows[1]});
      rows[0] += length;
      rows[1] += layout.groups(length);
    }
    const int key_heads = mla ? c.heads : c.kv_heads;
    nope = mla ? 128 : 0;
    rope = mla ? 64 : c.width;
    value = mla ? 128 : c.width;
    q[0] = tensor("q_nope", rows[0], c.heads, nope, kSharpness);
    q[1] = tensor("q_rope", rows[0], c.heads, rope, kSharpness);
    dout = tensor("dout", rows[0], c.heads, value, 1);
    for (int k = 0; k < 2; ++k) {
      const std::string rep = k == 0 ? "" : "rep ";
      keys[k][0] = tensor(rep + "k_nope", rows[k], key_heads, nope, 1);
      keys[k][1] = tensor(rep + "k_rope", rows[k], mla ? 1 : c.kv_heads, rope, 1);
      keys[k][2] = tensor(rep + "value", rows[k], key_heads, value, 1);
    }
    bias = random_float(random, rows[1] * c.kv_heads);
    if (c.entry) {
      rotation = rotation_plain(rope, 10000);
      steps_ = DeviceArray<std::uint64_t>(rotation_steps(rotation));
    }
    forward();
  }

  /// Slices that columns of representatives are cut into.
  int slices() const { return cuda::backward_plan(problem(nullptr), runs).far.count; }

  Gradients run(cuda::Kernels kernels) {
    std::vector<DeviceArray<bf16>> to;
    for (std::size_t i = 0; i < kBias; ++i) {
      to.emplace_back(nan_bf16(static_cast<std::int64_t>(input(i).host.size())));
    }
    DeviceArray<float> dbias(nan_float(rows[1] * setup.kv_heads));
    cuda::PrefillBackward made = problem(&to);
    made.dbias = dbias.data();
    cuda::Buffer workspace(cuda::backward_workspace_bytes(made, runs, kernels));
    cuda::check(cudaMemset(workspace.as<void>(), 0xff, workspace.bytes()), "poisoning");
    cuda::backward(made, runs, workspace.as<void>(), kernels, gpu_queue());
    Gradients got;
    for (const DeviceArray<bf16>& each : to) got.rows.push_back(each.download());
    got.bias = dbias.download();
    return got;
  }

  const Tensor& input(std::size_t i) const { return i < 2 ? q[i] : keys[(i - 2) / 3][(i - 2) % 3]; }
  std::int64_t width_of(std::size_t i) const { return i == kBias ? 1 : input(i).width; }
  std::int64_t heads_of(std::size_t i) const {
    return i == kBias ? setup.kv_heads : input(i).heads;
  }
  std::string name_of(std::size_t i) const { return i == kBias ? "bias" : input(i).name; }
  double scale() const {
    return double_of(static_cast<float>(1 / std::sqrt(static_cast<double>(nope + rope))));
  }
  std::int64_t kv_of(std::int64_t head) const {
    return mla ? head : head / (setup.heads / setup.kv_heads);
  }

  LongCase setup;
  bool mla;
  Layout layout;
  Rotation rotation;
  Random random{29};
  std::vector<cuda::PrefillRun> runs;
  std::int64_t rows[2] = {0, 0};  // of tokens and of representatives
  std::int64_t nope = 0, rope = 0, value = 0;
  Tensor q[2], dout, keys[2][3];
  std::vector<float> bias, lse;
  std::vector<bf16> out;

 private:
  static constexpr double kSharpness = 4;  // standard deviation of logits

  Tensor tensor(std::string name, std::int64_t count, std::int64_t heads, std::int64_t width,
                double size) {
    Tensor made{std::move(name), count, heads, width, {}, {}};
    // Drawn from a table: there are too many to make each.
    const std::vector<bf16> table = random_bf16(random, 1 << 16, size);
    made.host.resize(static_cast<std::size_t>(count * heads * width));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < made.host.size(); ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random.bits();
      made.host[i] = table[bits & 0xffff];
    }
    made.device = DeviceArray<bf16>(made.host);
    return made;
  }

  /// Without `to` no gradient is wanted.
  cuda::PrefillBackward problem(const std::vector<DeviceArray<bf16>>* to) const {
    cuda::PrefillBackward made;
    cuda::Prefill& forward = made.forward;
    forward.heads = setup.heads;
    forward.kv_heads = setup.kv_heads;
    forward.form = setup.form;
    forward.layout = layout;
    if (setup.entry) {
      forward.rotation = {steps_.data(), static_cast<int>(steps_.size()), rotation.layout};
    }
    forward.scale = static_cast<float>(scale());
    forward.q_nope = q[0].view();
    forward.q_rope = q[1].view();
    forward.query_rows = rows[0];
    cuda::KeyRows* const sides[2] = {&forward.exact, &forward.groups};
    for (int k = 0; k < 2; ++k) {
      *sides[k] = {keys[k][0].view(), keys[k][1].view(mla), keys[k][2].view(), rows[k]};
    }
    if (setup.bias) forward.bias = device_bias_.data();
    forward.out = device_out_.data();
    forward.lse = device_lse_.data();
    made.dout = dout.view();
    if (to == nullptr) return made;
    const auto grad = [&](std::size_t i) {
      const Tensor& like = input(i);
      return like.width == 0 ? cuda::GradRows{}
                             : cuda::GradRows{(*to)[i].data(), like.heads * like.width, like.width};
    };
    made.q_nope = grad(0);
    made.q_rope = grad(1);
    made.exact = {grad(2), grad(3), grad(4)};
    made.groups = {grad(5), grad(6), grad(7)};
    return made;
  }

  void forward() {
    device_bias_ = DeviceArray<float>(bias);
    device_out_ = DeviceArray<bf16>(nan_bf16(rows[0] * setup.heads * value));
    device_lse_ = DeviceArray<float>(nan_float(rows[0] * setup.heads));
    cuda::Buffer workspace(cuda::prefill_workspace_bytes(runs.size()));
    cuda::prefill(problem(nullptr).forward, runs, workspace.as<void>(), cuda::Kernels::fast,
                  gpu_queue());
    out = device_out_.download();
    lse = device_lse_.download();
  }

  DeviceArray<std::uint64_t> steps_;
  DeviceArray<float> device_bias_, device_lse_;
  DeviceArray<bf16> device_out_;
};

}  // namespace lca::test
