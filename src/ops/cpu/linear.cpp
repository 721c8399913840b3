// A run of many rows: panels of the weight are unpacked (to bfloat16 or float32) and multiplied by
// oneDNN, one panel a task; with AVX2 alone weights in strips are multiplied as integers instead,
// with activations of 15 bits. A run of few rows, as in decoding, is multiplied on the packed
// blocks where weights lie in strips (the bf16 path alone: it rounds activations to 15 bits); else
// each weight row is unpacked once and dotted with every activation row. A panel's size depends on
// the shape alone, so results do not depend on the number of threads; a panel is multiplied run by
// run, unless rows do not influence each other on this processor, so they do not depend on the
// other runs either. An adapter's change is added where a task has finished its rows or its panel,
// which are then in cache (lora.h).

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
#include <atomic>
#include <thread>

#include "core/context_state.h"
#include "core/error.h"
#include "core/workspace.h"
#include "ops/elementwise.h"
#include "ops/lora.h"
#include "ops/matmul.h"
#include "ops/quantised_rows.h"
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
/// Weight rows whose part of an adapter's B is prefetched at once.
constexpr std::int64_t kPrefetchRows = 4 * kStripRows;
/// How the rows of a weight are shared out, in units of so many: first long pieces, then short ones
/// of nearly equal length.
struct Cut {
  std::int64_t unit = 1, units = 1;
  std::int64_t long_tasks = 0, long_units = 0;  ///< so many pieces of so many units each
  std::int64_t short_tasks = 1;

  std::int64_t tasks() const { return long_tasks + short_tasks; }
  /// The first unit of a task; that of one more than the last is the number of units.
  std::int64_t begin(std::int64_t task) const {
    const std::int64_t after = task - long_tasks;
    if (after <= 0) return task * long_units;
    const std::int64_t rest = units - long_tasks * long_units;
    return long_tasks * long_units + rest * after / short_tasks;
  }
};

/// For the product of few rows: one long piece a thread, since memory likes to be read in one
/// stream, and a rest in shorter ones, since threads are not equally fast.
Cut few_rows_cut(const PackedMatrix& weight, int threads) {
  Cut cut;
  cut.unit = kStripRows;
  cut.units = strip_count(weight.rows);
  cut.long_units = cut.units * 3 / (4 * threads);
  cut.long_tasks = cut.long_units > 0 ? threads : 0;
  const std::int64_t rest = cut.units - cut.long_tasks * cut.long_units;
  cut.short_tasks = std::min<std::int64_t>(rest, 2 * threads);
  return cut;
}

/// Weight rows in a panel: about eight panels for a small matrix, a cache-sized one for a large.
std::int64_t panel_rows(std::int64_t out) {
  return std::clamp<std::int64_t>((out / 8 + 31) / 32 * 32, 32, 256);
}

Cut panel_cut(const PackedMatrix& weight) {
  Cut cut;
  cut.unit = panel_rows(weight.rows);
  cut.units = cut.short_tasks = (weight.rows + cut.unit - 1) / cut.unit;
  return cut;
}

/// One of several products that share their activations.
struct Product {
  PackedMatrix weight;
  float* out = nullptr;
  const float* bias = nullptr;
  LoraPanels lora;
  std::int64_t low = 0;  ///< where scale·A·x begins in a row of Scratch::low
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
  WordRows words;                  // in 15 bits, where strips are multiplied as integers
  std::byte* quantised = nullptr;  // activations of few rows in 15 bits, piece after piece
  float* low = nullptr;            // [rows, low_width]: scale·A·x of all adapters
  std::int64_t low_width = 0;
  std::byte* panels = nullptr;  // one for each thread: float32, then bfloat16
  std::size_t wide_bytes = 0;   // of the float32 part
  std::size_t panel_bytes = 0;

