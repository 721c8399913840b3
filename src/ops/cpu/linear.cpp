// A run of many rows: panels of the weight are unpacked (to bfloat16 or float32) and multiplied by
// oneDNN, one panel a task. A run of few rows, as in decoding, is multiplied on the packed blocks
// where the processor can (the bf16 path alone: it rounds activations to 15 bits); else each weight
// row is unpacked once and dotted with every activation row. A panel's size depends on the shape
// alone, so results do not depend on the number of threads; a panel is multiplied run by run,
// unless rows do not influence each other on this processor, so they do not depend on the other
// runs either.

#include "ops/linear.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cpp"
#include "ops/cpu/foreach_target.h"
#include "ops/cpu/dot-inl.h"
// clang-format on

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "core/context_state.h"
#include "core/error.h"
#include "core/workspace.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/packed_dot.h"
#include "ops/strips.h"

HWY_BEFORE_NAMESPACE();
namespace lca {
namespace HWY_NAMESPACE {

float RowDot(const float* a, const float* b, std::int64_t count) {
  return cpu::HWY_NAMESPACE::Dot<4>(a, b, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace lca
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca {

HWY_EXPORT(RowDot);

namespace {

/// Up to so many rows a weight row is unpacked and dotted; beyond, oneDNN's blocking wins.
constexpr std::int64_t kFewRows = 12;
/// Weight rows one task of the few-row product handles: long pieces, which memory likes, but
/// several for each thread.
std::int64_t rows_per_task(const PackedMatrix& weight, int threads) {
  constexpr std::int64_t kFewest = kStripRows;
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t rows = weight.rows / (kTasksPerThread * threads) / kFewest * kFewest;
  return std::max(kFewest, rows);
}

/// Weight rows in a panel: about eight panels for a small matrix, a cache-sized one for a large.
std::int64_t panel_rows(std::int64_t out) {
  return std::clamp<std::int64_t>((out / 8 + 31) / 32 * 32, 32, 256);
}

/// Whether few rows are multiplied on the packed blocks, with activations in 15 bits.
bool runs_packed(const PackedMatrix& weight, ProductType type) {
  return weight.strips || (type == ProductType::bf16 && packed_dot_supported(weight.type));
}

/// One of several products that share their activations.
struct Product {
  PackedMatrix weight;
  float* out = nullptr;
};

/// Consecutive rows of the activations.
struct RowPiece {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  QuantisedRows quantised;  ///< of few rows, where a product runs packed
};

/// The activations of a call. Neighbouring runs share a piece where rows do not influence each
/// other: those of few rows always, those of many where this processor's products are so. Otherwise
/// a run of many rows is a piece of its own.
struct Rows {
  std::int64_t total = 0;
  std::span<RowPiece> few, many;

  /// Counts, and writes the pieces where the carver has memory. `alike`: whether long runs may be
  /// joined.
  Rows(Carver& carver, std::span<const std::int64_t> runs, bool alike) {
    auto* few_pieces = carver.take<RowPiece>(std::ssize(runs));
    auto* many_pieces = carver.take<RowPiece>(std::ssize(runs));
    std::size_t few_count = 0;
    std::size_t many_count = 0;
    enum class Kind { none, short_run, alone, joined };
    Kind before = Kind::none;
    for (const std::int64_t rows : runs) {
      const Kind kind = rows <= kFewRows              ? Kind::short_run
                        : alike && rows >= kAlikeRows ? Kind::joined
                                                      : Kind::alone;
      std::size_t& count = kind == Kind::short_run ? few_count : many_count;
      RowPiece* pieces = kind == Kind::short_run ? few_pieces : many_pieces;
      if (kind != before || kind == Kind::alone) {
        if (pieces != nullptr) pieces[count] = {total, 0, {}};
        ++count;
      }
      if (pieces != nullptr) pieces[count - 1].rows += rows;
      before = kind;
      total += rows;
    }
    few = {few_pieces, few_count};
    many = {many_pieces, many_count};
  }
};

/// Whether long runs are multiplied together.
bool runs_join(ProductType type, std::span<const std::int64_t> runs) {
  return runs.size() > 1 &&
         product_rows_are_alike(type == ProductType::bf16 && product_bf16_is_native());
}

/// Scratch memory of a group of products.
struct Scratch {
  Rows rows;
  bf16_bits* x = nullptr;          // [rows, in]: activations rounded to bfloat16
  float* wide_x = nullptr;         // and widened again, where bfloat16 is not native
  std::byte* quantised = nullptr;  // activations of few rows in 15 bits, piece after piece
  std::byte* panels = nullptr;     // one for each thread: float32, then bfloat16
  std::size_t wide_bytes = 0;      // of the float32 part
  std::size_t panel_bytes = 0;

  Scratch(Carver& carver, std::span<const Product> group, ProductType type,
          std::span<const std::int64_t> runs, int threads)
      : rows(carver, runs, runs_join(type, runs)) {
    const std::int64_t in = group[0].weight.columns;
    bool unpacks = !rows.many.empty();
    bool packs = false;
    std::int64_t weight_rows = 1;
    for (const Product& product : group) {
      const bool packed = runs_packed(product.weight, type);
      unpacks = unpacks || !packed;
      packs = packs || packed;
      if (!rows.many.empty()) weight_rows = std::max(weight_rows, panel_rows(product.weight.rows));
    }
    if (packs && !rows.few.empty()) {
      // A bound for all pieces, which are not known yet where the carver only counts.
      const auto bytes = quantised_bytes(rows.total, in) + rows.few.size() * kPieceSlack;
      quantised = carver.take<std::byte>(static_cast<std::int64_t>(bytes));
    }
    if (!rows.many.empty() && type == ProductType::bf16) {
      x = carver.take<bf16_bits>(rows.total * in);
      if (!product_bf16_is_native()) wide_x = carver.take<float>(rows.total * in);
    }
    if (unpacks) {
      wide_bytes = align_up(static_cast<std::size_t>(weight_rows * in) * sizeof(float));
      panel_bytes =
          wide_bytes + align_up(static_cast<std::size_t>(weight_rows * in) * sizeof(bf16_bits));
      panels = carver.take<std::byte>(static_cast<std::int64_t>(panel_bytes) * threads);
    }
  }

  std::byte* panel(int worker) const {
    return panels + static_cast<std::size_t>(worker) * panel_bytes;
  }

 private:
  /// Rounding up to cache lines, of each of a piece's arrays.
  static constexpr std::size_t kPieceSlack = 8 * kAlignment;
};

/// Shares the weight rows of all products out, at most step(product) rows a task: body(product,
/// first, count, worker).
template <typename Step, typename Body>
void for_weight_rows(Context& context, std::span<const Product> group, const Step& step,
                     const Body& body) {
  const auto tasks_of = [&](const Product& product) {
    return (product.weight.rows + step(product) - 1) / step(product);
  };
  std::int64_t tasks = 0;
  for (const Product& product : group) tasks += tasks_of(product);
  context.state().pool.run(tasks, [&](std::int64_t task, int worker) {
    const Product* product = group.data();
    for (; task >= tasks_of(*product); ++product) task -= tasks_of(*product);
    const std::int64_t first = task * step(*product);
    body(*product, first, std::min(step(*product), product->weight.rows - first), worker);
  });
}

void few_rows(Context& context, std::span<const Product> group, ProductType type,
              const Scratch& scratch, const float* x, bool add) {
  const std::int64_t in = group[0].weight.columns;
  if (scratch.quantised != nullptr) {
    std::byte* memory = scratch.quantised;
    for (RowPiece& piece : scratch.rows.few) {
      piece.quantised = quantise_rows(x + piece.first * in, piece.rows, in, memory);
      memory += align_up(quantised_bytes(piece.rows, in));
    }
  }
  for_weight_rows(
      context, group,
      [&](const Product& product) { return rows_per_task(product.weight, context.threads()); },
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        for (const RowPiece& piece : scratch.rows.few) {
          float* out = product.out + piece.first * w.rows;
          if (w.strips) {
            strips_dot(w, first, first + count, piece.quantised, piece.rows, out, w.rows);
          } else if (runs_packed(w, type)) {
            packed_dot(w, first, first + count, piece.quantised, piece.rows, out, w.rows);
          }
        }
        if (runs_packed(w, type)) return;
        auto* row = reinterpret_cast<float*>(scratch.panel(worker));
        for (std::int64_t n = first; n < first + count; ++n) {
          unpack_f32(w.type, w.row(n), row, in);
          for (const RowPiece& piece : scratch.rows.few) {
            for (std::int64_t m = piece.first; m < piece.first + piece.rows; ++m) {
              const float dot = HWY_DYNAMIC_DISPATCH(RowDot)(x + m * in, row, in);
              float& to = product.out[m * w.rows + n];
              to = add ? to + dot : dot;
            }
          }
        }
      });
}

/// Rows of a weight in bfloat16; `scratch` takes 16 packed rows.
void unpack_panel(const PackedMatrix& w, std::int64_t first, std::int64_t count, bf16_bits* out,
                  void* scratch) {
  if (!w.strips) {
    unpack_bf16(w.type, w.row(first), out, count * w.columns);
    return;
  }
  auto* rows = static_cast<std::byte*>(scratch);
  for (std::int64_t n = 0; n < count; n += kStripRows) {
    const std::int64_t some = std::min(kStripRows, count - n);
    strip_restore(w, (first + n) / kStripRows, some, rows);
    unpack_bf16(w.type, rows, out + n * w.columns, some * w.columns);
  }
}

void many_rows(Context& context, std::span<const Product> group, ProductType type,
               const Scratch& scratch, const float* x, bool add) {
  const std::int64_t in = group[0].weight.columns;
  const bool native = type == ProductType::bf16 && product_bf16_is_native();
  if (!native) matmul_prepare();
  for (const RowPiece& piece : scratch.rows.many) {
    if (type != ProductType::bf16) break;
    const std::int64_t begin = piece.first * in;
    const std::int64_t end = begin + piece.rows * in;
    round_bf16(context, x + begin, end - begin, scratch.x + begin);
    for (std::int64_t i = begin; i < end && !native; ++i) {
      scratch.wide_x[i] = bf16_to_f32(scratch.x[i]);
    }
  }
  if (type == ProductType::bf16 && !native) x = scratch.wide_x;
  for_weight_rows(
      context, group, [](const Product& product) { return panel_rows(product.weight.rows); },
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        auto* wide = reinterpret_cast<float*>(scratch.panel(worker));
        auto* narrow = reinterpret_cast<bf16_bits*>(scratch.panel(worker) + scratch.wide_bytes);
        if (type == ProductType::bf16) {
          unpack_panel(w, first, count, narrow, wide);
          for (std::int64_t i = 0; i < count * in && !native; ++i) wide[i] = bf16_to_f32(narrow[i]);
        } else if (w.strips) {
          fail_internal("weights in strips are for products that round");
        } else {
          unpack_f32(w.type, w.row(first), wide, count * in);
        }
        for (const RowPiece& piece : scratch.rows.many) {
          float* out = product.out + piece.first * w.rows + first;
          if (native) {
            matmul_nt_bf16(piece.rows, count, in, scratch.x + piece.first * in, narrow, out,
                           w.rows);
          } else {
            matmul_nt({x + piece.first * in, piece.rows, in, in}, {wide, count, in, in}, out,
                      w.rows, add);
          }
        }
      });
}

/// out (+)= x · wᵀ for every product of the group. Adding is for float32 alone.
void multiply(Context& context, std::span<const Product> group, ProductType type, const float* x,
              std::span<const std::int64_t> runs, bool add = false) {
  Carver count;
  const Scratch counted(count, group, type, runs, context.threads());
  Carver carver(context.state().workspace.prepare(count.used()));
  const Scratch scratch(carver, group, type, runs, context.threads());
  if (!scratch.rows.few.empty()) few_rows(context, group, type, scratch, x, add);
  if (!scratch.rows.many.empty()) many_rows(context, group, type, scratch, x, add);
}

/// What comes on top of a product: the bias and the adapter's change.
void add_rest(Context& context, const Linear& layer, const float* x,
              std::span<const std::int64_t> runs, float* out) {
  if (layer.bias == nullptr && layer.lora.empty()) return;
  const std::int64_t rows = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  if (layer.bias != nullptr) {
    for (std::int64_t m = 0; m < rows; ++m) {
      float* row = out + m * layer.out();
      for (std::int64_t n = 0; n < layer.out(); ++n) row[n] += layer.bias[n];
    }
  }
  if (!layer.lora.empty()) {
    thread_local std::vector<float> low;  // kept from call to call
    low.resize(static_cast<std::size_t>(rows * layer.lora.a.rows));
    const Product down{layer.lora.a, low.data()};
    multiply(context, {&down, 1}, ProductType::f32, x, runs);
    for (float& value : low) value *= layer.lora.scale;
    const Product up{layer.lora.b, out};
    multiply(context, {&up, 1}, ProductType::f32, low.data(), runs, true);
  }
}

}  // namespace

void linear_group(Context& context, std::span<const LinearCall> calls, ProductType type,
                  const float* x, std::span<const std::int64_t> runs) {
  std::array<Product, kLargestGroup> group;
  if (calls.empty() || calls.size() > kLargestGroup) {
    fail_internal("a group of {} products", calls.size());
  }
  for (std::size_t i = 0; i < calls.size(); ++i) group[i] = {calls[i].layer->weight, calls[i].out};
  multiply(context, std::span(group).first(calls.size()), type, x, runs);
  for (const LinearCall& call : calls) add_rest(context, *call.layer, x, runs, call.out);
}

void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::span<const std::int64_t> runs, float* out) {
  LinearCall call;
  call.layer = &layer;
  call.out = out;
  linear_group(context, {&call, 1}, type, x, runs);
}

void linear(Context& context, const Linear& layer, ProductType type, const float* x,
            std::int64_t rows, float* out) {
  linear(context, layer, type, x, {&rows, 1}, out);
}

}  // namespace lca
#endif
