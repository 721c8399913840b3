#pragma once
/// What decode tests run on: sessions in double precision and, side by side, the same on the GPU,
/// caches built by hand, everything that was not written filled with NaN.

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "attention/cuda/condense/condense.h"
#include "attention/cuda/decode/decode.h"
#include "core/cuda/memory.h"
#include "cuda/decode_pool.h"
#include "cuda/decode_reference.h"
#include "cuda/support.h"
#include "ops/cuda/product.h"

namespace lca::test {

/// One session's memory on the GPU.
struct DeviceSession {
  std::int64_t first_row = 0;  // of the rows of all sessions
  DeviceArray<float> summary;
  DeviceArray<std::int32_t> pages;
  std::vector<std::int32_t> page_list;
  std::int64_t ring = 0;
};

/// A batch of sessions, the step that takes them on, and its plan.
class DecodeState {
 protected:
  explicit DecodeState(const DecodeCase& c) : c_(c), layout_(c.settings), random_(c.seed) {
    scale_ = static_cast<float>(c.shape.default_scale());
    const auto batch = static_cast<std::int64_t>(c.lengths.size());
    std::int64_t pages = 2;
    for (const std::int64_t length : c.lengths) {
      pages += (layout_.groups(length + c.steps) + cuda::kPageRows - 1) / cuda::kPageRows;
    }
    pool_.emplace(c, pages * cuda::kPageRows);
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(random_.integer(0, static_cast<int>(i) - 1))]);
    }
    std::size_t next = 0;
    for (const std::int64_t length : c.lengths) {
      sessions_.emplace_back(c.shape, c.settings, c.rotation, scale_, length + c.steps, random_,
                             c.outliers);
      devices_.emplace_back();
      session_build(sessions_.back(), devices_.back(), length, order, next);
    }
    const std::int64_t semantic_values = c.shape.kv_heads * c.shape.d_semantic();
    const std::int64_t positional_values = c.shape.kv_heads * c.shape.d_positional();
    exact_semantic_ = DeviceArray<bf16>(exact_rows_.semantic);
    exact_positional_ = DeviceArray<bf16>(exact_rows_.positional);
    step_.exact = {exact_semantic_.data(), exact_positional_.data(),
                   static_cast<std::int64_t>(exact_semantic_.size()) / semantic_values};
    std::vector<cuda::SessionView> views;
    for (std::int64_t b = 0; b < batch; ++b) {
      const DeviceSession& d = devices_[static_cast<std::size_t>(b)];
      views.push_back({exact_semantic_.data() + d.first_row * semantic_values,
                       exact_positional_.data() + d.first_row * positional_values, d.pages.data(),
                       d.summary.data(),
                       static_cast<std::int32_t>(c.lengths[static_cast<std::size_t>(b)]),
                       static_cast<int>(d.ring)});
    }
    views_ = DeviceArray<cuda::SessionView>(views);
    const std::int64_t kv = c.shape.kv_heads;
    queries_ = DeviceArray<bf16>(nan_bf16(batch * c.shape.heads * sessions_[0].d_query()));
    summary_ = DeviceArray<float>(
        nan_float(batch * kv * cuda::summary_width(c.shape, c.settings.head_reduce)));
    if (c.written) written_prepare();
    semantic_ = DeviceArray<bf16>(nan_bf16(batch * kv * c.shape.d_semantic()));
    positional_ = DeviceArray<bf16>(nan_bf16(batch * kv * c.shape.d_positional()));
    out_ = DeviceArray<bf16>(nan_bf16(batch * c.shape.heads * c.shape.d_semantic()));
    lse_ = DeviceArray<float>(nan_float(batch * c.shape.heads));
    step_.shape = c.shape;
    step_.settings = c.settings;
    if (!c.rotation.frequencies.empty()) {
      steps_ = DeviceArray<std::uint64_t>(rotation_steps(c.rotation));
      step_.rotation = {steps_.data(), static_cast<int>(steps_.size()), c.rotation.layout};
    }
    step_.scale = scale_;
    step_.pool = pool_->upload();
    step_.sessions = views_.data();
    step_.batch = static_cast<int>(batch);
    step_.queries = queries_.data();
    if (c.shape.form == Form::mla) step_.summary = summary_.data();
    step_.semantic = semantic_.data();
    step_.positional = positional_.data();
    step_.out = out_.data();
    step_.lse = lse_.data();

    // A plan need only be about right: one for a far longer cache cuts a short one into many.
    std::vector<std::int64_t> planned = c.lengths;
    if (c.chunk > 0) planned.assign(planned.size(), 131072);
    const std::int64_t longest = *std::max_element(planned.begin(), planned.end()) + c.steps;
    plan_ = cuda::decode_plan(gpu(), c.shape, c.settings, c.type, planned.data(), step_.batch,
                              longest, c.kernels);
    if (c.chunk > 0) plan_.chunk = c.chunk;
    if (c.blocks > 0) {
      plan_.blocks = c.blocks;
      plan_.cluster = c.cluster;
    }
    workspace_ =
        DeviceArray<std::uint8_t>(std::vector<std::uint8_t>(plan_.workspace_bytes + kGuard, 0xff));
    cuda::check(cudaMemset(workspace_.data(), 0, plan_.workspace_bytes), "zeros");
  }

  std::int64_t page_row(std::size_t session, std::int64_t j) const {
    const auto page = static_cast<std::size_t>(j / cuda::kPageRows);
    return devices_[session].page_list[page] * std::int64_t{cuda::kPageRows} + j % cuda::kPageRows;
  }

  std::int64_t ring_row(std::int64_t p, std::int64_t ring) const {
    const std::int64_t sink = c_.settings.sink;
    return p < sink ? p : sink + (p - sink) % ring;
  }

  void inputs_upload(std::int64_t step) {
    std::vector<bf16> queries, semantic, positional;
    std::vector<float> summary;
    for (std::size_t b = 0; b < sessions_.size(); ++b) {
      const std::int64_t t = c_.lengths[b] + step;
      const DecodeSession& s = sessions_[b];
      const auto append = [t](std::vector<bf16>& to, const std::vector<bf16>& from,
                              std::int64_t width) {
        to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
      };
      append(queries, s.queries, c_.shape.heads * s.d_query());
      append(semantic, s.semantic, c_.shape.kv_heads * c_.shape.d_semantic());
      append(positional, s.positional, c_.shape.kv_heads * c_.shape.d_positional());
    }
    for (std::size_t b = 0; b < sessions_.size(); ++b) {
      for (std::int64_t kv = 0; kv < c_.shape.kv_heads; ++kv) {
        for (const double value : sessions_[b].summary_row(c_.lengths[b] + step, kv)) {
          summary.push_back(static_cast<float>(value));
        }
      }
    }
    summary_.upload(summary);
    if (c_.written) {
      staged_.upload(queries);
      queries_.upload(nan_bf16(static_cast<std::int64_t>(queries_.size())));
    } else {
      queries_.upload(queries);
    }
    semantic_.upload(semantic);
    positional_.upload(positional);
    out_.upload(nan_bf16(static_cast<std::int64_t>(out_.size())));
    lse_.upload(nan_float(static_cast<std::int64_t>(lse_.size())));
    // The stream does not wait for the copies by itself.
    cuda::check(cudaDeviceSynchronize(), "copying");
  }

  static constexpr std::size_t kGuard = 4096;

  const DecodeCase c_;
  Layout layout_;
  Random random_;
  float scale_ = 0;
  cuda::Stream stream_{gpu()};
  std::optional<DecodePool> pool_;
  std::vector<DecodeSession> sessions_;
  std::vector<DeviceSession> devices_;
  struct {
    std::vector<bf16> semantic, positional;
  } exact_rows_;
  DeviceArray<bf16> exact_semantic_, exact_positional_;
  DeviceArray<cuda::SessionView> views_;
  DeviceArray<std::uint64_t> steps_;
  DeviceArray<bf16> queries_, semantic_, positional_, out_;
  DeviceArray<float> summary_, lse_;
  DeviceArray<bf16> staged_, identity_;
  cuda::Product writing_;
  std::optional<TestProducts> products_;
  DeviceArray<std::uint8_t> workspace_;
  cuda::Decode step_;
  cuda::DecodePlan plan_;

 private:
  void session_build(DecodeSession& session, DeviceSession& device, std::int64_t length,
                     const std::vector<std::int32_t>& order, std::size_t& next) {
    const AttentionShape& s = c_.shape;
    const Settings& settings = c_.settings;
    const std::int64_t kv = s.kv_heads;
    device.ring = settings.method == MethodKind::dense
                      ? length + c_.steps
                      : settings.window + settings.group + static_cast<std::int64_t>(c_.seed % 3);
    // The pages that representatives will need; what lies behind them is no page.
    const std::int64_t pages =
        (layout_.groups(length + c_.steps) + cuda::kPageRows - 1) / cuda::kPageRows;
    for (std::int64_t i = 0; i < pages; ++i) device.page_list.push_back(order[next++]);
    std::vector<std::int32_t> pages_device = device.page_list;
    pages_device.resize(pages_device.size() + 4, -1);
    device.pages = DeviceArray<std::int32_t>(pages_device);

    for (std::int64_t j = 0; j < layout_.groups(length); ++j) {
      for (std::int64_t k = 0; k < kv; ++k) {
        session.groups.push_back(session.condense(j, k));
        const auto page = static_cast<std::size_t>(j / cuda::kPageRows);
        pool_->store(device.page_list[page] * std::int64_t{cuda::kPageRows} + j % cuda::kPageRows,
                     k, session.groups.back());
      }
    }
    auto semantic = nan_bf16((settings.sink + device.ring) * kv * s.d_semantic());
    auto positional = nan_bf16((settings.sink + device.ring) * kv * s.d_positional());
    const auto copy = [&](const Range& range) {
      for (std::int64_t p = range.begin; p < range.end; ++p) {
        const std::int64_t row = ring_row(p, device.ring);
        std::copy_n(session.semantic.begin() + p * kv * s.d_semantic(), kv * s.d_semantic(),
                    semantic.begin() + row * kv * s.d_semantic());
        std::copy_n(session.positional.begin() + p * kv * s.d_positional(), kv * s.d_positional(),
                    positional.begin() + row * kv * s.d_positional());
      }
    };
    if (length > 0) {
      const Visible seen = layout_.visible(length - 1);
      copy(seen.sink);
      copy(seen.window);
    }
    device.first_row =
        static_cast<std::int64_t>(exact_rows_.semantic.size()) / (kv * s.d_semantic());
    exact_rows_.semantic.insert(exact_rows_.semantic.end(), semantic.begin(), semantic.end());
    exact_rows_.positional.insert(exact_rows_.positional.end(), positional.begin(),
                                  positional.end());

    const std::int64_t n_q = settings.summary_queries;
    const std::int64_t width = cuda::summary_width(s, settings.head_reduce);
    std::vector<float> summary = nan_float(n_q * kv * width);
    for (std::int64_t t = std::max<std::int64_t>(0, length - n_q); t < length; ++t) {
      for (std::int64_t k = 0; k < kv; ++k) {
        const std::vector<double> row = session.summary_row(t, k);
        for (std::int64_t d = 0; d < width; ++d) {
          summary[static_cast<std::size_t>((t % n_q * kv + k) * width + d)] =
              static_cast<float>(row[static_cast<std::size_t>(d)]);
        }
      }
    }
    device.summary = DeviceArray<float>(summary);
  }

  /// A product with the identity, which writes the step's queries as the kernel right before it.
  void written_prepare() {
    const std::int64_t width = sessions_[0].d_query();
    staged_ = DeviceArray<bf16>(nan_bf16(static_cast<std::int64_t>(queries_.size())));
    std::vector<bf16> identity(static_cast<std::size_t>(width * width), bf16_of(0));
    for (std::int64_t i = 0; i < width; ++i) {
      identity[static_cast<std::size_t>(i * (width + 1))] = bf16_of(1);
    }
    identity_ = DeviceArray<bf16>(identity);
    writing_.a = staged_.data();
    writing_.b = identity_.data();
    writing_.c = queries_.data();
    writing_.rows = static_cast<std::int64_t>(queries_.size()) / width;
    writing_.columns = writing_.inner = width;
    writing_.a_stride = writing_.b_stride = writing_.c_stride = width;
    products_.emplace();
  }
};

}  // namespace lca::test
