// `lca op attention --backend cuda`, end to end: the real program on the golden files, and on files
// with the widths of models, against its own `--backend reference` on the same bf16 inputs.
//
// What is allowed: ‖Δout‖ ≤ 5e-3·‖out‖, and for log-sum-exps 2e-3 of the largest, at least 2e-3.
// Rounding rebuilt keys, values, absorbed queries, weights and outputs to bf16 in a float64 model
// of the kernels gives at most 4.3e-3 and 1.6e-3 on these files. Where a near tie (1e-3 of the
// score) made `select` take another row (mechanism §3), the file is left out and counted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "attention/reference/reference.h"
#include "attention/rotate.h"
#include "cuda/support.h"
#include "formats/byte_files.h"
#include "formats/op_file.h"
#include "formats/safetensors.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

constexpr double kToleranceOut = 5e-3;
constexpr double kToleranceLog = 2e-3;
constexpr double kToleranceEntry = 2.5;  // times those: the rotated query is rounded once more
constexpr double kNearTie = 1e-3;
constexpr std::size_t kFewestGolden = 40;
// Most of a run is CUDA starting: enough at once to hide that.
constexpr unsigned kMostAtOnce = 8;

constexpr const char* kKernels[] = {"fast", "portable"};

// --- running the program -----------------------------------------------------------------------

// Program and sources may have moved together since they were built: beside this program first.
fs::path own_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

fs::path program_path() {
  const fs::path beside = own_folder() / "lca";
  return fs::exists(beside) ? beside : fs::path(LCA_PROGRAM);
}

