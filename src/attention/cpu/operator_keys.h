#pragma once
/// Keys and values of packed documents, laid out for the tiles of the operators.
///
/// A unit is what shares packed keys: a KV head (GQA), or a head (MLA, whose rope keys and biases
/// all units share). Only as many units are laid out at a time as keep the threads busy.

#include <lca/operator.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/cpu/backward_tile.h"
#include "attention/cpu/tile.h"
#include "attention/rotate.h"
#include "core/context_state.h"
#include "core/workspace.h"

namespace lca::cpu {

/// One document: where its tokens and representatives lie in the tensors, and in packed memory,
/// where each document begins with a whole panel.
struct Document {
  std::int64_t start = 0, length = 0;
  std::int64_t first_group = 0, groups = 0;
  std::int64_t slot = 0, group_slot = 0;
};

/// Rows [first, first + count) of a document's tokens or representatives.
struct RowsTask {
  std::size_t document = 0;
  bool groups = false;
  std::int64_t first = 0, count = 0;
};

/// What an operator's call is about.
struct OperatorPlan {
  explicit OperatorPlan(const OperatorSpec& spec);

  const LayerSpec& layer;
  const AttentionShape& shape;
  Layout layout;
  bool mla;
  std::int64_t units;         ///< H (MLA) or KV
  std::int64_t heads_a_unit;  ///< query heads that read a unit's keys
  std::int64_t slots = 0;     ///< of tokens and then representatives, all documents together
  std::vector<Document> documents;
  std::vector<RowsTask> rows;        ///< all rows, a few panels at a time
  std::vector<std::uint64_t> steps;  ///< of the rotation; none with token positions

  RowRotation rotation() const;
  /// Units to lay out at a time, where each leads to `tasks` tasks.
  std::int64_t units_at_once(std::int64_t tasks, int threads) const;
};

/// The packed memory.
class OperatorKeys {
 public:
  /// With `backward` in the forms of BackwardKeys, else of PackedKeys.
  OperatorKeys(const OperatorPlan& plan, const AttendInputs& in, bool backward);

  void carve(Carver& carver, std::int64_t units_at_once);
  /// Lays out units first … first + count − 1.
  void pack(Context& context, std::int64_t first, std::int64_t count);

  /// Of a unit of the last call.
  PackedKeys packed(std::int64_t unit, const RowsTask& of) const;
  BackwardKeys backward_keys(std::int64_t unit, const RowsTask& of) const;
  /// Of the representatives of one document; null where there are none.
  const float* bias(std::int64_t unit, std::size_t document) const;

 private:
  struct Unit {
    float *nope = nullptr, *rope = nullptr, *values = nullptr;
    float *nope_rows = nullptr, *rope_rows = nullptr, *bias = nullptr;
  };

  void pack_rows(const RowsTask& task, std::int64_t unit, const Unit& to, bool shared) const;
  const Unit& unit(std::int64_t number) const {
    return memory_[static_cast<std::size_t>(number - first_)];
  }
  std::int64_t slot(const RowsTask& of) const;

  const OperatorPlan& plan_;
  const AttendInputs& in_;
  bool backward_;
  std::int64_t first_ = 0;
  std::vector<Unit> memory_;
};

/// Goes through the units of a call, a few at a time, each of which leads to `tasks` tasks: takes
/// scratch memory with carve(carver, units at once), lays their keys out, calls work(first, count).
template <typename Carve, typename Work>
void units_run(const OperatorPlan& plan, OperatorKeys& keys, Context& context, std::int64_t tasks,
               const Carve& carve, const Work& work) {
  const std::int64_t at_once = plan.units_at_once(tasks, context.threads());
  const auto carve_all = [&](Carver& carver) {
    keys.carve(carver, at_once);
    carve(carver, at_once);
  };
  Carver count;
  carve_all(count);
  Carver carver(context.state().workspace.prepare(count.used()));
  carve_all(carver);
  for (std::int64_t first = 0; first < plan.units; first += at_once) {
    const std::int64_t units = std::min(at_once, plan.units - first);
    keys.pack(context, first, units);
    work(first, units);
  }
}

}  // namespace lca::cpu