  Scratch(Carver& carver, std::span<const Product> group, ProductType type,
          std::span<const std::int64_t> runs, int threads)
      : rows(carver, runs, runs_join(type, runs)) {
    const std::int64_t in = group[0].weight.columns;
    bool unpacks = !rows.many.empty();
    bool packs = false;
    bool all_packed = true;
    std::int64_t weight_rows = 1;
    for (const Product& product : group) {
      const bool packed = product.weight.strips;
      unpacks = unpacks || !packed;
      packs = packs || packed;
      all_packed = all_packed && packed;
      if (!rows.many.empty()) weight_rows = std::max(weight_rows, panel_rows(product.weight.rows));
      low_width += product.lora.width();
    }
    if (low_width > 0) low = carver.take<float>(rows.total * low_width);
    if (packs && !rows.few.empty()) {
      // A bound for all pieces, which are not known yet where the carver only counts.
      const auto bytes = quantised_bytes(rows.total, in) + rows.few.size() * kPieceSlack;
      quantised = carver.take<std::byte>(static_cast<std::int64_t>(bytes));
    }
    const bool native = type == ProductType::bf16 && product_bf16_is_native();
    const bool integers = packs && !native && strips_many_supported();
    if (!rows.many.empty() && integers) {
      auto* memory = carver.take<std::byte>(static_cast<std::int64_t>(words_bytes(rows.total, in)));
      words = words_carve(rows.total, in, memory);
    }
    if (!rows.many.empty() && type == ProductType::bf16 && !(integers && all_packed)) {
      x = carver.take<bf16_bits>(rows.total * in);
      if (!native) wide_x = carver.take<float>(rows.total * in);
    }
    if (unpacks) {
      wide_bytes = align_up(std::max(static_cast<std::size_t>(weight_rows * in) * sizeof(float),
                                     integers ? strips_many_bytes(in) : 0));
      panel_bytes =
          wide_bytes + align_up(static_cast<std::size_t>(weight_rows * in) * sizeof(bf16_bits));
      panels = carver.take<std::byte>(static_cast<std::int64_t>(panel_bytes) * threads);
    }
  }

  std::byte* panel(int worker) const {
    return panels + static_cast<std::size_t>(worker) * panel_bytes;
  }
  float* low_at(std::int64_t row, const Product& product) const {
    return low + row * low_width + product.low;
  }

 private:
  /// Rounding up to cache lines, of each of a piece's arrays.
  static constexpr std::size_t kPieceSlack = 8 * kAlignment;
};

/// Shares the weight rows of all products out as cut(weight) says: body(product, first, count,
/// worker). Before them come `others` tasks of another kind: other(task).
template <typename Other, typename Cutting, typename Body>
void for_weight_rows(Context& context, std::span<const Product> group, std::int64_t others,
                     const Other& other, const Cutting& cut, const Body& body) {
  std::int64_t tasks = others;
  for (const Product& product : group) tasks += cut(product.weight).tasks();
  context.state().pool.run(tasks, [&](std::int64_t task, int worker) {
    if (task < others) {
      other(task);
      return;
    }
    task -= others;
    const Product* product = group.data();
    for (; task >= cut(product->weight).tasks(); ++product) task -= cut(product->weight).tasks();
    const Cut pieces = cut(product->weight);
    const std::int64_t first = pieces.begin(task) * pieces.unit;
    const std::int64_t end = std::min(product->weight.rows, pieces.begin(task + 1) * pieces.unit);
    body(*product, first, end - first, worker);
  });
}

/// Adds the bias and the adapter's change to columns first … first + count − 1 of a piece's result.
void rest_add(const Product& product, const Scratch& scratch, const RowPiece& piece,
              std::int64_t first, std::int64_t count) {
  const std::int64_t width = product.weight.rows;
  float* out = product.out + piece.first * width;
  for (std::int64_t m = 0; m < piece.rows && product.bias != nullptr; ++m) {
    for (std::int64_t n = first; n < first + count; ++n) out[m * width + n] += product.bias[n];
  }
  if (product.lora.empty()) return;
  lora_up(product.lora, scratch.low_at(piece.first, product), scratch.low_width, piece.rows, first,
          first + count, out, width);
}

/// Waits for tasks that began before the caller's and wait for nothing.
void wait_for(const std::atomic<std::int64_t>& pending) {
  constexpr int kSpins = 500;
  for (int spins = 0; pending.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins >= kSpins) std::this_thread::yield();
  }
}