fs::path golden_folder() {
  const fs::path built = fs::path(LCA_SOURCE_DIR) / "tests/golden/op";
  return fs::exists(built) ? built : own_folder() / "../../../tests/golden/op";
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// Runs `lca op attention IN OUT …`; what went wrong, or nothing.
std::string op(const fs::path& in, const fs::path& out, const std::string& flags) {
  const std::string command =
      fmt::format("{} op attention {} {} {} 2>&1 </dev/null", quoted(program_path().string()),
                  quoted(in.string()), quoted(out.string()), flags);
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return "cannot start " + command;
  std::string said;
  char block[4096];
  for (std::size_t count = 0; (count = std::fread(block, 1, sizeof block, pipe)) > 0;) {
    said.append(block, count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && said.empty()) return {};
  return fmt::format("exit {}, said: {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1, said);
}

// --- files -------------------------------------------------------------------------------------

// The same file with every float32 rounded to bf16.
void write_rounded(const fs::path& from, const fs::path& to) {
  const Safetensors file = Safetensors::open(from);
  std::vector<TensorInfo> tensors = file.tensors();
  std::vector<std::vector<bf16_bits>> rounded(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorInfo& tensor = tensors[i];
    if (tensor.dtype != TensorType::f32 || tensor.name == "rope_frequencies") continue;
    rounded[i].resize(tensor.bytes.size() / sizeof(float));
    for (std::size_t k = 0; k < rounded[i].size(); ++k) {
      float value = 0;
      std::memcpy(&value, tensor.bytes.data() + k * sizeof(float), sizeof value);
      rounded[i][k] = bf16_from_f32(value);
    }
    tensor.dtype = TensorType::bf16;
    tensor.bytes = std::as_bytes(std::span(rounded[i]));
  }
  FileWriter writer(to);
  safetensors_write(writer, tensors, file.metadata());
  writer.commit();
}

std::vector<double> normal_values(std::int64_t count, double size, Random& random) {
  std::vector<double> list(static_cast<std::size_t>(count));
  for (double& value : list) value = size * random.normal();
  return list;
}

// Widths that have kernels of their own: prompts in two chunks, then decoding, with groups leaving
// the window in both.
constexpr std::int64_t kTokens = 300;
constexpr const char* kSettings =
    R"({"group":16,"window":64,"sink":16,"mass":"score","prefill":[150,120]})";
constexpr const char* kSettingsEntry =
    R"({"group":16,"window":64,"sink":16,"mass":"score","prefill":[150,120],)"
    R"("positions":"entry","rope_layout":"half"})";

// The same file with entry positions.
FileBuilder with_entry(FileBuilder file, std::int64_t width) {
  std::vector<double> frequencies = rotation_plain(width).frequencies;
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  return file.add("rope_frequencies", "F32", {pairs}, frequencies).settings(kSettingsEntry);
}

FileBuilder wide_mla(std::int64_t heads, std::int64_t d_n, std::int64_t d_r, std::int64_t d_c,
                     std::int64_t d_v, std::uint64_t seed) {
  Random random(seed);
  const double weight = 1 / std::sqrt(static_cast<double>(d_c));
  FileBuilder file;
  file.add("q_nope", "BF16", {1, kTokens, heads, d_n},
           normal_values(kTokens * heads * d_n, 1, random))
      .add("q_rope", "BF16", {1, kTokens, heads, d_r},
           normal_values(kTokens * heads * d_r, 1, random))
      .add("c", "BF16", {1, kTokens, d_c}, normal_values(kTokens * d_c, 1, random))
      .add("k_rope", "BF16", {1, kTokens, d_r}, normal_values(kTokens * d_r, 1, random))
      .add("w_uk", "BF16", {heads, d_n, d_c}, normal_values(heads * d_n * d_c, weight, random))
      .add("w_uv", "BF16", {heads, d_v, d_c}, normal_values(heads * d_v * d_c, weight, random))
      .settings(kSettings);
  return file;
}

FileBuilder wide_gqa(std::int64_t heads, std::int64_t kv, std::int64_t d, std::uint64_t seed) {
  Random random(seed);
  FileBuilder file;
  file.add("q", "BF16", {1, kTokens, heads, d}, normal_values(kTokens * heads * d, 1, random))
      .add("k", "BF16", {1, kTokens, kv, d}, normal_values(kTokens * kv * d, 1, random))
      .add("v", "BF16", {1, kTokens, kv, d}, normal_values(kTokens * kv * d, 1, random))
      .settings(kSettings);
  return file;
}

// --- comparing ---------------------------------------------------------------------------------

std::vector<float> floats(const Safetensors& file, const char* name) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != TensorType::f32) {
    throw std::runtime_error(file.name() + " has no float32 tensor " + name);
  }
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

// Best scores and margins of all groups, in the order of the file's representatives.
struct Margins {
  std::vector<double> top, margin;
};

Margins margins_of(const OpInput& input) {
  std::vector<std::int64_t> starts = input.documents;
  if (starts.empty()) starts = {0, input.length};
  std::int64_t prompt = 0;
  for (const std::int64_t chunk : input.prefill) prompt += chunk;
  const auto part = [](const ConstTensor& all, std::int64_t first, std::int64_t count) {
    return all.empty() ? all : all.slice(first, count);
  };
  Margins margins;
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    const Queries queries = input.queries(entry);
    const Entries entries = input.entries(entry);
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const std::int64_t first = starts[d];
      const std::int64_t count = starts[d + 1] - first;
      const reference::Result result = reference::attention(
          input.spec, input.weights(),
          {part(queries.nope, first, count), part(queries.rope, first, count)},
          {part(entries.semantic, first, count), part(entries.positional, first, count)},
          input.documents.empty() ? prompt : count);
      margins.top.insert(margins.top.end(), result.rep_top.begin(), result.rep_top.end());
      margins.margin.insert(margins.margin.end(), result.rep_margin.begin(),
                            result.rep_margin.end());
    }
  }
  return margins;
}

struct OpOutcome {
  std::string wrong;     // empty where all is well
  bool flipped = false;  // a near tie went the other way: nothing was compared
  double out = 0, lse = 0;
};

