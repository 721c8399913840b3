#include "formats/tokenizer/json_steps.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/utf8.h"

#include <functional>
#include <map>

namespace lca {
namespace {

constexpr std::size_t kMostParts = 64;
constexpr std::size_t kLongestReplacement = 1024;  // of a replacement

/// Text that a step puts into other text; a long one would let texts explode.
std::string short_text(const JsonObject& object, std::string_view name) {
  std::string text = object.text(name);
  if (text.size() > kLongestReplacement) {
    object.fail(name, fmt::format("at most {} bytes", kLongestReplacement));
  }
  return text;
}

std::string one_character(const JsonObject& object, std::string_view name) {
  std::string text = object.text(name);
  if (text.empty() || utf8_length(text[0]) != text.size()) object.fail(name, "one character");
  return text;
}

/// `{"Regex": "…"}` or `{"String": "…"}`.
Regex pattern_read(const JsonObject& object) {
  const JsonTree* pattern = object.find("pattern");
  if (pattern == nullptr || !pattern->is_object()) object.fail("pattern", "an object");
  const JsonObject inner(*pattern, object.where(), object.path() + ".pattern");
  const std::string where = fmt::format("{}: {}", object.where(), object.path());
  if (inner.find("Regex") != nullptr) return {inner.text("Regex"), where};
  return Regex::literal(inner.text("String"), where);
}

ReplaceStep replace_read(const JsonObject& object) {
  ReplaceStep step{pattern_read(object), short_text(object, "content")};
  const JsonTree& pattern = *object.find("pattern");
  const JsonObject inner(pattern, object.where(), object.path() + ".pattern");
  if (inner.find("Regex") == nullptr) step.literal = inner.text("String").size();
  return step;
}

/// Calls `read` for the part, or one by one for the parts of a Sequence, however nested.
void each_part(const JsonTree& tree, std::string_view where, const std::string& path,
               std::string_view list_name, std::size_t& count,
               const std::function<void(const JsonObject&, const std::string&)>& read) {
  if (++count > kMostParts) fail_input("{}: {} has more than {} parts", where, path, kMostParts);
  const JsonObject object(tree, where, path);
  const std::string type = object.text("type");
  if (type != "Sequence") return read(object, type);
  for (const JsonTree& part : object.list(list_name)) {
    each_part(part, where, path, list_name, count, read);
  }
}

[[noreturn]] void refuse(const JsonObject& object, std::string_view what, std::string_view type,
                         std::string_view known) {
  fail_input("{}: {} \"{}\" is not supported; {} are", object.where(), what, text_printable(type),
             known);
}

SplitBehaviour behaviour_read(const JsonObject& object) {
  static const std::map<std::string, SplitBehaviour, std::less<>> known = {
      {"Isolated", SplitBehaviour::isolated},
      {"Removed", SplitBehaviour::removed},
      {"MergedWithPrevious", SplitBehaviour::merged_with_previous},
      {"MergedWithNext", SplitBehaviour::merged_with_next},
      {"Contiguous", SplitBehaviour::contiguous}};
  const auto found = known.find(object.text("behavior"));
  if (found == known.end()) {
    object.fail("behavior", "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  }
  return found->second;
}

MetaspaceStep::Prepend prepend_read(const JsonObject& object) {
  if (!object.boolean("add_prefix_space", true)) return MetaspaceStep::Prepend::never;
  const std::string scheme = object.text("prepend_scheme", "always");
  if (scheme == "always") return MetaspaceStep::Prepend::always;
  if (scheme == "first") return MetaspaceStep::Prepend::first;
  if (scheme != "never") object.fail("prepend_scheme", "always, first or never");
  return MetaspaceStep::Prepend::never;
}

std::size_t count_read(const JsonObject& object, std::string_view name) {
  const std::int64_t count = object.integer(name);
  if (count < 0 || count > 1024) object.fail(name, "a number from 0 to 1024");
  return static_cast<std::size_t>(count);
}

/// Reads a decoder; `is_fused`: all tokens are one text by now.
void decode_step_read(const JsonObject& object, const std::string& type, TokenDecoder& decoder,
                      bool& is_fused) {
  if (type == "Fuse") {
    is_fused = true;
    return;
  }
  if (is_fused) {
    // On the whole text only what a stream of tokens can do as well.
    const bool is_front_strip = type == "Strip" && count_read(object, "stop") == 0;
    if (!is_front_strip || decoder.strip_count != 0) {
      fail_input("{}: decoder \"{}\" is not supported behind one that fuses the tokens",
                 object.where(), text_printable(type));
    }
    decoder.strip_character = one_character(object, "content");
    decoder.strip_count = count_read(object, "start");
  } else if (type == "ByteLevel") {
    decoder.steps.emplace_back(ByteLevelDecode{});
    is_fused = true;
  } else if (type == "Replace") {
    decoder.steps.emplace_back(replace_read(object));
  } else if (type == "ByteFallback") {
    decoder.steps.emplace_back(ByteFallbackDecode{});
  } else if (type == "Strip") {
    decoder.steps.emplace_back(StripDecode{
        one_character(object, "content"), count_read(object, "start"), count_read(object, "stop")});
  } else if (type == "Metaspace") {
    decoder.steps.emplace_back(
        MetaspaceDecode{one_character(object, "replacement"),
                        prepend_read(object) != MetaspaceStep::Prepend::never});
  } else {
    refuse(object, "decoder", type,
           "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence");
  }
}

/// The ids a template puts around the text.
void template_read(const JsonObject& object, Tokenizer::State& state) {
  std::vector<std::int32_t> before, behind;
  bool is_behind = false;
  const JsonTree* tokens = object.find("special_tokens");
  for (const JsonTree& part : object.list("single")) {
    const JsonObject piece(part, object.where(), object.path() + ".single");
    if (piece.find("Sequence") != nullptr) {
      if (is_behind) object.fail("single", "a template with one text");
      is_behind = true;
      continue;
    }
    const JsonTree* special = piece.find("SpecialToken");
    if (special == nullptr) object.fail("single", "a list of SpecialToken and Sequence");
    const std::string name =
        JsonObject(*special, object.where(), piece.path() + ".SpecialToken").text("id");
    const JsonTree* entry = tokens == nullptr ? nullptr : tokens->find(name);
    if (entry == nullptr) {
      fail_input("{}: {} uses the token \"{}\", which its special_tokens lack", object.where(),
                 object.path(), text_printable(name));
    }
    const JsonObject ids(*entry, object.where(), object.path() + ".special_tokens");
    for (const JsonTree& id : ids.list("ids")) {
      const bool is_id = id.kind == JsonTree::Kind::scalar &&
                         id.scalar.kind == JsonScalar::Kind::integer && id.scalar.integer >= 0 &&
                         id.scalar.integer <= std::numeric_limits<std::int32_t>::max();
      if (!is_id) ids.fail("ids", "a list of token ids");
      (is_behind ? behind : before).push_back(static_cast<std::int32_t>(id.scalar.integer));
    }
  }
  if (!is_behind) object.fail("single", "a template with a Sequence");
  state.prefix.insert(state.prefix.begin(), before.begin(), before.end());
  state.suffix.insert(state.suffix.end(), behind.begin(), behind.end());
}

}  // namespace

void normalizer_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state) {
  if (tree == nullptr) return;
  std::size_t count = 0;
  each_part(*tree, where, "normalizer", "normalizers", count,
            [&](const JsonObject& object, const std::string& type) {
              if (type == "NFC") {
                state.normalise.emplace_back(NormalForm::nfc);
              } else if (type == "NFD") {
                state.normalise.emplace_back(NormalForm::nfd);
              } else if (type == "NFKC") {
                state.normalise.emplace_back(NormalForm::nfkc);
              } else if (type == "NFKD") {
                state.normalise.emplace_back(NormalForm::nfkd);
              } else if (type == "Prepend") {
                state.normalise.emplace_back(PrependStep{short_text(object, "prepend")});
              } else if (type == "Replace") {
                state.normalise.emplace_back(replace_read(object));
              } else {
                refuse(object, "normalizer", type,
                       "NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence");
              }
            });
}

void pre_tokenizer_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state) {
  if (tree == nullptr) return;
  std::size_t count = 0;
  each_part(
      *tree, where, "pre_tokenizer", "pretokenizers", count,
      [&](const JsonObject& object, const std::string& type) {
        if (type == "Split") {
          state.pre_tokenize.emplace_back(SplitStep{pattern_read(object), behaviour_read(object),
                                                    object.boolean("invert", false)});
        } else if (type == "Digits") {
          state.pre_tokenize.emplace_back(DigitsStep{object.boolean("individual_digits", false)});
        } else if (type == "ByteLevel") {
          state.pre_tokenize.emplace_back(ByteLevelStep{object.boolean("add_prefix_space", true),
                                                        object.boolean("use_regex", true)});
        } else if (type == "Metaspace") {
          state.pre_tokenize.emplace_back(MetaspaceStep{one_character(object, "replacement"),
                                                        prepend_read(object),
                                                        object.boolean("split", true)});
        } else {
          refuse(object, "pre-tokenizer", type, "Split, Digits, ByteLevel, Metaspace and Sequence");
        }
      });
}

void decoder_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state) {
  if (tree == nullptr) {
    state.decoder.separator = " ";
    return;
  }
  std::size_t count = 0;
  bool is_fused = false;
  each_part(*tree, where, "decoder", "decoders", count,
            [&](const JsonObject& object, const std::string& type) {
              decode_step_read(object, type, state.decoder, is_fused);
            });
}

void post_processor_read(const JsonTree* tree, std::string_view where, Tokenizer::State& state) {
  if (tree == nullptr) return;
  std::size_t count = 0;
  each_part(*tree, where, "post_processor", "processors", count,
            [&](const JsonObject& object, const std::string& type) {
              if (type == "TemplateProcessing") {
                template_read(object, state);
              } else if (type != "ByteLevel") {  // which only moves offsets
                refuse(object, "post-processor", type,
                       "ByteLevel, TemplateProcessing and Sequence");
              }
            });
}

}  // namespace lca
