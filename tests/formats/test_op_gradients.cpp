// Files of gradients: what `lca op backward` reads and writes.

#include "formats/op_file.h"
#include "op_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lca::test {
namespace {

/// A GQA file of H 2, KV 1, d 3, d_v 2, with the gradient of its output.
FileBuilder gradient_file(std::int64_t n) {
  FileBuilder file;
  file.add("q", "F32", {1, n, 2, 3}).add("k", "F32", {1, n, 1, 3}).add("v", "F32", {1, n, 1, 2});
  file.add("grad_out", "F32", {1, n, 2, 2});
  return file;
}

OpInput backward_parse(const FileBuilder& file) {
  const std::string bytes = file.bytes();
  return OpInput::parse(bytes_of(bytes), "in.safetensors", {}, OpTask::backward);
}

TEST(OpGradients, TheGradientOfTheOutputIsReadBesideTheInputs) {
  const OpInput input = backward_parse(gradient_file(5));
  const ConstTensor grad = input.out_grad(0);
  EXPECT_EQ(grad.shape, (std::array<std::int64_t, 3>{5, 2, 2}));
  EXPECT_FALSE(grad.empty());
  // Attention alone knows no such tensor.
  expect_bad_op(gradient_file(5), {"unknown tensor \"grad_out\""});
}

TEST(OpGradients, AWrongGradientOfTheOutputIsNamed) {
  FileBuilder missing;
  missing.add("q", "F32", {1, 5, 2, 3}).add("k", "F32", {1, 5, 1, 3}).add("v", "F32", {1, 5, 1, 2});
  expect_error([&] { backward_parse(missing); }, {"in.safetensors: ", "\"grad_out\"", "missing"});
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{1, 4, 2, 2}, {2, 5, 2, 2}, {1, 5, 1, 2}, {1, 5, 2, 3}}) {
    FileBuilder file = missing;
    file.add("grad_out", "F32", shape);
    expect_error([&] { backward_parse(file); }, {"in.safetensors: ", "\"grad_out\": shape"});
  }
  FileBuilder narrow = missing;
  narrow.add("grad_out", "I32", {1, 5, 2, 2});
  expect_error([&] { backward_parse(narrow); }, {"\"grad_out\": dtype must be F32 or BF16"});
}

TEST(OpGradients, ChunksOfThePromptAreRefused) {
  FileBuilder file = gradient_file(5);
  file.settings(R"({"prefill":[5]})");
  expect_error([&] { backward_parse(file); }, {"prefill does not go together with gradients"});
}

}  // namespace
}  // namespace lca::test
