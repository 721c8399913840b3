// Condensation of whole sequences as an operator, and its backward pass.

#include <algorithm>
#include <map>
#include <mutex>

#include "attention/cuda/condense/condense_backward.h"
#include "attention/cuda/operator_parts.h"

namespace lca::cuda {
namespace {

/// cuBLASLt on each GPU, for one thread at a time.
struct SharedProducts {
  explicit SharedProducts(const Device& device) : products(device) {}
  std::mutex lock;
  Products products;
};

SharedProducts& shared_products(const Device& device) {
  // Alive until the process ends: CUDA may be gone before static objects are.
  static auto& all = *new std::map<int, SharedProducts>;
  static std::mutex lock;
  const std::lock_guard guard(lock);
  return all.try_emplace(device.ordinal, device).first->second;
}

struct CondenseSpace {
  DocumentPlace* documents = nullptr;
  std::uint64_t* steps = nullptr;
  bf16* w_uk = nullptr;  ///< [H][d_n][d_c]
  QueryMeans means;      ///< of all groups, or of the prompt
  float* summary = nullptr;
  void* scratch = nullptr;
  // Backward.
  bf16* summary_semantic = nullptr;     ///< [m][heads][d_c]
  float* summary_positional = nullptr;  ///< [m][KV·heads][d_positional]
  bf16* sum_semantic = nullptr;         ///< prompt: [heads][d_c]
  float* sum_positional = nullptr;      ///< prompt: [KV·heads][d_positional]
  bf16* mean_nope = nullptr;            ///< [m or 1][H][d_n]
};

CondenseSpace carve_condense(const OperatorSpec& spec, bool backward, DeviceCarver& carver) {
  const AttentionShape& shape = spec.layer.shape;
  const Settings& settings = spec.layer.settings;
  const bool mla = shape.form == Form::mla;
  const bool prompt = settings.summary == Summary::prompt;
  const std::int64_t groups = spec.groups();
  const std::int64_t means = prompt ? std::min<std::int64_t>(groups, 1) : groups;
  const bool is_max = settings.head_reduce == HeadReduce::max;
  const std::int64_t heads = is_max ? shape.heads : shape.kv_heads;  // of a summary
  CondenseSpace space;
  space.documents = carver.take<DocumentPlace>(documents_room(spec));
  space.steps = carver.take<std::uint64_t>(steps_room(spec));
  space.means.rope = carver.take<float>(means * heads * shape.d_rope);
  if (mla) {
    space.w_uk = carver.take<bf16>(shape.heads * shape.d_nope * shape.d_latent);
    space.means.nope = carver.take<bf16>(means * 2 * shape.heads * shape.d_nope);
    space.summary = carver.take<float>(means * summary_width(shape, settings.head_reduce));
    space.scratch = carver.take<std::byte>(std::int64_t{Products::kScratchBytes});
  }
  if (backward) {
    space.summary_positional = carver.take<float>(groups * heads * shape.d_positional());
    space.sum_positional = carver.take<float>(prompt ? heads * shape.d_positional() : 0);
    if (mla) {
      space.summary_semantic = carver.take<bf16>(groups * heads * shape.d_latent);
      space.sum_semantic = carver.take<bf16>(prompt ? heads * shape.d_latent : 0);
      space.mean_nope = carver.take<bf16>(means * shape.heads * shape.d_nope);
    }
  }
  return space;
}

/// One call of condensation, forward or backward.
class CondenseCall {
 public:
  CondenseCall(const OperatorSpec& spec, const CondenseInputs& in, const OperatorPlace& place,
               bool backward)
      : call_(spec, place),
        spec_(spec),
        shape_(spec.layer.shape),
        reduce_(spec.layer.settings.head_reduce),
        mla_(shape_.form == Form::mla),
        in_(in),
        documents_on_gpu_() {
    DeviceCarver carver(place.workspace);
    space_ = carve_condense(spec, backward, carver);
    documents_on_gpu_ = call_.documents(space_.documents);
    if (mla_ && call_.groups > 0) w_uk_ = weights_dense();
  }

  std::int64_t groups() const { return call_.groups; }

  /// Scores, pools and selects.
  void forward(const CondenseOutputs& out) const {
    Condense job = request();
    job.out_semantic = operator_rows(out.semantic);
    job.out_positional = operator_rows(out.positional);
    job.out_bias = out.bias;
    job.out_scores = out.scores;
    if (!condense_sums(job)) summaries_give(job, false);
    condense(job, call_.queue);
  }

