#pragma once
/// What settings mean for the order of work.

#include <lca/settings.h>

namespace lca {

/// Whether groups are scored only when the prompt has ended (mechanism §3): such a layer cannot be
/// computed chunk by chunk, nor its cache be cut back.
inline bool summary_waits(const Settings& settings) {
  return settings.method == MethodKind::lca && settings.summary == Summary::prompt;
}

}  // namespace lca
