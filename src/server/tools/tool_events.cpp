#include "server/tools/tool_events.h"

#include <utility>

namespace lca::server {

ToolEvents::ToolEvents(ToolFormat format, const Job& job, const std::string& id_prefix)
    : is_single_(!job.parallel_calls) {
  std::vector<std::string> names;
  for (const ToolSpec& tool : job.tools) names.push_back(tool.name);
  for (int choice = 0; choice < job.n; ++choice) {
    readers_.emplace_back(format, names, id_prefix + std::to_string(choice) + "_");
  }
}

bool ToolEvents::is_over(int choice) const {
  return is_single_ && readers_.at(static_cast<std::size_t>(choice)).calls() > 0;
}

std::vector<JobEvent> ToolEvents::take(JobEvent event) {
  std::vector<JobEvent> out;
  const bool is_piece = event.kind == JobEvent::Kind::piece;
  const bool is_done = event.kind == JobEvent::Kind::done;
  if (is_piece || is_done) {
    const bool was_over = is_over(event.choice);
    ToolReader& reader = readers_.at(static_cast<std::size_t>(event.choice));
    for (ReplyPart& part : is_done ? reader.finish() : reader.push(event.text)) {
      if (is_single_ && (was_over || (!out.empty() && out.back().kind == JobEvent::Kind::call))) {
        break;
      }
      JobEvent& made = out.emplace_back();
      made.kind = part.call ? JobEvent::Kind::call : JobEvent::Kind::piece;
      made.choice = event.choice;
      made.text = std::move(part.text);
      if (part.call) made.call = *std::move(part.call);
    }
  }
  if (is_piece && !event.tokens.empty()) {
    // Tokens are shown as they come, even where their text is withheld.
    if (out.empty() || out.front().kind != JobEvent::Kind::piece) {
      JobEvent& made = *out.emplace(out.begin());
      made.kind = JobEvent::Kind::piece;
      made.choice = event.choice;
    }
    out.front().tokens = std::move(event.tokens);
  }
  if (!is_piece) out.push_back(std::move(event));
  return out;
}

}  // namespace lca::server
