#pragma once
/// Finds the tool calls in a job's events.

#include "server/tools/tool_reader.h"
#include "server/types.h"

#include <string>
#include <vector>

namespace lca::server {

/// Stands between the host, which knows text alone, and whoever writes the reply: pieces become
/// pieces and calls. One thread at a time.
class ToolEvents {
 public:
  /// Of `job`, `tools`, `n` and `parallel_calls` are used. Ids of calls are `id_prefix`, the choice
  /// and the number of the call, so that equal requests may have equal replies.
  ToolEvents(ToolFormat format, const Job& job, const std::string& id_prefix);

  /// What follows from the job's next event, maybe nothing.
  std::vector<JobEvent> take(JobEvent event);
  /// Whether nothing more of this choice will be shown: one call was wanted, and has been made.
  bool is_over(int choice) const;

 private:
  std::vector<ToolReader> readers_;
  bool is_single_;
};

}  // namespace lca::server
