#pragma once
/// The parts of `tokenizer.json` that become steps.

#include "formats/tokenizer/json_tree.h"
#include "formats/tokenizer/state.h"

#include <string_view>

namespace lca {

/// Each reads one part (null: it is not there) into `state`; throws Error naming a kind it does not
/// know.
void normalizer_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state);
void pre_tokenizer_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state);
void decoder_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state);
/// Sets prefix and suffix.
void post_processor_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state);

}  // namespace lca
