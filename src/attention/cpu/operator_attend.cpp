// The forward pass of attention as an operator: lays out the keys and values of a few units, then
// shares tiles of their queries out to the threads, the heaviest first.
//
// Memory beside the tensors: packed keys and values of the units at work, 4·(d_n + d_r + d_v) bytes
// a row each, and a tile a thread.

#include <algorithm>
#include <vector>

#include "attention/cpu/operator.h"
#include "attention/cpu/operator_keys.h"
#include "core/context_state.h"

namespace lca::cpu {

namespace {

/// Queries [row, row + rows) of one document.
struct QueryTile {
  std::size_t document;
  std::int64_t row, rows, pairs;
};

class AttendForward {
 public:
  AttendForward(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                Context& context)
      : plan_(spec), in_(in), out_(out), context_(context), keys_(plan_, in, false) {
    for (std::size_t i = 0; i < plan_.documents.size(); ++i) {
      const std::int64_t length = plan_.documents[i].length;
      for (std::int64_t row = 0; row < length; row += kTileRows) {
        const std::int64_t rows = std::min(kTileRows, length - row);
        tiles_.push_back({i, row, rows, rows * plan_.layout.visible(row).pairs()});
      }
    }
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [](const QueryTile& a, const QueryTile& b) { return a.pairs > b.pairs; });
  }

  void run() {
    const std::int64_t tasks = std::ssize(tiles_) * plan_.heads_a_unit;
    const auto carve = [&](Carver& carver, std::int64_t) { scratch_carve(carver); };
    units_run(plan_, keys_, context_, tasks, carve, [&](std::int64_t first, std::int64_t units) {
      context_.state().pool.run(tasks * units, [&](std::int64_t task, int worker) {
        // Heads of a unit read the same keys: neighbours.
        const std::int64_t heads = plan_.heads_a_unit * units;
        attend(tiles_[static_cast<std::size_t>(task / heads)],
               first * plan_.heads_a_unit + task % heads, worker);
      });
    });
  }

 private:
  void scratch_carve(Carver& carver) {
    const AttentionShape& shape = plan_.shape;
    scratch_.clear();
    for (int i = 0; i < context_.threads(); ++i) {
      scratch_.push_back(carver.take<float>(
          tile_scratch_floats(shape.d_nope, shape.d_rope, shape.d_value, !plan_.steps.empty()) +
          kTileRows * shape.d_value));
    }
  }

  void attend(const QueryTile& task, std::int64_t head, int worker) {
    const AttentionShape& shape = plan_.shape;
    const Document& document = plan_.documents[task.document];
    const std::int64_t unit = head / plan_.heads_a_unit;
    const std::int64_t row = document.start + task.row;
    const auto queries = [&](const ConstTensor& q) {
      ConstTensor part = q;
      if (!q.empty()) part.data = q.row(row, head);
      return part;
    };
    Tile tile;
    tile.layout = plan_.layout;
    tile.scale = static_cast<float>(plan_.layer.softmax_scale());
    tile.d_nope = shape.d_nope;
    tile.d_rope = shape.d_rope;
    tile.d_value = shape.d_value;
    tile.rows = task.rows;
    tile.first = task.row;
    tile.q_nope = queries(in_.queries.nope);
    tile.q_rope = queries(in_.queries.rope);
    tile.rotation = plan_.rotation();
    tile.tokens = keys_.packed(unit, {task.document, false, 0, document.length});
    tile.groups = keys_.packed(unit, {task.document, true, 0, document.groups});
    tile.bias = keys_.bias(unit, task.document);
    float* scratch = scratch_[static_cast<std::size_t>(worker)];
    const bool direct = out_.out.dtype == DType::f32;
    tile.out = direct ? static_cast<float*>(out_.out.row(row, head)) : scratch;
    tile.out_stride = direct ? out_.out.stride[0] : shape.d_value;
    tile.scratch = scratch + kTileRows * shape.d_value;
    if (out_.lse != nullptr) tile.lse = out_.lse + row * shape.heads + head;
    tile.lse_stride = shape.heads;
    tile_attend(tile);
    for (std::int64_t r = 0; r < task.rows && !direct; ++r) {
      vector_store(scratch + r * shape.d_value, shape.d_value, out_.out.dtype,
                   out_.out.row(row + r, head));
    }
  }

  OperatorPlan plan_;
  const AttendInputs& in_;
  const AttendOutputs& out_;
  Context& context_;
  OperatorKeys keys_;
  std::vector<QueryTile> tiles_;
  std::vector<float*> scratch_;
};

}  // namespace

void attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
            Context& context) {
  const ContextUse use(context);
  AttendForward(spec, in, out, context).run();
}

}  // namespace lca::cpu
