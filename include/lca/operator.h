#pragma once
/// Attention of whole sequences as an operator with gradients, for training: in the two halves that
/// frameworks compose. `operator_condense` makes representatives, `operator_attend` reads them
/// (mechanism §2–§5, §8, §10). What lies between the halves in MLA (k_nope = W_uk c, v = W_uv c, of
/// tokens and of representatives) are the caller's own matrix products.

#include <lca/cache.h>
#include <lca/context.h>
#include <lca/tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lca {

/// Which kernels run: plain loops in double precision, the CPU's, or the GPU's.
enum class Backend : std::uint8_t { reference = 0, cpu = 1, cuda = 2 };

/// What is fixed about a call. Documents are packed one after another along the token dimension;
/// every law counts from a document's start, and their representatives are stored in order.
struct OperatorSpec {
  LayerSpec layer;                   ///< layer.dtype is not used: every tensor carries its own
  std::vector<std::int64_t> starts;  ///< [D+1]: 0, …, n; strictly increasing

  std::int64_t tokens() const { return starts.empty() ? 0 : starts.back(); }
  /// Σ m(length) over the documents.
  std::int64_t groups() const;
  /// Throws Error where a field is out of range, or summary is `prompt` with several documents.
  void validate() const;
};

/// Where a call runs. Tensors lie in host memory, or with Backend::cuda in that device's. The same
/// call gives the same bits every time, whatever the number of threads or the order blocks end in.
struct OperatorPlace {
  Backend backend = Backend::cpu;
  Context* context = nullptr;  ///< cpu: threads and scratch
  int device = 0;              ///< cuda
  void* stream = nullptr;      ///< cuda: the cudaStream_t that work is enqueued on
  void* workspace = nullptr;   ///< cuda: operator_workspace_bytes of device memory
  bool portable = false;       ///< cuda: only kernels that every GPU since sm_80 runs
};

// --- condense ----------------------------------------------------------------------------------

/// Inputs of condensation. Tensors are those of `Queries` and `Entries` for all n tokens.
struct CondenseInputs {
  Queries queries;
  Entries entries;
  ConstTensor w_uk;  ///< MLA [H,d_n,d_c]; GQA: empty
};

/// The m representatives. `scores` is what the backward pass needs to follow the same choices.
struct CondenseOutputs {
  Tensor semantic;             ///< [m,KV,d_semantic]
  Tensor positional;           ///< [m,KV,d_positional], at the position they are kept at
  float* bias = nullptr;       ///< [m,KV]: 0, log g or b_j
  float* scores = nullptr;     ///< [m,KV,g], reduced over heads; null: not wanted
  double* bias_f64 = nullptr;  ///< reference: written in place of `bias` where it is not null
};

/// Gradients of the outputs of condensation.
struct CondenseOutputGrads {
  ConstTensor semantic;              ///< [m,KV,d_semantic]
  ConstTensor positional;            ///< [m,KV,d_positional]
  const float* bias = nullptr;       ///< [m,KV]; null where mass is not `score`
  const double* bias_f64 = nullptr;  ///< reference: read in place of `bias` where it is not null
};

/// Gradients of the inputs of condensation; a tensor without memory is not wanted. Rows that no
/// group touches become 0, or stay as they are with `accumulate`.
struct CondenseInputGrads {
  Tensor q_nope, q_rope, semantic, positional;
  Tensor w_uk;
  bool accumulate = false;  ///< adds to what is there
};

/// Condenses every group that has left the window at the end of its document.
void operator_condense(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const OperatorPlace& place);

/// `out` holds what the forward pass wrote, scores included.
void operator_condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                                const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                                const CondenseInputGrads& in_grads, const OperatorPlace& place);

// --- attend ------------------------------------------------------------------------------------

/// Keys and values as heads see them, of tokens or of representatives.
struct HeadEntries {
  ConstTensor k_nope;  ///< MLA [rows,H,d_n]; GQA: empty
  ConstTensor k_rope;  ///< MLA [rows,1,d_r]; GQA: the whole key [rows,KV,d]
  ConstTensor value;   ///< MLA [rows,H,d_v]; GQA [rows,KV,d_v]
};

struct AttendInputs {
  Queries queries;                   ///< rotated at token positions
  HeadEntries exact;                 ///< n rows
  HeadEntries groups;                ///< m rows, keys as they are kept
  const float* bias = nullptr;       ///< [m,KV], added to the logits of representatives; null: 0
  const double* bias_f64 = nullptr;  ///< reference: read in place of `bias` where it is not null
};

struct AttendOutputs {
  Tensor out;                 ///< [n,H,d_v]
  float* lse = nullptr;       ///< [n,H], natural log; only the reference takes null
  double* lse_f64 = nullptr;  ///< reference: written as well where it is not null
};

/// Gradients of keys and values; a tensor without memory is not wanted.
struct HeadEntryGrads {
  Tensor k_nope, k_rope, value;
};

struct AttendInputGrads {
  Tensor q_nope, q_rope;
  HeadEntryGrads exact, groups;
  float* bias = nullptr;       ///< [m,KV]; null: not wanted
  double* bias_f64 = nullptr;  ///< reference: written in place of `bias` where it is not null
};

/// Every query attends to the sink, the representatives and the window it sees. With method `dense`
/// or `window` there are no representatives and `groups` is empty.
void operator_attend(const OperatorSpec& spec, const AttendInputs& in, const AttendOutputs& out,
                     const OperatorPlace& place);

/// `out` and `lse` are those of the forward pass (the reference computes its own and takes null).
/// No gradient flows from `lse`.
void operator_attend_backward(const OperatorSpec& spec, const AttendInputs& in,
                              const ConstTensor& out, const float* lse, const ConstTensor& out_grad,
                              const AttendInputGrads& in_grads, const OperatorPlace& place);

// --- device memory -----------------------------------------------------------------------------

enum class OperatorPart : std::uint8_t { condense, condense_backward, attend, attend_backward };

/// Device scratch that one call needs; it must live until the stream has passed it.
std::size_t operator_workspace_bytes(const OperatorSpec& spec, OperatorPart part,
                                     const OperatorPlace& place);

}  // namespace lca
