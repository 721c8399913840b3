#pragma once
/// The groups of packed documents, for the condensing operator and its backward pass.

#include <lca/operator.h>

#include <cstdint>
#include <vector>

#include "attention/cpu/score_vectors.h"
#include "attention/layout.h"
#include "attention/rotate.h"

namespace lca::cpu {

/// A document's tokens, groups and summaries in the order of all documents. In `prompt` mode one
/// summary scores all of its groups, else every group has its own.
struct GroupDocument {
  std::int64_t start = 0, length = 0;
  std::int64_t first_group = 0, groups = 0;
  std::int64_t first_summary = 0, summaries = 0;
};

/// Groups (or summaries) [first, first + count) of a document, counted from its own first one.
struct GroupBatch {
  std::size_t document = 0;
  std::int64_t first = 0, count = 0;
};

/// What a call of the condensing operator is about.
struct GroupPlan {
  GroupPlan(const OperatorSpec& spec, const CondenseInputs& inputs);

  const LayerSpec& layer;
  const AttentionShape& shape;
  const CondenseInputs& in;
  Layout layout;
  bool prompt;   ///< one summary scores all groups of a document
  bool rotates;  ///< representatives are kept at other positions than their tokens'
  std::int64_t groups = 0, summaries = 0;
  std::vector<GroupDocument> documents;
  std::vector<GroupBatch> batches;          ///< of groups
  std::vector<GroupBatch> summary_batches;  ///< of summaries
  std::vector<std::uint64_t> steps;         ///< of the rotation; none with token positions

  RowRotation rotation() const;
  /// Queries of a summary, counted from the document's start.
  Range summary_range(const GroupDocument& document, std::int64_t summary) const;
  /// The mean queries of a summary, into place `to` of the vectors.
  void average(const GroupDocument& document, std::int64_t summary, const ScoreVectors& vectors,
               std::int64_t to) const;
};

/// The members of one group for one KV head. `angles` is scratch of d_positional floats, `row` of
/// as many; both only where rows are rotated.
struct GroupMembers {
  const GroupPlan& plan;
  const GroupDocument& document;
  std::int64_t group, kv;
  float *row, *angles;

  std::int64_t token(std::int64_t k) const {
    return document.start + plan.layout.group_range(group).begin + k;
  }
  PoolRow semantic(std::int64_t k) const;
  PoolRow positional(std::int64_t k) const;
  /// Rotated to where the representative lies; valid until the next one.
  PoolRow rotated(std::int64_t k) const;
  /// The difference of positions that `rotated` rotates by.
  std::int64_t difference(std::int64_t k) const;
};

}  // namespace lca::cpu
