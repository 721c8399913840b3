#pragma once
/// What a random prefill is made of: its case, and tensors on both sides.

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "attention/cuda/prefill/prefill.h"
#include "attention/rotate.h"
#include "cuda/support.h"

namespace lca::test {

/// Queries [first, first + count) of one document.
struct RunCase {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

enum class Bias { none, constant, each };

struct PrefillCase {
  Form form = Form::mla;
  int heads = 2, kv_heads = 1;
  int d_nope = 128, d_rope = 64, d_value = 128;
  Layout layout;
  Rotation rotation;  ///< entry positions where it has frequencies
  std::vector<RunCase> runs;
  Bias bias = Bias::none;
  bool lse = true;
  bool fused = false;       ///< q is one tensor, and k_nope and value are (MLA)
  std::int64_t spare = 3;   ///< rows of NaN around every run; 0: packed documents
  std::int64_t shift = 0;   ///< elements by which every tensor starts off its alignment
  double sharpness = 1;     ///< how large logits are
  std::int64_t sample = 0;  ///< queries of a run that are checked; 0: all
  std::uint64_t seed = 0;

  std::string describe() const {
    std::ostringstream text;
    text << (form == Form::mla ? "MLA " : "GQA ") << heads << "/" << kv_heads << " heads, widths "
         << d_nope << "+" << d_rope << "/" << d_value << ", method "
         << static_cast<int>(layout.method) << " g " << layout.group << " w " << layout.window
         << " sink " << layout.sink << ", bias " << static_cast<int>(bias) << " lse " << lse
         << " fused " << fused << " spare " << spare << " shift " << shift << " sharpness "
         << sharpness << " seed " << seed << ", " << rotation.frequencies.size()
         << (rotation.layout == RopeLayout::halves ? " halves" : " adjacent") << " rotated, runs";
    for (const RunCase& run : runs) text << " [" << run.first << " +" << run.count << "]";
    return text.str();
  }
};

inline Layout layout_of(MethodKind method, std::int64_t g, std::int64_t w, std::int64_t sink) {
  Layout layout;
  layout.method = method;
  layout.group = g;
  layout.window = w;
  layout.sink = sink;
  return layout;
}

/// A tensor [rows][heads][width] on both sides; views share it.
struct Tensor {
  std::vector<bf16> host;
  DeviceArray<bf16> device;
};

/// Some columns of every head of a tensor.
struct View {
  std::shared_ptr<Tensor> tensor;
  std::int64_t offset = 0, row_stride = 0, head_stride = 0;
  int width = 0;

  std::int64_t index(std::int64_t row, std::int64_t head) const {
    return offset + row * row_stride + head * head_stride;
  }
  cuda::HeadRows rows() const {
    if (width == 0) return {};
    return {tensor->device.data() + offset, row_stride, head_stride, width};
  }
};

}  // namespace lca::test
