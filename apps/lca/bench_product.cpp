/// `lca bench product`: products with packed weights on the CPU, as decoding and prefill make them.

#include "arguments.h"
#include "command.h"
#include "core/cpu_level.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "core/workspace.h"
#include "interrupt.h"
#include "machine.h"
#include "ops/linear.h"
#include "ops/strips.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <vector>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProductExplanation =
    "A matrix of random blocks times rows of activations, in bf16 precision and in the layout that "
    "a\n"
    "loaded model has. Several such matrices follow each other, more than a cache holds: weights "
    "come\n"
    "from memory, as in decoding. GB/s are the packed weights' bytes.\n"
    "\n"
    "Examples:\n"
    "  lca bench product --types q4_0,q4_k,q6_k --rows 1,4,512\n"
    "  LCA_CPU=avx2 lca bench product --threads 2 --json";

struct ProductFlags {
  CommonFlags common;
  TextFlag types, rows, size;
  bool json = false;
};

struct ProductTimed {
  PackedType type;
  std::int64_t rows;
  double seconds, bytes, operations;
};

/// "q4_0", as flags and files' names have it.
std::string type_name(PackedType type) {
  std::string name(packed_type_info(type).name);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::vector<PackedType> types_parse(const std::string& text) {
  std::vector<std::string> names;
  for (int t = 0; t < kPackedTypes; ++t) names.push_back(type_name(static_cast<PackedType>(t)));
  const std::vector<std::string_view> known(names.begin(), names.end());
  std::vector<PackedType> found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    found.push_back(static_cast<PackedType>(
        choice_parse("--types", std::string_view(text).substr(at, end - at), known)));
    at = end + 1;
  }
  return found;
}

/// Random blocks whose scales are small numbers.
AlignedBytes random_matrix(PackedType type, std::int64_t size, std::uint64_t seed) {
  const std::size_t bytes = static_cast<std::size_t>(size) * packed_bytes(type, size);
  AlignedBytes memory = aligned_bytes(bytes);
  std::uint64_t state = seed;
  for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // Every 16 bits a number below 2⁻⁶ in half precision, wherever a type has its scales.
    const std::uint64_t word = (state ^ state >> 29) & 0xa3ffa3ffa3ffa3ffU;
    std::memcpy(memory.get() + at, &word, sizeof word);
  }
  return memory;
}

/// A matrix as a loaded model has it.
struct ProductWeight {
  AlignedBytes memory;
  PackedMatrix matrix;

  ProductWeight(PackedType type, std::int64_t size, std::uint64_t seed)
      : memory(random_matrix(type, size, seed)), matrix{memory.get(), type, size, size} {
    if (!strips_supported(type)) return;
    const std::size_t bytes = strip_bytes(type, size);
    AlignedBytes strips = aligned_bytes(static_cast<std::size_t>(strip_count(size)) * bytes);
    for (std::int64_t strip = 0; strip < strip_count(size); ++strip) {
      strip_arrange(matrix, strip, strips.get() + static_cast<std::size_t>(strip) * bytes);
    }
    memory = std::move(strips);
    matrix.data = memory.get();
    matrix.strips = true;
  }
};

ProductTimed product_measure(Context& context, const std::vector<ProductWeight>& weights,
                             std::int64_t rows) {
  const PackedMatrix& first = weights[0].matrix;
  std::vector<float> x(static_cast<std::size_t>(rows * first.columns));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 31) / 16 - 1;
  std::vector<float> out(static_cast<std::size_t>(rows * first.rows));
  const auto all = [&] {
    for (const ProductWeight& weight : weights) {
      linear(context, {weight.matrix, nullptr, {}}, ProductType::bf16, x.data(), rows, out.data());
    }
  };
  all();
  constexpr double kLong = 0.6;
  double best = 1e30;
  for (const Stopwatch total; total.seconds() < kLong;) {
    const Stopwatch one;
    all();
    best = std::min(best, one.seconds() / static_cast<double>(weights.size()));
    interrupt_check();
  }
  return {first.type, rows, best, static_cast<double>(first.bytes()),
          2.0 * static_cast<double>(rows * first.rows * first.columns)};
}

void product_run(const ProductFlags& flags) {
  constexpr std::int64_t kMostRows = 1 << 14, kMostSize = 1 << 15;
  const auto types = types_parse(flags.types.text);
  const auto rows = counts_parse("--rows", flags.rows.text, 1, kMostRows);
  const std::int64_t size = count_parse("--size", flags.size.text, 256, kMostSize);
  if (size % 256 != 0) fail_input("--size is {}; it takes a multiple of 256", size);
  Context context(flags.common.threads());
  std::vector<ProductTimed> timed;
  for (const PackedType type : types) {
    constexpr double kBeyondCaches = 96e6;
    const double one = static_cast<double>(size) * static_cast<double>(packed_bytes(type, size));
    const int copies = std::clamp(static_cast<int>(kBeyondCaches / one) + 1, 2, 64);
    std::vector<ProductWeight> weights;
    for (int i = 0; i < copies; ++i) {
      weights.emplace_back(type, size, static_cast<std::uint64_t>(i) + 1);
    }
    for (const std::int64_t count : rows) timed.push_back(product_measure(context, weights, count));
  }
  if (flags.json) {
    Json list = Json::array();
    for (const ProductTimed& t : timed) {
      list.push_back({{"type", type_name(t.type)},
                      {"rows", t.rows},
                      {"seconds", t.seconds},
                      {"bytes_per_second", t.bytes / t.seconds},
                      {"flops", t.operations / t.seconds}});
    }
    print_json({{"rows", std::move(list)},
                {"size", size},
                {"threads", context.threads()},
                {"level", cpu_level_name(cpu_level())},
                {"machine", machine_name()},
                {"date", date_text()}});
    return;
  }
  Table table({"type", "rows", "time", "GB/s", "GFLOP/s"});
  for (const ProductTimed& t : timed) {
    table.add({type_name(t.type), count_text(t.rows), seconds_text(t.seconds),
               fmt::format("{:.1f}", t.bytes / t.seconds / 1e9),
               fmt::format("{:.0f}", t.operations / t.seconds / 1e9)});
  }
  print(fmt::format("{} x {}, {} threads, {}, {}\n\n{}", size, size, context.threads(),
                    machine_text(), date_text(), table.text()));
}

}  // namespace

Command bench_product_command(CLI::App& parent) {
  auto flags = std::make_shared<ProductFlags>();
  CLI::App* app = parent.add_subcommand("product", "Products with packed weights on the CPU");
  app->footer(kProductExplanation);
  flags->common.add(*app);
  flags->types.add(*app, "--types", "NAME,NAME,...", "how weights are stored",
                   "q4_0,q4_1,q5_0,q5_1,q8_0,q4_k,q5_k,q6_k");
  flags->rows.add(*app, "--rows", "N,N,...", "rows of activations", "1,4,512");
  flags->size.add(*app, "--size", "N", "rows and columns of the matrix", "4096");
  app->add_flag("--json", flags->json, "print JSON");
  return {app, [flags] { product_run(*flags); }};
}

}  // namespace lca::cli