void few_rows(Context& context, std::span<const Product> group, const Scratch& scratch,
              const float* x) {
  const std::int64_t in = group[0].weight.columns;
  std::int64_t rounded = 0;  // rows to be rounded
  if (scratch.quantised != nullptr) {
    std::byte* memory = scratch.quantised;
    for (RowPiece& piece : scratch.rows.few) {
      piece.quantised = quantised_carve(piece.rows, in, memory);
      memory += align_up(quantised_bytes(piece.rows, in));
      rounded += piece.rows;
    }
  }
  // Rounding a row and A·x with a panel of A are tasks, and come first: tasks are taken in order,
  // so one that waits for them waits for tasks that run already. Calls of their own would cost a
  // token more barriers.
  const std::int64_t downs = scratch.low_width / kLoraLanes;
  std::atomic<std::int64_t> rounds_left{rounded};
  std::atomic<std::int64_t> downs_left{downs};
  const auto round = [&](std::int64_t row) {
    const RowPiece* piece = scratch.rows.few.data();
    for (; row >= piece->rows; ++piece) row -= piece->rows;
    quantised_round(x + piece->first * in, row, 1, piece->quantised);
    rounds_left.fetch_sub(1, std::memory_order_release);
  };
  const auto down = [&](std::int64_t panel) {
    const Product* product = group.data();
    for (; panel >= product->lora.panels(); ++product) panel -= product->lora.panels();
    for (const RowPiece& piece : scratch.rows.few) {
      lora_down(product->lora, LoraRows::few, panel, x + piece.first * in, piece.rows,
                scratch.low_at(piece.first, *product) + panel * kLoraLanes, scratch.low_width);
    }
    downs_left.fetch_sub(1, std::memory_order_release);
  };
  for_weight_rows(
      context, group, rounded + downs,
      [&](std::int64_t task) { task < rounded ? round(task) : down(task - rounded); },
      [&](const PackedMatrix& weight) { return few_rows_cut(weight, context.threads()); },
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        if (w.strips) wait_for(rounds_left);
        for (const RowPiece& piece : scratch.rows.few) {
          float* out = product.out + piece.first * w.rows;
          // An adapter's B arrives while the weight is multiplied, a part at a time.
          const std::int64_t part = product.lora.empty() ? count : kPrefetchRows;
          for (std::int64_t n = first; n < first + count && w.strips; n += part) {
            const std::int64_t end = std::min(n + part, first + count);
            if (!product.lora.empty()) lora_up_prefetch(product.lora, n, end);
            strips_dot(w, n, end, piece.quantised, piece.rows, out, w.rows);
          }
        }
        for (std::int64_t n = first; n < first + count && !w.strips; ++n) {
          auto* row = reinterpret_cast<float*>(scratch.panel(worker));
          unpack_f32(w.type, w.row(n), row, in);
          for (const RowPiece& piece : scratch.rows.few) {
            for (std::int64_t m = piece.first; m < piece.first + piece.rows; ++m) {
              product.out[m * w.rows + n] = HWY_DYNAMIC_DISPATCH(RowDot)(x + m * in, row, in);
            }
          }
        }
        if (!product.lora.empty()) wait_for(downs_left);
        for (const RowPiece& piece : scratch.rows.few) {
          rest_add(product, scratch, piece, first, count);
        }
      });
}

/// Rows of a weight in bfloat16.
void unpack_panel(const PackedMatrix& w, std::int64_t first, std::int64_t count, bf16_bits* out) {
  if (!w.strips) {
    unpack_bf16(w.type, w.row(first), out, count * w.columns);
  } else {
    strips_unpack_bf16(w, first, count, out);
  }
}

/// The same as float32; `narrow` takes them in bfloat16.
void unpack_panel_rounded(const PackedMatrix& w, std::int64_t first, std::int64_t count, float* out,
                          bf16_bits* narrow) {
  if (w.strips) {
    strips_unpack_rounded(w, first, count, out);
    return;
  }
  unpack_panel(w, first, count, narrow);
  for (std::int64_t i = 0; i < count * w.columns; ++i) out[i] = bf16_to_f32(narrow[i]);
}

/// scale·A·x of every adapter, some rows a task.
void low_rows(Context& context, std::span<const Product> group, const Scratch& scratch,
              const float* x) {
  constexpr std::int64_t kTask = 32;
  const std::int64_t in = group[0].weight.columns;
  for (const RowPiece& piece : scratch.rows.many) {
    const std::int64_t tasks = (piece.rows + kTask - 1) / kTask;
    context.state().pool.run(tasks, [&](std::int64_t task, int) {
      const std::int64_t rows = std::min(kTask, piece.rows - task * kTask);
      const std::int64_t first = piece.first + task * kTask;
      for (const Product& product : group) {
        for (std::int64_t panel = 0; panel < product.lora.panels(); ++panel) {
          lora_down(product.lora, LoraRows::many, panel, x + first * in, rows,
                    scratch.low_at(first, product) + panel * kLoraLanes, scratch.low_width);
        }
      }
    });
  }
}

