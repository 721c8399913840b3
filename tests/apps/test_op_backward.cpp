// `lca op backward`, end to end: files in, gradients out.

#include "apps/program.h"
#include "formats/byte_files.h"
#include "formats/safetensors.h"
#include "support/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace lca::test {
namespace {

namespace fs = std::filesystem;

Finished op_backward(const fs::path& in, const fs::path& out,
                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"op", "backward", in.string(), out.string()};
  words.insert(words.end(), more.begin(), more.end());
  return program_run(words);
}

template <typename T>
std::vector<double> tensor_doubles(const TensorInfo& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return {values.begin(), values.end()};
}

fs::path golden_gradients(const std::string& name) {
  return fs::path(LCA_SOURCE_DIR) / "tests/golden/backward" / name;
}

TEST(OpBackwardCommand, ReproducesTheGoldenGradientsInFloat32) {
  const ScratchFolder folder;
  for (const char* name : {"mla_packed", "mla_batch", "gqa_batch", "gqa_packed_entry", "mla_bf16",
                           "gqa_dense", "mla_pool_max_select", "gqa_pool_weighted_select"}) {
    SCOPED_TRACE(name);
    const fs::path out = folder / "out.safetensors";
    const Finished finished =
        op_backward(golden_gradients(std::string(name) + ".safetensors"), out);
    ASSERT_EQ(finished.code, 0) << finished.err;
    EXPECT_TRUE(finished.out.empty() && finished.err.empty());
    const Safetensors expected =
        Safetensors::open(golden_gradients(std::string(name) + ".expected.safetensors"));
    const Safetensors actual = Safetensors::open(out);
    EXPECT_EQ(actual.tensors().size(), expected.tensors().size());
    for (const TensorInfo& tensor : expected.tensors()) {
      const TensorInfo* mine = actual.find(tensor.name);
      ASSERT_NE(mine, nullptr) << tensor.name;
      EXPECT_EQ(mine->dtype, TensorType::f32);
      EXPECT_EQ(mine->shape, tensor.shape) << tensor.name;
      EXPECT_LE(error_of(tensor_doubles<double>(tensor), tensor_doubles<float>(*mine)), 1e-6)
          << tensor.name;
    }
  }
}

TEST(OpBackwardCommand, FlagsOverrideWhatTheFileSays) {
  const ScratchFolder folder;
  const fs::path in = golden_gradients("gqa_dense.safetensors");
  ASSERT_EQ(op_backward(in, folder / "dense").code, 0);
  ASSERT_EQ(op_backward(in, folder / "window", {"--method", "window", "--window", "2"}).code, 0);
  EXPECT_NE(read_file(folder / "dense"), read_file(folder / "window"));
}

TEST(OpBackwardCommand, AFileWithoutTheGradientOfTheOutputIsRefused) {
  const ScratchFolder folder;
  const fs::path plain = fs::path(LCA_SOURCE_DIR) / "tests/golden/op/gqa_h1.safetensors";
  const Finished missing = op_backward(plain, folder / "out");
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("grad_out"), std::string::npos) << missing.err;
  // … and attention alone has no use for it.
  const Finished unknown =
      program_run({"op", "attention", golden_gradients("gqa_dense.safetensors").string(),
                   (folder / "out").string()});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("unknown tensor \"grad_out\""), std::string::npos) << unknown.err;
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace lca::test
