// The backward pass of attention as an operator, in one pass over the pairs (backward_tile.h).
//
// The queries of a document are cut into chunks of about as many pairs each, by the shape alone. A
// task is a chunk of one unit: it goes through its tiles in order, stores their dQ, and sums dK, dV
// and the bias's gradient up in memory of its own. Columns that many queries see (representatives,
// the sink) are so split over the chunks. Afterwards each row adds its chunks up in their order,
// and what units share (MLA's rope keys, its bias) the units in theirs: the order of all sums is
// fixed, whatever the number of threads.
//
// Memory beside the tensors: of the units at work packed keys, 4·(2·(d_n + d_r) + d_v) bytes a row,
// and sums, 4·(d_n + d_r + d_v) for each row that a chunk sees, at most kMostRows times as many as
// there are rows.

#include <algorithm>
#include <vector>

#include "attention/cpu/operator.h"
#include "attention/cpu/operator_keys.h"
#include "core/context_state.h"

namespace lca::cpu {

namespace {

constexpr std::int64_t kMostChunks = 16;                     ///< of a document
constexpr std::int64_t kChunkPairs = std::int64_t{1} << 18;  ///< at least, of one head
constexpr std::int64_t kMostRows = 3;

/// Queries [first, end) of a document, and the rows of keys that they see.
struct Chunk {
  std::size_t document = 0;
  std::int64_t first = 0, end = 0;
  std::int64_t pairs = 0;
  std::int64_t sink = 0;  ///< rows [0, sink), where they lie apart from the window
  Range window;           ///< begins with a whole panel
  std::int64_t groups = 0;

  std::int64_t rows() const { return sink + window.size() + groups; }
};

Chunk chunk_make(const Layout& layout, std::int64_t first, std::int64_t end) {
  const Visible head = layout.visible(first);
  const Visible tail = layout.visible(end - 1);
  Chunk chunk;
  chunk.first = first;
  chunk.end = end;
  chunk.sink = tail.window.begin > tail.sink.end ? tail.sink.end : 0;
  const bool apart = head.window.begin > head.sink.end;
  chunk.window = {apart ? head.window.begin / kPanel * kPanel : 0, end};
  chunk.groups = tail.groups;
  return chunk;
}

/// `count` chunks of whole tiles with about as many pairs each.
std::vector<Chunk> chunks_cut(const Layout& layout, std::int64_t length, std::int64_t count,
                              std::int64_t pairs) {
  std::vector<Chunk> chunks;
  std::int64_t first = 0;
  std::int64_t seen = 0;
  std::int64_t before = 0;
  for (std::int64_t row = 0; row < length; row += kTileRows) {
    const std::int64_t end = std::min(row + kTileRows, length);
    seen += (end - row) * layout.visible(end - 1).pairs();
    if (end == length || seen * count >= pairs * (std::ssize(chunks) + 1)) {
      chunks.push_back(chunk_make(layout, first, end));
      chunks.back().pairs = seen - before;
      before = seen;
      first = end;
    }
  }
  return chunks;
}

/// The chunks of a document: enough to share out, few enough for the memory of their sums.
std::vector<Chunk> chunks_of(const Layout& layout, std::int64_t length, std::int64_t groups) {
  std::int64_t pairs = 0;
  for (std::int64_t row = 0; row < length; row += kTileRows) {
    const std::int64_t end = std::min(row + kTileRows, length);
    pairs += (end - row) * layout.visible(end - 1).pairs();
  }
  std::int64_t count = std::clamp<std::int64_t>(pairs / kChunkPairs, 1, kMostChunks);
  for (;; --count) {
    std::vector<Chunk> chunks = chunks_cut(layout, length, count, pairs);
    std::int64_t rows = 0;
    for (const Chunk& chunk : chunks) rows += chunk.rows();
    if (count == 1 || rows <= kMostRows * (length + groups)) return chunks;
  }
}

class AttendBackward {
 public:
  AttendBackward(const OperatorSpec& spec, const AttendInputs& in, const ConstTensor& out,
                 const float* lse, const ConstTensor& out_grad, const AttendInputGrads& grads,
                 Context& context)
      : plan_(spec),
        in_(in),
        out_(out),
        lse_(lse),
        out_grad_(out_grad),
        grads_(grads),
        context_(context),
        keys_(plan_, in, true) {
    const auto width = [](const Tensor& exact, const Tensor& groups, std::int64_t columns) {
      return exact.empty() && groups.empty() ? 0 : round_up(columns, kPanel);
    };
    nope_ = width(grads.exact.k_nope, grads.groups.k_nope, plan_.shape.d_nope);
    rope_ = width(grads.exact.k_rope, grads.groups.k_rope, plan_.shape.d_rope);
    value_ = width(grads.exact.value, grads.groups.value, plan_.shape.d_value);
    for (std::size_t i = 0; i < plan_.documents.size(); ++i) {
      const Document& document = plan_.documents[i];
      first_chunk_.push_back(chunks_.size());
      for (Chunk chunk : chunks_of(plan_.layout, document.length, document.groups)) {
        chunk.document = i;
        chunks_.push_back(chunk);
      }
    }
    first_chunk_.push_back(chunks_.size());
    for (std::size_t i = 0; i < chunks_.size(); ++i) heaviest_.push_back(i);
    std::stable_sort(heaviest_.begin(), heaviest_.end(), [&](std::size_t a, std::size_t b) {
      return chunks_[a].pairs > chunks_[b].pairs;
    });
  }

