#include "formats/op_file.h"
#include "formats/safetensors.h"

#include <span>
#include <string>
#include <utility>

namespace lca {
namespace {

TensorInfo float_tensor(std::string name, std::vector<std::int64_t> dims,
                        const std::vector<float>& values) {
  return {std::move(name), TensorType::f32, std::move(dims), std::as_bytes(std::span(values))};
}

}  // namespace

OpOutput::OpOutput(const OpInput& input)
    : shape(input.spec.shape), batch(input.batch), length(input.length), groups(input.groups()) {
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const std::int64_t representatives = batch * groups * shape.kv_heads;
  out.resize(size(batch * length * shape.heads * shape.d_value));
  lse.resize(size(batch * length * shape.heads));
  rep_semantic.resize(size(representatives * shape.d_semantic()));
  rep_positional.resize(size(representatives * shape.d_positional()));
  rep_bias.resize(size(representatives));
}

void op_output_write(FileWriter& writer, const OpOutput& output) {
  const AttentionShape& shape = output.shape;
  const std::int64_t b = output.batch, n = output.length, m = output.groups;
  std::vector<TensorInfo> tensors = {
      float_tensor("out", {b, n, shape.heads, shape.d_value}, output.out),
      float_tensor("lse", {b, n, shape.heads}, output.lse),
  };
  if (shape.form == Form::mla) {
    tensors.push_back(float_tensor("rep_c", {b, m, shape.d_latent}, output.rep_semantic));
    tensors.push_back(float_tensor("rep_k_rope", {b, m, shape.d_rope}, output.rep_positional));
    tensors.push_back(float_tensor("rep_bias", {b, m}, output.rep_bias));
  } else {
    const std::int64_t kv = shape.kv_heads;
    tensors.push_back(float_tensor("rep_v", {b, m, kv, shape.d_value}, output.rep_semantic));
    tensors.push_back(float_tensor("rep_k", {b, m, kv, shape.d_rope}, output.rep_positional));
    tensors.push_back(float_tensor("rep_bias", {b, m, kv}, output.rep_bias));
  }
  safetensors_write(writer, tensors);
  writer.commit();
}

void op_gradients_write(FileWriter& writer, const OpGradients& gradients) {
  const AttentionShape& shape = gradients.shape;
  const std::int64_t b = gradients.batch, n = gradients.length;
  std::vector<TensorInfo> tensors;
  if (shape.form == Form::mla) {
    tensors = {
        float_tensor("d_q_nope", {b, n, shape.heads, shape.d_nope}, gradients.nope),
        float_tensor("d_q_rope", {b, n, shape.heads, shape.d_rope}, gradients.rope),
        float_tensor("d_c", {b, n, shape.d_latent}, gradients.semantic),
        float_tensor("d_k_rope", {b, n, shape.d_rope}, gradients.positional),
        float_tensor("d_w_uk", {shape.heads, shape.d_nope, shape.d_latent}, gradients.w_uk),
        float_tensor("d_w_uv", {shape.heads, shape.d_value, shape.d_latent}, gradients.w_uv),
    };
  } else {
    tensors = {
        float_tensor("d_q", {b, n, shape.heads, shape.d_rope}, gradients.rope),
        float_tensor("d_k", {b, n, shape.kv_heads, shape.d_rope}, gradients.positional),
        float_tensor("d_v", {b, n, shape.kv_heads, shape.d_value}, gradients.semantic),
    };
  }
  safetensors_write(writer, tensors);
  writer.commit();
}

}  // namespace lca
