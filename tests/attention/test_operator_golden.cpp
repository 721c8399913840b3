// The golden gradients of an independent implementation against the reference, and against its
// halves composed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/reference/backward.h"
#include "formats/op_file.h"
#include "formats/safetensors.h"
#include "support/compare.h"
#include "support/operator_case.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

// Both sides compute in double from the same stored inputs, in another order.
constexpr double kToleranceGradient = 1e-10;

std::vector<fs::path> gradient_cases() {
  std::vector<fs::path> cases;
  const fs::path folder = fs::path(LCA_SOURCE_DIR) / "tests/golden/backward";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".safetensors" || path.stem().extension() == ".expected") continue;
    cases.push_back(path);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

OperatorSpec golden_spec(const OpInput& input) {
  OperatorSpec spec;
  spec.layer = input.spec;
  spec.starts = input.documents;
  if (spec.starts.empty()) spec.starts = {0, input.length};
  return spec;
}

std::vector<double> expected_gradient(const Safetensors& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != TensorType::f64) {
    throw std::runtime_error(file.name() + " has no float64 tensor " + name);
  }
  std::vector<double> values(tensor->bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

// Gradients of the whole batch, in the order of OperatorValues::kNames.
using AllGradients = std::array<std::vector<double>, 6>;

void append_entry(const std::array<std::vector<double>, 6>& part, AllGradients& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < 4) {
      all[i].insert(all[i].end(), part[i].begin(), part[i].end());
    } else if (all[i].empty()) {
      all[i] = part[i];
    } else {  // weights are shared
      std::transform(all[i].begin(), all[i].end(), part[i].begin(), all[i].begin(), std::plus<>());
    }
  }
}

Values values_read(const ConstTensor& tensor) {
  Values values(DType::f64, tensor.shape[0], tensor.shape[1], tensor.shape[2]);
  if (tensor.empty()) return {};
  const reference::Array array =
      reference::read("input", tensor, tensor.shape[0], tensor.shape[1], tensor.shape[2]);
  for (std::int64_t i = 0; i < values.size(); ++i) {
    values.set(i, array.values[static_cast<std::size_t>(i)]);
  }
  return values;
}

AllGradients whole_gradients(const OpInput& input) {
  AllGradients all;
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    const reference::Gradients part =
        reference::attention_backward(golden_spec(input), input.weights(), input.queries(entry),
                                      input.entries(entry), input.out_grad(entry));
    append_entry({part.q_nope.values, part.q_rope.values, part.semantic.values,
                  part.positional.values, part.w_uk.values, part.w_uv.values},
                 all);
  }
  return all;
}

AllGradients composed_gradients(const OpInput& input) {
  AllGradients all;
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    OperatorValues inputs;
    inputs.q_nope = values_read(input.queries(entry).nope);
    inputs.q_rope = values_read(input.queries(entry).rope);
    inputs.semantic = values_read(input.entries(entry).semantic);
    inputs.positional = values_read(input.entries(entry).positional);
    inputs.w_uk = values_read(input.weights().w_uk);
    inputs.w_uv = values_read(input.weights().w_uv);
    const Composed composed(golden_spec(input), inputs,
                            OperatorPlace{.backend = Backend::reference});
    const OperatorValues grads = composed.backward(values_read(input.out_grad(entry)));
    AllGradients part;
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = grads.all()[i]->doubles();
    append_entry(part, all);
  }
  return all;
}

class OperatorGolden : public ::testing::TestWithParam<AllGradients (*)(const OpInput&)> {};

TEST_P(OperatorGolden, GradientsAreThoseOfAnIndependentImplementation) {
  const std::vector<fs::path> cases = gradient_cases();
  ASSERT_GE(cases.size(), 50u);
  for (const fs::path& path : cases) {
    SCOPED_TRACE(path.filename().string());
    const OpInput input = OpInput::read(path, {}, OpTask::backward);
    fs::path beside = path;
    const Safetensors file = Safetensors::open(beside.replace_extension(".expected.safetensors"));
    const bool mla = input.spec.shape.form == Form::mla;
    const std::array<std::string, 6> names =
        mla ? std::array<std::string, 6>{"d_q_nope", "d_q_rope", "d_c",
                                         "d_k_rope", "d_w_uk",   "d_w_uv"}
            : std::array<std::string, 6>{"", "d_q", "d_v", "d_k", "", ""};
    const AllGradients actual = GetParam()(input);
    EXPECT_EQ(file.tensors().size(), mla ? 6u : 3u);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i].empty()) continue;
      EXPECT_LE(error_of(expected_gradient(file, names[i]), actual[i]), kToleranceGradient)
          << names[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WholeAndHalves, OperatorGolden,
                         ::testing::Values(whole_gradients, composed_gradients));

TEST(OperatorGoldenFiles, TheCasesMeetEveryOption) {
  std::set<std::string> seen;
  for (const fs::path& path : gradient_cases()) {
    const OpInput input = OpInput::read(path, {}, OpTask::backward);
    const std::string form = input.spec.shape.form == Form::mla ? "mla" : "gqa";
    for (const SettingField& field : setting_fields()) {
      if (field.is_integer) continue;
      const auto at = static_cast<std::size_t>(field.get(input.spec.settings));
      seen.insert(form + " " + std::string(field.name) + " " + std::string(field.choices[at]));
    }
    if (input.spec.settings.sink > 0 && input.groups() > 0) seen.insert(form + " sink");
    if (input.documents.size() > 2 && input.groups() > 0) seen.insert(form + " packed");
  }
  for (const std::string form : {"mla", "gqa"}) {
    for (const SettingField& field : setting_fields()) {
      for (const std::string_view choice : field.choices) {
        const std::string option = form + " " + std::string(field.name) + " " + std::string(choice);
        EXPECT_TRUE(seen.contains(option)) << option;
      }
    }
    EXPECT_TRUE(seen.contains(form + " sink"));
    EXPECT_TRUE(seen.contains(form + " packed"));
  }
}

}  // namespace
}  // namespace lca::test