// Selected rows that are others than the reference's. Where all of them are near ties, the file is
// excused.
OpOutcome flips_find(const OpInput& input, const Safetensors& truth, const Safetensors& made) {
  const Settings& settings = input.spec.settings;
  const bool positional = settings.positional_pool == Pool::select;
  if (!positional && settings.semantic_pool != Pool::select) return {};
  const bool mla = input.spec.shape.form == Form::mla;
  const char* name = positional ? (mla ? "rep_k_rope" : "rep_k") : (mla ? "rep_c" : "rep_v");
  const auto width = static_cast<std::size_t>(positional ? input.spec.shape.d_positional()
                                                         : input.spec.shape.d_semantic());
  const std::vector<float> expected = floats(truth, name);
  const std::vector<float> actual = floats(made, name);
  OpOutcome outcome;
  if (actual.size() != expected.size()) {
    outcome.wrong =
        fmt::format("{} has {} values instead of {}", name, actual.size(), expected.size());
    return outcome;
  }
  if (actual == expected) return outcome;
  const Margins margins = margins_of(input);
  for (std::size_t i = 0; i * width < expected.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i * width);
    const auto end = at + static_cast<std::ptrdiff_t>(width);
    // Rotated rows are rounded; another row of the group is further off than that.
    float allowed = 0;
    if (positional && settings.positions == Positions::entry) {
      for (auto k = at; k < end; ++k) {
        allowed = std::max(allowed, 6e-3f * std::abs(expected[static_cast<std::size_t>(k)]));
      }
    }
    if (std::equal(expected.begin() + at, expected.begin() + end, actual.begin() + at,
                   [&](float a, float b) { return std::abs(a - b) <= allowed; })) {
      continue;
    }
    outcome.flipped = true;
    if (margins.margin.at(i) < kNearTie * std::max(1.0, std::abs(margins.top[i]))) continue;
    outcome.wrong = fmt::format("representative {} is another row, by a margin of {:.1e} at {:.3g}",
                                i, margins.margin[i], margins.top[i]);
    return outcome;
  }
  return outcome;
}

OpOutcome compare(const OpInput& input, const fs::path& truth_path, const fs::path& made_path) {
  const Safetensors truth = Safetensors::open(truth_path);
  const Safetensors made = Safetensors::open(made_path);
  OpOutcome outcome = flips_find(input, truth, made);
  if (outcome.flipped || !outcome.wrong.empty()) return outcome;

  std::string where;  // the first value that is far off
  const auto both = [&](const char* name, const std::function<void(float, float)>& take) {
    const std::vector<float> expected = floats(truth, name);
    const std::vector<float> actual = floats(made, name);
    if (actual.size() != expected.size()) {
      outcome.wrong =
          fmt::format("{} has {} values instead of {}", name, actual.size(), expected.size());
      return;
    }
    float largest = 1e-30f;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      take(actual[i], expected[i]);
      if (where.empty() && !(std::abs(actual[i] - expected[i]) <= 0.03f * largest)) {
        where = fmt::format("; {}[{}] is {} instead of {}", name, i, actual[i], expected[i]);
      }
    }
  };
  RelativeError error;
  both("out", [&](float got, float expected) { error.add(got, expected); });
  outcome.out = error.value();
  double largest = 1;
  double worst = 0;
  both("lse", [&](float got, float expected) {
    largest = std::max(largest, std::abs(static_cast<double>(expected)));
    const double difference = std::abs(static_cast<double>(got) - static_cast<double>(expected));
    if (std::isnan(difference)) worst = std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  });
  outcome.lse = worst / largest;
  const double factor = input.spec.settings.positions == Positions::entry ? kToleranceEntry : 1.0;
  if (outcome.wrong.empty() &&
      (!(outcome.out <= factor * kToleranceOut) || !(outcome.lse <= factor * kToleranceLog))) {
    outcome.wrong = fmt::format("relative norm of the error of out {:.2e}, error of lse {:.2e}{}",
                                outcome.out, outcome.lse, where);
  }
  return outcome;
}

