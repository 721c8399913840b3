#pragma once
/// How RULER scores a reply.

#include "eval/ruler/tasks.h"

#include <span>
#include <string>
#include <string_view>

namespace lca::eval {

/// 0 … 1: the share of `references` that `reply` contains, or (`part`) whether it contains any.
/// Capitals count as small letters; a control character counts as the end of a line.
double ruler_score(std::string_view reply, std::span<const std::string> references,
                   RulerScore score);

}  // namespace lca::eval