/// The activations of all long runs in the form in which they are multiplied.
void rows_round(Context& context, ProductType type, bool native, const Scratch& scratch,
                const float* x, std::int64_t in) {
  for (const RowPiece& piece : scratch.rows.many) {
    if (scratch.words.words != nullptr) {
      constexpr std::int64_t kTask = 16;
      context.state().pool.run((piece.rows + kTask - 1) / kTask, [&](std::int64_t task, int) {
        const std::int64_t rows = std::min(kTask, piece.rows - task * kTask);
        words_round(x, piece.first + task * kTask, rows, scratch.words);
      });
    }
    if (type != ProductType::bf16 || scratch.x == nullptr) continue;
    const std::int64_t begin = piece.first * in;
    const std::int64_t end = begin + piece.rows * in;
    round_bf16(context, x + begin, end - begin, scratch.x + begin);
    for (std::int64_t i = begin; i < end && !native; ++i) {
      scratch.wide_x[i] = bf16_to_f32(scratch.x[i]);
    }
  }
}

void many_rows(Context& context, std::span<const Product> group, ProductType type,
               const Scratch& scratch, const float* x) {
  const std::int64_t in = group[0].weight.columns;
  if (scratch.low_width > 0) low_rows(context, group, scratch, x);
  const bool native = type == ProductType::bf16 && product_bf16_is_native();
  if (!native) matmul_prepare();
  rows_round(context, type, native, scratch, x, in);
  if (type == ProductType::bf16 && !native) x = scratch.wide_x;
  for_weight_rows(
      context, group, 0, [](std::int64_t) {}, panel_cut,
      [&](const Product& product, std::int64_t first, std::int64_t count, int worker) {
        const PackedMatrix& w = product.weight;
        auto* wide = reinterpret_cast<float*>(scratch.panel(worker));
        auto* narrow = reinterpret_cast<bf16_bits*>(scratch.panel(worker) + scratch.wide_bytes);
        const bool integers = w.strips && scratch.words.words != nullptr;
        if (integers) {
          // Unpacked strip by strip, in the product.
        } else if (native) {
          unpack_panel(w, first, count, narrow);
        } else if (type == ProductType::bf16) {
          unpack_panel_rounded(w, first, count, wide, narrow);
        } else if (w.strips) {
          fail_internal("weights in strips are for products that round");
        } else {
          unpack_f32(w.type, w.row(first), wide, count * in);
        }
        for (const RowPiece& piece : scratch.rows.many) {
          float* out = product.out + piece.first * w.rows + first;
          if (integers) {
            strips_dot_many(w, first, first + count, words_from(scratch.words, piece.first),
                            piece.rows, product.out + piece.first * w.rows, w.rows, wide);
          } else if (native) {
            matmul_nt_bf16(piece.rows, count, in, scratch.x + piece.first * in, narrow, out,
                           w.rows);
          } else {
            matmul_nt({x + piece.first * in, piece.rows, in, in}, {wide, count, in, in}, out,
                      w.rows);
          }
          rest_add(product, scratch, piece, first, count);
        }
      });
}

}  // namespace

void linear_group(Context& context, std::span<const LinearCall> calls, ProductType type,
                  const float* x, std::span<const std::int64_t> runs) {
  std::array<Product, kLargestGroup> products;
  if (calls.empty() || calls.size() > kLargestGroup) {
    fail_internal("a group of {} products", calls.size());
  }
  std::int64_t low = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Linear& layer = *calls[i].layer;
    if (layer.lora.empty() != layer.lora.panels.empty()) {
      fail_internal("an adapter's matrices are not arranged");
    }
    products[i] = {layer.weight, calls[i].out, layer.bias, layer.lora.panels, low};
    low += layer.lora.panels.width();
  }
  const std::span<const Product> group = std::span(products).first(calls.size());
  Carver count;
  const Scratch counted(count, group, type, runs, context.threads());
  Carver carver(context.state().workspace.prepare(count.used()));
  const Scratch scratch(carver, group, type, runs, context.threads());
  if (!scratch.rows.few.empty()) few_rows(context, group, scratch, x);
  if (!scratch.rows.many.empty()) many_rows(context, group, type, scratch, x);
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
