// The golden files of an independent implementation, against the reference and the fast path.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/reference/reference.h"
#include "formats/op_file.h"
#include "formats/safetensors.h"
#include "support/compare.h"
#include "support/feed.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFewestCases = 40;
// Both sides compute in double precision from the same stored inputs; they differ in the order of
// their sums.
constexpr double kToleranceReference = 1e-9;

// Input files that have an expected file beside them.
std::vector<fs::path> golden_cases() {
  std::vector<fs::path> cases;
  for (const auto& entry : fs::directory_iterator(fs::path(LCA_SOURCE_DIR) / "tests/golden/op")) {
    const fs::path& path = entry.path();
    if (path.extension() != ".safetensors") continue;
    if (path.stem().extension() == ".expected") continue;
    cases.push_back(path);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::vector<double> read_doubles(const Safetensors& file, const char* name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != TensorType::f64) {
    throw std::runtime_error(file.name() + " has no float64 tensor " + name);
  }
  std::vector<double> values(tensor->bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

reference::Result read_expected(const fs::path& input, const AttentionShape& shape) {
  fs::path path = input;
  path.replace_extension(".expected.safetensors");
  const Safetensors file = Safetensors::open(path);
  const bool is_mla = shape.form == Form::mla;
  reference::Result expected;
  expected.out = read_doubles(file, "out");
  expected.lse = read_doubles(file, "lse");
  expected.rep_semantic = read_doubles(file, is_mla ? "rep_c" : "rep_v");
  expected.rep_positional = read_doubles(file, is_mla ? "rep_k_rope" : "rep_k");
  expected.rep_bias = read_doubles(file, "rep_bias");
  return expected;
}

void append(std::vector<double>& all, const std::vector<double>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

using Compute = std::function<reference::Result(const Source& source,
                                                const std::vector<std::int64_t>& prefill)>;

// Batch entry after batch entry, and in each document after document: the order of the file.
reference::Result compute_all(const OpInput& input, const Compute& compute) {
  std::vector<std::int64_t> starts = input.documents;
  if (starts.empty()) starts = {0, input.length};
  reference::Result all;
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    const Source whole(input.spec, input.weights(), input.queries(entry), input.entries(entry));
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const std::int64_t length = starts[d + 1] - starts[d];
      const Source document(input.spec, input.weights(), whole.queries(starts[d], length),
                            whole.entries(starts[d], length));
      const std::vector<std::int64_t> prefill =
          input.documents.empty() ? input.prefill : std::vector<std::int64_t>{length};
      const reference::Result part = compute(document, prefill);
      append(all.out, part.out);
      append(all.lse, part.lse);
      append(all.rep_semantic, part.rep_semantic);
      append(all.rep_positional, part.rep_positional);
      append(all.rep_bias, part.rep_bias);
    }
  }
  return all;
}

void expect_agreement(const Compute& compute, double tolerance_f32, double tolerance_bf16) {
  const std::vector<fs::path> cases = golden_cases();
  ASSERT_GE(cases.size(), kFewestCases);
  for (const fs::path& path : cases) {
    SCOPED_TRACE(path.filename().string());
    const OpInput input = OpInput::read(path);
    const reference::Result expected = read_expected(path, input.spec.shape);
    EXPECT_EQ(expected.rep_bias.size(),
              static_cast<std::size_t>(input.batch * input.groups() * input.spec.shape.kv_heads));
    EXPECT_TRUE(close(expected, compute_all(input, compute),
                      input.spec.dtype == DType::f32 ? tolerance_f32 : tolerance_bf16));
  }
}

TEST(Golden, TheReferenceAgreesWithAnIndependentImplementation) {
  const Compute reference_of = [](const Source& source, const std::vector<std::int64_t>& prefill) {
    std::int64_t prompt = 0;
    for (std::int64_t chunk : prefill) prompt += chunk;
    return truth(source, prompt);
  };
  expect_agreement(reference_of, kToleranceReference, kToleranceReference);
}

class GoldenManner : public ::testing::TestWithParam<Manner> {};

TEST_P(GoldenManner, TheFastPathAgreesWithAnIndependentImplementation) {
  Context context(2);
  const Compute fast = [&](const Source& source, const std::vector<std::int64_t>& prefill) {
    return widen(run_sequence(context, source, prefill, GetParam()));
  };
  expect_agreement(fast, kToleranceF32, kToleranceBf16);
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenManner,
                         ::testing::Values(Manner{.poison = true},
                                           Manner{.poison = true, .trim_queries = true},
                                           Manner{.poison = true, .attend_chunks = true}));

}  // namespace
}  // namespace lca::test
