#pragma once
/// Words of the evaluation's keys. None is among those that training data is made with
/// (python/lca/data/words.py; a test compares them).

#include <span>
#include <string>
#include <string_view>

#include "eval/draw.h"

namespace lca::eval {

std::span<const std::string_view> key_adjectives();
std::span<const std::string_view> key_nouns();

/// An adjective and a noun with a hyphen between them.
std::string key_draw(Draw& draw);

}  // namespace lca::eval