  void backward(const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                const CondenseInputGrads& grads) const {
    const bool queries = !grads.q_nope.empty() || !grads.q_rope.empty();
    const bool weights = mla_ && !grads.w_uk.empty();
    if (groups() > 0) {
      CondenseBackward job;
      job.forward = request();
      job.forward.out_scores = out.scores;
      job.grad_semantic = operator_rows(out_grads.semantic);
      job.grad_positional = operator_rows(out_grads.positional);
      job.grad_bias = out_grads.bias;
      job.semantic = group_rows(operator_rows(grads.semantic));
      job.positional = group_rows(operator_rows(grads.positional));
      job.accumulate = grads.accumulate;
      if (queries || weights) {
        job.summary_semantic = space_.summary_semantic;
        job.summary_positional = space_.summary_positional;
      }
      if (!condense_backward_sums(job)) summaries_give(job.forward, true);
      condense_backward(job, call_.queue);
    }
    if (!grads.accumulate) {
      gaps_clear(call_.layout, documents_on_gpu_, spec_.tokens(), groups(), shape_.kv_heads,
                 operator_rows(grads.semantic), operator_rows(grads.positional), call_.queue);
    }
    const SummaryGrads summary = queries || weights ? summary_grads() : SummaryGrads{};
    if (weights) weights_backward(summary, grads);
    if (queries) queries_backward(summary, grads);
  }

 private:
  /// Gradients of the summaries, one row for each mean.
  struct SummaryGrads {
    const bf16* semantic = nullptr;
    const float* positional = nullptr;
  };

  bool prompt() const { return call_.prompt() > 0; }
  std::int64_t means() const { return prompt() ? std::min<std::int64_t>(groups(), 1) : groups(); }
  /// Heads whose summaries stay apart, of all KV heads.
  std::int64_t summary_heads() const {
    return reduce_ == HeadReduce::max ? shape_.heads : shape_.kv_heads;
  }

  /// Rows from the first group on, as kernels take them without a table of documents.
  template <typename Rows>
  Rows group_rows(Rows rows) const {
    if (documents_on_gpu_.table == nullptr && rows.data != nullptr) {
      rows.data += call_.layout.group_range(0).begin * rows.row_stride;
    }
    return rows;
  }

  QueryRows query_rows() const {
    QueryRows queries;
    if (mla_) queries.nope = operator_rows(in_.queries.nope);
    queries.rope = operator_rows(in_.queries.rope);
    queries.rows = spec_.tokens();
    return queries;
  }

  /// All inputs of the kernel but summaries.
  Condense request() const {
    Condense job;
    job.shape = shape_;
    job.settings = spec_.layer.settings;
    job.scale = static_cast<float>(spec_.layer.softmax_scale());
    job.semantic = group_rows(operator_rows(in_.entries.semantic));
    job.positional = group_rows(operator_rows(in_.entries.positional));
    job.one_summary = prompt();
    job.queries = query_rows();
    job.count = groups();
    job.rotation = call_.rotation(space_.steps);
    job.documents = documents_on_gpu_;
    return job;
  }

  /// Summaries in place of queries.
  void summaries_give(Condense& job, bool with_means) const {
    job.queries = {};
    job.summary = summaries(with_means);
  }

  /// W_uk without gaps: the tensor itself, or a copy.
  const bf16* weights_dense() const {
    const ConstTensor& w = in_.w_uk;
    const std::int64_t head = shape_.d_nope * shape_.d_latent;
    if (w.stride[1] == shape_.d_latent && (w.stride[0] == head || shape_.heads == 1)) {
      return static_cast<const bf16*>(w.data);
    }
    // Rows of `width` values at strides. A head's rows mostly have no gaps: heads are rows then.
    const auto copy = [&](const void* from, std::int64_t stride, std::int64_t width,
                          std::int64_t rows, bf16* to) {
      const auto bytes = [](std::int64_t values) {
        return static_cast<std::size_t>(values) * sizeof(bf16);
      };
      check(
          cudaMemcpy2DAsync(to, bytes(width), from, bytes(stride), bytes(width),
                            static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, call_.queue),
          "copying w_uk");
    };
    if (w.stride[1] == shape_.d_latent && w.stride[0] >= head) {
      copy(w.data, w.stride[0], head, shape_.heads, space_.w_uk);
    } else {
      for (std::int64_t h = 0; h < shape_.heads; ++h) {
        copy(w.row(h), w.stride[1], shape_.d_latent, shape_.d_nope, space_.w_uk + h * head);
      }
    }
    return space_.w_uk;
  }

  ProductSpace products() const {
    return {&shared_products(*call_.queue.device).products, space_.scratch};
  }

  /// Reduced queries of all groups [m or 1][KV][summary_width], and their means where wanted.
  const float* summaries(bool with_means) const {
    const QueryRows queries = query_rows();
    const Device& device = *call_.queue.device;
    if (mla_ && !with_means && !prompt() && query_summary_pays(device, groups()) &&
        query_summary_fits(device, shape_, reduce_, &call_.layout, queries, 0, w_uk_)) {
      query_summary(shape_, call_.layout, queries, 0, groups(), w_uk_, space_.summary, call_.queue,
                    documents_on_gpu_);
      return space_.summary;
    }
    query_means(shape_, reduce_, call_.layout, call_.prompt(), queries, 0, means(), space_.means,
                call_.queue, documents_on_gpu_);
    if (!mla_) return space_.means.rope;
    const std::lock_guard guard(shared_products(device).lock);
    // The backward pass takes its choices from the forward pass's scores; with `max` it needs the
    // heads' own to see which one counted.
    const bool rough = with_means && reduce_ != HeadReduce::max;
    summary_absorb(shape_, reduce_, space_.means, means(), w_uk_, space_.summary, products(),
                   call_.queue, rough ? MeanParts::high : MeanParts::both);
    return space_.summary;
  }