  void run() {
    const std::int64_t tasks = std::ssize(chunks_);
    const auto carve = [&](Carver& carver, std::int64_t units) { sums_carve(carver, units); };
    units_run(plan_, keys_, context_, tasks, carve, [&](std::int64_t first, std::int64_t units) {
      context_.state().pool.run(tasks * units, [&](std::int64_t task, int worker) {
        chunk_backward(heaviest_[static_cast<std::size_t>(task / units)], first, task % units,
                       worker);
      });
      context_.state().pool.run(std::ssize(plan_.rows), [&](std::int64_t task, int worker) {
        sums_store(plan_.rows[static_cast<std::size_t>(task)], first, units, worker);
      });
    });
  }

 private:
  /// A chunk's sums for one unit: rows of the sink, the window and the representatives together.
  struct Sums {
    float* block = nullptr;
    std::int64_t floats = 0;
    KeySums sink, window, groups;
    float* bias = nullptr;
  };

  void sums_carve(Carver& carver, std::int64_t units_at_once) {
    sums_.clear();
    for (std::int64_t unit = 0; unit < units_at_once; ++unit) {
      for (const Chunk& chunk : chunks_) sums_.push_back(carve_sums(carver, chunk));
    }
    const AttentionShape& shape = plan_.shape;
    const std::int64_t rows = plan_.mla && rope_ > 0 ? plan_.slots : 0;
    shared_rope_ = carver.take<float>(rows * shape.d_rope);
    scratch_.clear();
    for (int i = 0; i < context_.threads(); ++i) {
      scratch_.push_back(carver.take<float>(backward_scratch_floats(
          shape.d_nope, shape.d_rope, shape.d_value, !plan_.steps.empty())));
    }
  }