// One file through the reference and both kinds of kernels.
std::vector<OpOutcome> file_run(const fs::path& in) {
  const auto named = [&](const char* suffix) { return fs::path(in.string() + suffix); };
  const fs::path truth = named(".truth");
  std::vector<OpOutcome> outcomes;
  try {
    const OpInput input = OpInput::read(in);
    const std::string failed = op(in, truth, "--backend reference");
    for (const char* kernels : kKernels) {
      OpOutcome& outcome = outcomes.emplace_back();
      const fs::path made = named(kernels);
      outcome.wrong = failed.empty()
                          ? op(in, made, fmt::format("--backend cuda --kernels {}", kernels))
                          : "the reference: " + failed;
      if (outcome.wrong.empty()) outcome = compare(input, truth, made);
    }
  } catch (const std::exception& error) {
    outcomes.resize(std::size(kKernels));
    outcomes.back().wrong = error.what();
  }
  return outcomes;
}

// All files, several at once; fails the test for each that is wrong.
void files_run(const std::vector<fs::path>& files) {
  std::vector<std::vector<OpOutcome>> outcomes(files.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < files.size(); i = next++) outcomes[i] = file_run(files[i]);
  };
  {
    // While this process holds the GPU, starting CUDA in others is short.
    const cuda::Stream held(gpu());
    std::vector<std::jthread> workers;
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    for (unsigned i = 0; i < std::min(kMostAtOnce, cores); ++i) workers.emplace_back(work);
  }

  std::size_t flips = 0;
  double worst_out = 0, worst_lse = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t k = 0; k < outcomes[i].size(); ++k) {
      const OpOutcome& outcome = outcomes[i][k];
      EXPECT_TRUE(outcome.wrong.empty())
          << files[i].stem().string() << ", --kernels " << kKernels[k] << ": " << outcome.wrong;
      flips += outcome.flipped ? 1 : 0;
      worst_out = std::fmax(worst_out, outcome.out);
      worst_lse = std::fmax(worst_lse, outcome.lse);
    }
  }
  EXPECT_LE(flips, std::max<std::size_t>(1, 6 * files.size() * std::size(kKernels) / 100))
      << "near ties flipped in above 6 % of files";
  fmt::print("{} files: largest error of out {:.1e}, of lse {:.1e}; {} left out for a near tie\n",
             files.size(), worst_out, worst_lse, flips);
}

bool program_is_missing() { return program_path().empty() || !fs::exists(program_path()); }

// --- tests -------------------------------------------------------------------------------------

TEST(CudaOp, AgreesWithTheReferenceOnTheGoldenFiles) {
  LCA_NEEDS_GPU();
  if (program_is_missing()) GTEST_SKIP() << "the program lca was not built";
  const ScratchFolder folder;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(golden_folder())) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name.ends_with(".expected.safetensors")) continue;
    files.push_back(folder / name);
    write_rounded(entry.path(), files.back());
  }
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), kFewestGolden) << golden_folder();
  files_run(files);
}

TEST(CudaOp, AgreesWithTheReferenceAtTheWidthsOfModels) {
  LCA_NEEDS_GPU();
  if (program_is_missing()) GTEST_SKIP() << "the program lca was not built";
  const ScratchFolder folder;
  std::vector<fs::path> files;
  const auto add = [&](const char* name, const FileBuilder& file) {
    files.push_back(folder / name);
    write_file(files.back(), file.bytes());
  };
  add("mla_512_64.safetensors", wide_mla(2, 128, 64, 512, 128, 8101));
  add("mla_256_32.safetensors", wide_mla(3, 64, 32, 256, 64, 8102));
  add("gqa_128.safetensors", wide_gqa(7, 1, 128, 8103));
  add("gqa_64.safetensors", wide_gqa(6, 2, 64, 8104));
  add("entry_mla_512_64.safetensors", with_entry(wide_mla(2, 128, 64, 512, 128, 8105), 64));
  add("entry_mla_256_32.safetensors", with_entry(wide_mla(3, 64, 32, 256, 64, 8106), 32));
  add("entry_gqa_128.safetensors", with_entry(wide_gqa(7, 1, 128, 8107), 128));
  add("entry_gqa_64.safetensors", with_entry(wide_gqa(6, 2, 64, 8108), 64));
  files_run(files);
}

}  // namespace
}  // namespace lca::test
