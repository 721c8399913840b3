#pragma once
/// Where the built-in model and its adapter are stored.

#include <filesystem>
#include <string_view>

namespace lca {

/// The folder that `make model` downloads to: $LCA_HOME, else $XDG_CACHE_HOME/lca, else
/// ~/.cache/lca. Throws Error if none of the three is set.
std::filesystem::path model_home();

/// The path of a model: "smollm2" is the file of that model in `model_home`, everything else is a
/// path. Throws Error that says what to do if it does not exist.
std::filesystem::path model_resolve(std::string_view name);

/// The folder of the adapter that belongs to a built-in name: `smollm2-lca` in $LCA_MODELS, else in
/// ../share/lca/models of the folder of the program, in a build as in an installation. Empty where
/// there is none, and for everything else.
std::filesystem::path model_adapter(std::string_view name);

}  // namespace lca