  Sums carve_sums(Carver& carver, const Chunk& chunk) const {
    const std::int64_t sink = chunk.sink == 0 ? 0 : chunk.sink + kSpareSums;
    const std::int64_t window = chunk.window.size() + kSpareSums;
    const std::int64_t groups = chunk.groups == 0 ? 0 : chunk.groups + kSpareSums;
    const std::int64_t rows = sink + window + groups;
    const std::int64_t biases = grads_.bias == nullptr ? 0 : round_up(chunk.groups, kPanel);
    Sums sums;
    sums.floats = rows * (nope_ + rope_ + value_) + biases;
    sums.block = carver.take<float>(sums.floats);
    if (sums.block == nullptr) return sums;
    float* nope = sums.block;
    float* rope = nope + rows * nope_;
    float* value = rope + rows * rope_;
    const auto part = [&](std::int64_t row, std::int64_t first) {
      return KeySums{nope_ == 0 ? nullptr : nope + row * nope_,
                     rope_ == 0 ? nullptr : rope + row * rope_,
                     value_ == 0 ? nullptr : value + row * value_, first};
    };
    sums.sink = part(0, 0);
    sums.window = part(sink, chunk.window.begin);
    sums.groups = part(sink + window, 0);
    if (biases > 0) sums.bias = value + rows * value_;
    return sums;
  }

  Sums& sums(std::size_t chunk, std::int64_t slot) {
    return sums_[static_cast<std::size_t>(slot) * chunks_.size() + chunk];
  }

  /// All tiles of a chunk, for all heads of the unit.
  void chunk_backward(std::size_t number, std::int64_t first_unit, std::int64_t slot, int worker) {
    const Chunk& chunk = chunks_[number];
    const Sums& to = sums(number, slot);
    std::fill_n(to.block, to.floats, 0.0F);
    for (std::int64_t row = chunk.first; row < chunk.end; row += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, chunk.end - row);
      for (std::int64_t h = 0; h < plan_.heads_a_unit; ++h) {
        const std::int64_t unit = first_unit + slot;
        BackwardTile tile = make_tile(chunk, unit, unit * plan_.heads_a_unit + h, row, rows);
        tile.sink = to.sink;
        tile.window = to.window;
        tile.group_sums = to.groups;
        tile.bias_sums = to.bias;
        tile.scratch = scratch_[static_cast<std::size_t>(worker)];
        tile_backward(tile);
      }
    }
  }

  BackwardTile make_tile(const Chunk& chunk, std::int64_t unit, std::int64_t head, std::int64_t row,
                         std::int64_t rows) const {
    const AttentionShape& shape = plan_.shape;
    const Document& document = plan_.documents[chunk.document];
    const std::int64_t token = document.start + row;
    const auto part = [&](auto tensor) {
      if (!tensor.empty()) tensor.data = tensor.row(token, head);
      return tensor;
    };
    BackwardTile tile;
    tile.layout = plan_.layout;
    tile.scale = static_cast<float>(plan_.layer.softmax_scale());
    tile.d_nope = shape.d_nope;
    tile.d_rope = shape.d_rope;
    tile.d_value = shape.d_value;
    tile.rows = rows;
    tile.first = row;
    tile.q_nope = part(in_.queries.nope);
    tile.q_rope = part(in_.queries.rope);
    tile.out = part(out_);
    tile.out_grad = part(out_grad_);
    tile.lse = lse_ + token * shape.heads + head;
    tile.lse_stride = shape.heads;
    tile.rotation = plan_.rotation();
    tile.tokens = keys_.backward_keys(unit, {chunk.document, false, 0, document.length});
    tile.groups = keys_.backward_keys(unit, {chunk.document, true, 0, document.groups});
    tile.bias = keys_.bias(unit, chunk.document);
    tile.dq_nope = part(grads_.q_nope);
    tile.dq_rope = part(grads_.q_rope);
    return tile;
  }