  SummaryGrads summary_grads() const {
    if (!prompt() || groups() == 0) return {space_.summary_semantic, space_.summary_positional};
    const std::int64_t heads = summary_heads();
    if (mla_) {
      rows_sum(space_.summary_semantic, groups(), heads * shape_.d_latent, space_.sum_semantic,
               call_.queue);
    }
    rows_sum(space_.summary_positional, groups(), heads * shape_.d_positional(),
             space_.sum_positional, call_.queue);
    return {space_.sum_semantic, space_.sum_positional};
  }

  /// dW_uk[h] = Σ_j q̄_{j,h} ⊗ du_j, with the means' high parts.
  void weights_backward(const SummaryGrads& summary, const CondenseInputGrads& grads) const {
    const std::int64_t heads = summary_heads();  // 1, or H where each has a summary of its own
    const Tensor& w = grads.w_uk;
    Product product;
    product.a = space_.means.nope;
    product.a_transposed = true;
    product.a_stride = 2 * shape_.heads * shape_.d_nope;
    product.b = summary.semantic;
    product.b_transposed = false;
    product.b_stride = heads * shape_.d_latent;
    product.c = w.data;
    product.c_stride = w.stride[1];
    product.rows = shape_.d_nope;
    product.columns = shape_.d_latent;
    product.inner = means();
    product.accumulate = grads.accumulate;
    if (heads == 1 && w.stride[0] == shape_.d_nope * w.stride[1]) {
      product.rows = shape_.heads * shape_.d_nope;
    } else {
      product.batch = static_cast<int>(shape_.heads);
      product.a_batch = shape_.d_nope;
      product.b_batch = heads == 1 ? 0 : shape_.d_latent;
      product.c_batch = w.stride[0];
    }
    const std::lock_guard guard(shared_products(*call_.queue.device).lock);
    products().multiply(product, call_.queue);
  }

  /// From summaries to means (MLA: dq̄_h = W_uk_h du), and on to the queries.
  void queries_backward(const SummaryGrads& summary, const CondenseInputGrads& grads) const {
    const std::int64_t heads = summary_heads();
    if (mla_ && !grads.q_nope.empty() && groups() > 0) {
      Product product;
      product.a = summary.semantic;
      product.a_stride = heads * shape_.d_latent;
      product.b = w_uk_;
      product.b_stride = shape_.d_latent;
      product.c = space_.mean_nope;
      product.c_stride = shape_.heads * shape_.d_nope;
      product.rows = means();
      product.columns = shape_.heads * shape_.d_nope;
      product.inner = shape_.d_latent;
      if (heads > 1) {
        product.columns = shape_.d_nope;
        product.batch = static_cast<int>(shape_.heads);
        product.a_batch = shape_.d_latent;
        product.b_batch = shape_.d_nope * shape_.d_latent;
        product.c_batch = shape_.d_nope;
      }
      const std::lock_guard guard(shared_products(*call_.queue.device).lock);
      products().multiply(product, call_.queue);
    }
    QueryGrads job;
    job.layout = call_.layout;
    job.prompt = call_.prompt();
    job.documents = documents_on_gpu_;
    job.tokens = spec_.tokens();
    job.groups = groups();
    job.heads = shape_.heads;
    job.rope_heads = heads;
    job.nope = space_.mean_nope;
    job.rope = summary.positional;
    if (mla_) job.q_nope = operator_rows(grads.q_nope);
    job.q_rope = operator_rows(grads.q_rope);
    job.accumulate = grads.accumulate;
    query_grads(job, call_.queue);
  }

  OperatorCall call_;
  const OperatorSpec& spec_;
  const AttentionShape& shape_;
  HeadReduce reduce_;
  bool mla_;
  const CondenseInputs& in_;
  CondenseSpace space_;
  Documents documents_on_gpu_;
  const bf16* w_uk_ = nullptr;
};

}  // namespace

std::size_t condense_space_bytes(const OperatorSpec& spec, bool backward) {
  DeviceCarver carver;
  carve_condense(spec, backward, carver);
  return carver.used();
}

void operator_condense(const OperatorSpec& spec, const CondenseInputs& in,
                       const CondenseOutputs& out, const OperatorPlace& place) {
  if (spec.groups() == 0) return;
  CondenseCall(spec, in, place, false).forward(out);
}

void operator_condense_backward(const OperatorSpec& spec, const CondenseInputs& in,
                                const CondenseOutputs& out, const CondenseOutputGrads& out_grads,
                                const CondenseInputGrads& in_grads, const OperatorPlace& place) {
  CondenseCall(spec, in, place, true).backward(out, out_grads, in_grads);
}

}  // namespace lca::cuda
