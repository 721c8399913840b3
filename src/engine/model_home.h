#pragma once
/// Where the model that has a name of its own lives.

#include <filesystem>
#include <string_view>

namespace lca {

/// The folder `make model` fills: $LCA_HOME, else $XDG_CACHE_HOME/lca, else ~/.cache/lca. Throws
/// Error where none of the three is set.
std::filesystem::path model_home();

/// What `--model` names: "smollm2" is the file of that model in `model_home`, everything else is a
/// path. Throws Error that says what to do where it is not there.
std::filesystem::path model_resolve(std::string_view name);

}  // namespace lca