  /// Adds the chunks' sums of some rows up and stores them.
  void sums_store(const RowsTask& task, std::int64_t first_unit, std::int64_t units, int worker) {
    const AttentionShape& shape = plan_.shape;
    const Document& document = plan_.documents[task.document];
    const HeadEntryGrads& grads = task.groups ? grads_.groups : grads_.exact;
    const auto scale = static_cast<float>(plan_.layer.softmax_scale());
    float* sum = scratch_[static_cast<std::size_t>(worker)];
    const std::int64_t start = task.groups ? document.first_group : document.start;
    const std::int64_t shared = task.groups ? document.group_slot : document.slot;
    for (std::int64_t i = task.first; i < task.first + task.count; ++i) {
      for (std::int64_t slot = 0; slot < units; ++slot) {
        const std::int64_t unit = first_unit + slot;
        const auto store = [&](const Tensor& to, float* KeySums::*part, std::int64_t stride,
                               std::int64_t width, float factor) {
          if (to.empty()) return;
          std::fill_n(sum, width, 0.0F);
          add_chunks(task, i, slot, part, stride, width, factor, sum);
          vector_store(sum, width, to.dtype, to.row(start + i, unit));
        };
        store(grads.k_nope, &KeySums::nope, nope_, shape.d_nope, scale);
        store(grads.value, &KeySums::values, value_, shape.d_value, 1);
        if (!plan_.mla) {
          store(grads.k_rope, &KeySums::rope, rope_, shape.d_rope, scale);
        } else if (!grads.k_rope.empty()) {
          float* all = shared_rope_ + (shared + i) * shape.d_rope;
          if (unit == 0) std::fill_n(all, shape.d_rope, 0.0F);
          add_chunks(task, i, slot, &KeySums::rope, rope_, shape.d_rope, scale, all);
          if (unit + 1 == plan_.units) {
            vector_store(all, shape.d_rope, grads.k_rope.dtype, grads.k_rope.row(start + i, 0));
          }
        }
        if (task.groups && grads_.bias != nullptr)
          store_bias(task.document, start + i, i, unit, slot);
      }
    }
  }

  /// sum += factor · the sums of row i in every chunk that sees it, in the chunks' order.
  void add_chunks(const RowsTask& task, std::int64_t i, std::int64_t slot, float* KeySums::*part,
                  std::int64_t stride, std::int64_t width, float factor, float* sum) {
    for (std::size_t c = first_chunk_[task.document]; c < first_chunk_[task.document + 1]; ++c) {
      const Chunk& chunk = chunks_[c];
      const Sums& from = sums(c, slot);
      const auto add = [&](const KeySums& rows) {
        vector_add_scaled(factor, rows.*part + (i - rows.first) * stride, DType::f32, width, sum);
      };
      if (task.groups) {
        if (i < chunk.groups) add(from.groups);
        continue;
      }
      if (i < chunk.sink) add(from.sink);
      if (chunk.window.contains(i)) add(from.window);
    }
  }

  void store_bias(std::size_t document, std::int64_t group, std::int64_t j, std::int64_t unit,
                  std::int64_t slot) {
    float* to = grads_.bias + (plan_.mla ? group : group * plan_.shape.kv_heads + unit);
    float sum = plan_.mla && unit > 0 ? *to : 0.0F;
    for (std::size_t c = first_chunk_[document]; c < first_chunk_[document + 1]; ++c) {
      if (j < chunks_[c].groups) sum += sums(c, slot).bias[j];
    }
    *to = sum;
  }

  OperatorPlan plan_;
  const AttendInputs& in_;
  const ConstTensor& out_;
  const float* lse_;
  const ConstTensor& out_grad_;
  const AttendInputGrads& grads_;
  Context& context_;
  OperatorKeys keys_;
  std::int64_t nope_ = 0, rope_ = 0, value_ = 0;  ///< floats of a row of sums; 0: not wanted
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> first_chunk_;  ///< of each document, and the end
  std::vector<std::size_t> heaviest_;     ///< chunks in the order they are started
  std::vector<Sums> sums_;                ///< [units at once][chunks]
  float* shared_rope_ = nullptr;          ///< MLA: [slot][d_r]
  std::vector<float*> scratch_;
};

}  // namespace

void attend_backward(const OperatorSpec& spec, const AttendInputs& in, const ConstTensor& out,
                     const float* lse, const ConstTensor& out_grad,
                     const AttendInputGrads& in_grads, Context& context) {
  const ContextUse use(context);
  AttendBackward(spec, in, out, lse, out_grad, in_grads, context).run();
}

}  // namespace lca::cpu
