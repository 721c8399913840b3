#pragma once
/// Decode steps on the GPU against double-precision loops: caches built by hand, several steps that
/// cross group exits, everything that was not written filled with NaN.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>

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

/// A batch of sessions on the GPU and in double precision, side by side.
class DecodeRun {
 public:
  explicit DecodeRun(const DecodeCase& c) : c_(c), layout_(c.settings), random_(c.seed) {
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

  /// All steps; false at the first that is wrong. `outs` gathers the outputs.
  bool go(std::vector<double>* outs = nullptr) {
    cudaGraphExec_t graph = nullptr;
    if (c_.graph) {
      cudaGraph_t captured = nullptr;
      cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
      if (c_.written) products_->space().multiply(writing_, stream_);
      cuda::decode(step_, plan_, workspace_.data(), c_.kernels, stream_.queue());
      cuda::check(cudaStreamEndCapture(stream_, &captured), "capture");
      cuda::check(cudaGraphInstantiate(&graph, captured, 0), "a graph");
      cudaGraphDestroy(captured);
    }
    bool right = true;
    for (std::int64_t i = 0; i < c_.steps && right; ++i) {
      inputs_upload(i);
      if (graph != nullptr) {
        cuda::check(cudaGraphLaunch(graph, stream_), "a graph");
      } else {
        cuda::decode(step_, plan_, workspace_.data(), c_.kernels, stream_.queue());
      }
      stream_.wait();
      right = step_check(i, outs);
    }
    if (graph != nullptr) cudaGraphExecDestroy(graph);
    return right && rings_check();
  }

 private:
  static constexpr std::size_t kGuard = 4096;

  std::string where(std::int64_t step, std::size_t session) const {
    std::ostringstream text;
    text << c_.name << ", seed " << c_.seed << ", "
         << (c_.kernels == Kernels::fast ? "fast" : "portable") << ", chunk " << plan_.chunk
         << ", blocks " << plan_.blocks << ", cluster " << plan_.cluster << ", step " << step
         << ", session " << session << ", n " << c_.lengths[session] + step + 1 << ", groups "
         << layout_.groups(c_.lengths[session] + step + 1) << ": ";
    return text.str();
  }

  std::int64_t page_row(std::size_t session, std::int64_t j) const {
    const auto page = static_cast<std::size_t>(j / cuda::kPageRows);
    return devices_[session].page_list[page] * std::int64_t{cuda::kPageRows} + j % cuda::kPageRows;
  }

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

  std::int64_t ring_row(std::int64_t p, std::int64_t ring) const {
    const std::int64_t sink = c_.settings.sink;
    return p < sink ? p : sink + (p - sink) % ring;
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

  bool group_check(std::int64_t step, std::size_t b, std::int64_t j, std::int64_t kv) {
    const DecodedGroup expected = sessions_[b].condense(j, kv);
    double unit = 0;
    DecodedGroup got = pool_->load(page_row(b, j), kv, unit);
    const bool coarse = c_.type == GroupType::fp8;
    const auto part = [&](const char* name, const std::vector<double>& g,
                          const std::vector<double>& e, Pool how) {
      if (expected.tie && how == Pool::select) return true;
      for (std::size_t d = 0; d < e.size(); ++d) {
        // bf16 rounds to 8 bits, e4m3 to 4 (and to steps of 2⁻⁹ units), int8 to half a unit.
        const double allowed =
            std::abs(e[d]) * (coarse ? 0.07 : 6e-3) + 2e-4 + unit * (coarse ? 4e-3 : 0.51);
        if (!(std::abs(g[d] - e[d]) <= allowed)) {
          ADD_FAILURE() << where(step, b) << name << " of representative " << j << ", KV head "
                        << kv << ", column " << d << " is " << g[d] << ", not " << e[d];
          return false;
        }
      }
      return true;
    };
    bool right =
        part("semantic", got.semantic, expected.semantic, c_.settings.semantic_pool) &&
        part("positional", got.positional, expected.positional, c_.settings.positional_pool);
    if (c_.settings.mass == Mass::score) {
      const bool skip = expected.tie && (c_.settings.semantic_pool == Pool::select ||
                                         c_.settings.positional_pool == Pool::select);
      if (!skip &&
          !(std::abs(got.bias - expected.bias) <= 2e-3 * std::max(1.0, std::abs(expected.bias)))) {
        ADD_FAILURE() << where(step, b) << "bias of representative " << j << ", KV head " << kv
                      << " is " << got.bias << ", not " << expected.bias;
        right = false;
      }
    } else {
      got.bias = expected.bias;
    }
    sessions_[b].groups.push_back(got);  // readers use what is stored
    return right;
  }

  bool step_check(std::int64_t step, std::vector<double>* outs) {
    const std::vector<bf16> out = out_.download();
    const std::vector<float> lse = lse_.download();
    const std::vector<cuda::SessionView> views = views_.download();
    bool downloaded = false;
    bool right = true;
    for (std::size_t b = 0; b < sessions_.size(); ++b) {
      const std::int64_t n = c_.lengths[b] + step + 1;
      if (views[b].length != n) {
        ADD_FAILURE() << where(step, b) << "length is " << views[b].length << ", not " << n;
        right = false;
      }
      if (layout_.groups(n) > layout_.groups(n - 1)) {
        if (!downloaded) pool_->download();
        downloaded = true;
        for (std::int64_t kv = 0; kv < c_.shape.kv_heads; ++kv) {
          right = group_check(step, b, layout_.groups(n) - 1, kv) && right;
        }
      }
      std::vector<double> expected, expected_lse;
      sessions_[b].attend(n - 1, expected, expected_lse);
      RelativeError error;
      std::size_t wrong = expected.size();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double got = double_of(out[b * expected.size() + i]);
        if (outs != nullptr) outs->push_back(got);
        error.add(got, expected[i]);
        if (wrong == expected.size() &&
            !(std::abs(got - expected[i]) <= 0.03 * std::max(0.3, std::abs(expected[i])))) {
          wrong = i;
        }
      }
      if (!(error.value() <= c_.out_tolerance)) {
        ADD_FAILURE() << where(step, b) << "out is off by " << error.value()
                      << "; first wrong: head "
                      << wrong / static_cast<std::size_t>(c_.shape.d_semantic()) << ", column "
                      << wrong % static_cast<std::size_t>(c_.shape.d_semantic())
                      << (wrong < expected.size()
                              ? ", " + std::to_string(double_of(out[b * expected.size() + wrong])) +
                                    " instead of " + std::to_string(expected[wrong])
                              : std::string());
        right = false;
      }
      // Members rotated to entry positions are no longer bf16, so that what is pooled of them is
      // rounded once more: the maximum too, which is exact with token positions.
      const bool pooled_rotated =
          !c_.rotation.frequencies.empty() && c_.settings.positional_pool != Pool::select;
      const double lse_tolerance = pooled_rotated ? 1.2e-2 : 2e-3;
      for (std::size_t h = 0; h < expected_lse.size(); ++h) {
        const double got = double_of(lse[b * expected_lse.size() + h]);
        if (!(std::abs(got - expected_lse[h]) <= lse_tolerance)) {
          ADD_FAILURE() << where(step, b) << "lse of head " << h << " is " << got << ", not "
                        << expected_lse[h];
          right = false;
          break;
        }
      }
    }
    return right;
  }

  /// What the steps left behind: window, summaries, and the memory after the workspace.
  bool rings_check() {
    const AttentionShape& s = c_.shape;
    const std::int64_t kv = s.kv_heads;
    const std::vector<bf16> semantic = exact_semantic_.download();
    const std::vector<bf16> positional = exact_positional_.download();
    for (std::size_t b = 0; b < sessions_.size(); ++b) {
      const std::int64_t n = c_.lengths[b] + c_.steps;
      const std::vector<float> summary = devices_[b].summary.download();
      const auto same = [&](const std::vector<bf16>& got, const std::vector<bf16>& given,
                            std::int64_t p, std::int64_t width) {
        const std::int64_t row = devices_[b].first_row + ring_row(p, devices_[b].ring);
        return std::memcmp(got.data() + row * width, given.data() + p * width,
                           static_cast<std::size_t>(width) * 2) == 0;
      };
      for (std::int64_t p = c_.lengths[b]; p < n; ++p) {
        if (!layout_.visible(n - 1).sink.contains(p) &&
            !layout_.visible(n - 1).window.contains(p)) {
          continue;
        }
        if (!same(semantic, sessions_[b].semantic, p, kv * s.d_semantic()) ||
            !same(positional, sessions_[b].positional, p, kv * s.d_positional())) {
          ADD_FAILURE() << where(c_.steps - 1, b) << "the ring has not token " << p;
          return false;
        }
      }
      if (c_.settings.method != MethodKind::lca) continue;
      const std::int64_t n_q = c_.settings.summary_queries;
      const std::int64_t width = cuda::summary_width(s, c_.settings.head_reduce);
      for (std::int64_t t = std::max<std::int64_t>(0, n - n_q); t < n; ++t) {
        for (std::int64_t k = 0; k < kv; ++k) {
          const std::vector<double> row = sessions_[b].summary_row(t, k);
          for (std::int64_t d = 0; d < width; ++d) {
            const double got =
                double_of(summary[static_cast<std::size_t>((t % n_q * kv + k) * width + d)]);
            if (!(std::abs(got - row[static_cast<std::size_t>(d)]) <= 1e-4)) {
              ADD_FAILURE() << where(c_.steps - 1, b) << "the summary of query " << t
                            << ", KV head " << k << ", column " << d << " is " << got << ", not "
                            << row[static_cast<std::size_t>(d)];
              return false;
            }
          }
        }
      }
    }
    const std::vector<std::uint8_t> workspace = workspace_.download();
    for (std::size_t i = plan_.workspace_bytes; i < workspace.size(); ++i) {
      if (workspace[i] != 0xff) {
        ADD_FAILURE() << c_.name << ": byte " << i - plan_.workspace_bytes
                      << " after the workspace was written";
        return false;
      }
    }
    return true;
  }

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
};

}  // namespace lca::test
