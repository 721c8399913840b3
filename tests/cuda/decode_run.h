#pragma once
/// Decode steps on the GPU against double-precision loops: several steps that cross group exits,
/// and what they leave behind.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>

#include "cuda/decode_state.h"

namespace lca::test {

/// The steps of a case, checked one by one.
class DecodeRun : private DecodeState {
 public:
  explicit DecodeRun(const DecodeCase& c) : DecodeState(c) {}

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
  std::string where(std::int64_t step, std::size_t session) const {
    std::ostringstream text;
    text << c_.name << ", seed " << c_.seed << ", "
         << (c_.kernels == Kernels::fast ? "fast" : "portable") << ", chunk " << plan_.chunk
         << ", blocks " << plan_.blocks << ", cluster " << plan_.cluster << ", step " << step
         << ", session " << session << ", n " << c_.lengths[session] + step + 1 << ", groups "
         << layout_.groups(c_.lengths[session] + step + 1) << ": ";
    return text.str();
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
      // Queries are rounded once more too, as representatives see them.
      const bool rotated = !c_.rotation.frequencies.empty();
      const double lse_tolerance = !rotated                                      ? 2e-3
                                   : c_.settings.positional_pool == Pool::select ? 3e-3
                                                                                 : 1.2e-2;
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
};

}  // namespace lca::test
