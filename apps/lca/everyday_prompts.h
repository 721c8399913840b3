#pragma once
/// The prompts of `lca eval everyday`, one a line: eval/prompts_everyday.txt, put in by the build.

#include <string_view>

namespace lca::cli {

std::string_view everyday_prompts();

}  // namespace lca::cli
