#pragma once
/// The measurements of `lca bench model`.

#include <lca/model.h>
#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/backend.h"

namespace lca::cli {

/// What to measure; lists are sorted and without duplicates.
struct ModelWanted {
  std::vector<std::int64_t> prompts, depths, batches;
  std::int64_t generate = 0;
  std::int64_t repeat = 0;
  bool fill_random = false;  ///< contexts to decode after are made up, not read
};

/// Seconds of several runs of the same thing.
struct ModelTimes {
  double best = 0;
  double sum = 0;
  std::int64_t count = 0;

  void add(double seconds);
  double rate(std::int64_t tokens) const { return static_cast<double>(tokens) / best; }
  double rate_mean(std::int64_t tokens) const { return static_cast<double>(tokens * count) / sum; }
};

struct ModelRow {
  std::int64_t length = 0;  ///< of the prompt, or of the context before the first decoded token
  std::int64_t batch = 1;
  std::int64_t tokens = 0;  ///< of one run
  ModelTimes times{};
  std::size_t cache = 0;            ///< of all sessions
  std::int64_t peak = 0;            ///< resident memory of the program
  std::size_t device_peak = 0;      ///< GPU memory of the program
  StepProfile profile{};            ///< of a run of its own
  std::int64_t profiled_steps = 0;  ///< that it counts
};

struct ModelReport {
  std::vector<ModelRow> prefill, decode;
};

/// Runs all measurements on a model.
class ModelBench {
 public:
  ModelBench(std::shared_ptr<const Model> model, SessionOptions options, ModelWanted wanted,
             int threads);

  /// Throws Error (bad input) if the largest measurement would not fit into memory.
  void require_memory();
  /// Positions of the longest session.
  std::int64_t longest() const;
  ModelReport measure();

 private:
  std::int64_t decoded_end(std::int64_t depth) const;
  Session session_make(std::int64_t length, ModelTimes* times = nullptr);
  void row_begin();
  void row_end(ModelRow& row);
  Session prefill_measure(std::int64_t length);
  void sessions_complete(std::vector<Session>& sessions, std::int64_t depth, std::int64_t batch);
  void decode_measure(std::vector<Session>& sessions, std::int64_t depth, std::int64_t batch);

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  ModelWanted wanted_;
  Context context_;
  ModelReport report_;
  bool on_gpu_ = false;
};

}  // namespace lca::cli
