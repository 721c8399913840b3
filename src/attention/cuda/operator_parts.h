#pragma once
/// What the operators on the GPU share: where a call runs, its tables, and tensors as rows.

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/condense/documents.h"
#include "attention/cuda/operator.h"
#include "attention/cuda/views.h"
#include "core/cuda/memory.h"
#include "core/error.h"

namespace lca::cuda {

inline HeadRows operator_rows(const ConstTensor& tensor) {
  return {static_cast<const bf16*>(tensor.data), tensor.stride[0], tensor.stride[1],
          static_cast<int>(tensor.shape[2])};
}

inline OutRows operator_rows(const Tensor& tensor) {
  return {static_cast<bf16*>(tensor.data), tensor.stride[0], tensor.stride[1],
          static_cast<int>(tensor.shape[2])};
}

/// One call: the GPU is current as long as it lives.
class OperatorCall {
 public:
  OperatorCall(const OperatorSpec& spec, const OperatorPlace& place)
      : layout(spec.layer.settings),
        groups(spec.groups()),
        queue{&Device::at(place.device), static_cast<cudaStream_t>(place.stream)},
        spec_(spec),
        scope_(*queue.device) {
    constexpr std::uintptr_t kAlignment = 256;
    const auto address = reinterpret_cast<std::uintptr_t>(place.workspace);
    if (address == 0 || address % kAlignment != 0) {
      fail_input("an operator on the GPU needs a workspace at a multiple of {} bytes", kAlignment);
    }
  }

  bool condenses() const { return spec_.layer.settings.method == MethodKind::lca; }
  /// The prompt's length where its last queries score all groups, else 0.
  std::int64_t prompt() const {
    return condenses() && spec_.layer.settings.summary == Summary::prompt ? spec_.tokens() : 0;
  }
  bool rotates() const { return spec_.layer.settings.positions == Positions::entry; }

  /// The table of documents on the GPU; one document needs none.
  Documents documents(DocumentPlace* table) const {
    if (spec_.starts.size() == 2) return {};
    std::vector<DocumentPlace> places;
    std::int64_t group = 0;
    for (std::size_t i = 0; i + 1 < spec_.starts.size(); ++i) {
      places.push_back({spec_.starts[i], group});
      group += layout.groups(spec_.starts[i + 1] - spec_.starts[i]);
    }
    places.push_back({spec_.tokens(), group});
    documents_write(places, table, queue);
    return {table, static_cast<int>(places.size()) - 1};
  }

  /// How positional parts are rotated, its steps on the GPU.
  RotationView rotation(std::uint64_t* steps) const;

  Layout layout;
  std::int64_t groups;  ///< of all documents
  Queue queue;

 private:
  const OperatorSpec& spec_;
  DeviceScope scope_;
};

/// A run for each document.
std::vector<PrefillRun> operator_runs(const OperatorSpec& spec);

/// Scratch of each part, in bytes.
std::size_t condense_space_bytes(const OperatorSpec& spec, bool backward);
std::size_t attend_space_bytes(const OperatorSpec& spec, const OperatorPlace& place, bool backward);

/// Numbers for a table of `starts`, and for a rotation.
inline std::int64_t documents_room(const OperatorSpec& spec) {
  return static_cast<std::int64_t>(spec.starts.size());
}
inline std::int64_t steps_room(const OperatorSpec& spec) {
  return static_cast<std::int64_t>(spec.layer.rotation.frequencies.size());
}

}  // namespace lca::cuda
