// tokenizer_from_json: reads tokenizer.json and tokenizer_config.json.

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/json_steps.h"
#include "formats/tokenizer/json_tree.h"
#include "formats/tokenizer/state.h"
#include "formats/tokenizer/utf8.h"

#include <array>
#include <limits>
#include <set>

namespace lca {
namespace {

/// Reads the whole file as a tree, but for the two large parts of the model, which it streams.
class FileReader : public JsonTreeReader {
 public:
  FileReader(std::string_view where, Vocabulary& vocabulary)
      : JsonTreeReader(where), vocabulary_(vocabulary) {}

  bool has_vocabulary = false;
  bool has_merges = false;

  std::size_t merge_count() const { return ends_.size() / 2; }
  std::array<std::string_view, 2> merge(std::size_t i) const {
    const std::string_view text = text_;
    const std::size_t begin = i == 0 ? 0 : ends_[2 * i - 1];
    const std::size_t middle = ends_[2 * i];
    return {text.substr(begin, middle - begin), text.substr(middle, ends_[2 * i + 1] - middle)};
  }

  void object_begin() override {
    if (part_ != Part::tree) bad_part("an object");
    if (is_model_member("vocab")) {
      part_ = Part::vocabulary;
      has_vocabulary = true;
    } else {
      JsonTreeReader::object_begin();
    }
  }

  void object_end() override {
    if (part_ == Part::vocabulary) {
      part_ = Part::tree;
    } else {
      JsonTreeReader::object_end();
    }
  }

  void list_begin() override {
    if (part_ == Part::merges) {
      part_ = Part::pair;
      pair_size_ = 0;
    } else if (part_ != Part::tree) {
      bad_part("a list");
    } else if (is_model_member("merges")) {
      part_ = Part::merges;
      has_merges = true;
    } else {
      JsonTreeReader::list_begin();
    }
  }

  void list_end() override {
    if (part_ == Part::pair) {
      if (pair_size_ != 2) bad_merge();
      part_ = Part::merges;
    } else if (part_ == Part::merges) {
      part_ = Part::tree;
    } else {
      JsonTreeReader::list_end();
    }
  }

  void key(std::string& name) override {
    if (part_ == Part::vocabulary) {
      token_ = std::move(name);
      return;
    }
    if (depth() == 1) top_ = name;
    if (depth() == 2) member_ = name;
    JsonTreeReader::key(name);
  }

  void scalar(JsonScalar& value) override {
    switch (part_) {
      case Part::tree:
        if (is_model_member("type") && value.text != "BPE") {
          fail_input("{}: model {} is not supported; \"BPE\" is", where(), value.describe());
        }
        return JsonTreeReader::scalar(value);
      case Part::vocabulary:
        if (value.kind != JsonScalar::Kind::integer) {
          fail_input("{}: the id of token \"{}\" must be a whole number, not {}", where(),
                     text_printable(token_), value.describe());
        }
        return vocabulary_.add(token_, value.integer);
      case Part::merges:
        return merge_line(value);
      case Part::pair:
        if (value.kind != JsonScalar::Kind::text || ++pair_size_ > 2) bad_merge();
        return merge_part(value.text);
    }
  }

 private:
  enum class Part { tree, vocabulary, merges, pair };

  bool is_model_member(std::string_view name) const {
    return depth() == 2 && top_ == "model" && member_ == name;
  }

  [[noreturn]] void bad_part(std::string_view what) const {
    fail_input("{}: model.{} has {} inside", where(),
               part_ == Part::vocabulary ? "vocab" : "merges", what);
  }
  [[noreturn]] void bad_merge() const {
    fail_input("{}: merge {} must be two tokens, as \"a b\" or [\"a\", \"b\"]", where(),
               merge_count());
  }

  void merge_line(const JsonScalar& value) {
    if (value.kind != JsonScalar::Kind::text) bad_merge();
    const std::string_view line = value.text;
    if (line.starts_with("#version")) return;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      bad_merge();
    }
    merge_part(line.substr(0, space));
    merge_part(line.substr(space + 1));
  }

  void merge_part(std::string_view part) {
    text_ += part;
    ends_.push_back(text_.size());
  }

  Vocabulary& vocabulary_;
  Part part_ = Part::tree;
  std::string top_, member_;  // the latest names at depths 1 and 2
  std::string token_;
  int pair_size_ = 0;
  std::string text_;               // both parts of all merges, one after the other
  std::vector<std::size_t> ends_;  // of each part
};

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

/// Without merges a vocabulary with whole words would never give one.
void merges_require(const FileReader& file, const Tokenizer::State& state) {
  if (file.merge_count() > 0 || state.model.ignore_merges) return;
  std::set<std::string_view> known;
  for (const AddedToken& token : state.added) known.insert(token.text);
  for (std::int32_t id = 0; id < state.vocabulary.size(); ++id) {
    const std::string_view token = state.vocabulary.token(id);
    if (token.empty() || utf8_length(token[0]) >= token.size()) continue;
    if (is_byte_token(token) || known.contains(token)) continue;
    fail_input(
        "{}: model.merges is {}, but the vocabulary has tokens such as \"{}\"; save the tokenizer "
        "again with its merges",
        state.where, file.has_merges ? "empty" : "missing", text_printable(token));
  }
}

void model_read(const JsonTree* tree, const FileReader& file, Tokenizer::State& state) {
  const std::string_view where = state.where;
  if (tree == nullptr) fail_input("{}: \"model\" is missing", where);
  const JsonObject object(*tree, where, "model");
  if (!file.has_vocabulary) fail_input("{}: model.vocab must be an object", where);
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!object.text(name, "").empty()) object.fail(name, "empty: others are not supported");
  }
  if (const JsonTree* dropout = object.find("dropout");
      dropout != nullptr &&
      (dropout->kind != JsonTree::Kind::scalar || dropout->scalar.number != 0)) {
    object.fail("dropout", "null: others are not supported");
  }
  BpeModel& model = state.model;
  model.where = where;
  model.ignore_merges = object.boolean("ignore_merges", false);
  model.fuse_unknown = object.boolean("fuse_unk", false);
  if (object.boolean("byte_fallback", false)) model.byte_fallback_set();
  if (object.find("unk_token") != nullptr) {
    model.has_unknown = true;
    model.unknown = state.vocabulary.find(object.text("unk_token"));
  }
  merges_require(file, state);
  model.merges_reserve(file.merge_count());
  for (std::size_t i = 0; i < file.merge_count(); ++i) {
    const auto [left, right] = file.merge(i);
    model.merge_add(left, right, where);
  }
}

void added_tokens_read(const JsonTree& root, Tokenizer::State& state) {
  const JsonObject file(root, state.where, "");
  for (const JsonTree& entry : file.list("added_tokens")) {
    const JsonObject object(entry, state.where, "added_tokens");
    AddedToken token;
    token.text = object.text("content");
    if (token.text.empty()) continue;
    const std::int64_t id = object.integer("id");
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) object.fail("id", "a token id");
    token.id = static_cast<std::int32_t>(id);
    // The model's own id takes precedence: the embedding was trained with it.
    if (const std::int32_t known = state.vocabulary.find(token.text); known >= 0) token.id = known;
    token.is_special = object.boolean("special", false);
    token.is_single_word = object.boolean("single_word", false);
    token.strips_left = object.boolean("lstrip", false);
    token.strips_right = object.boolean("rstrip", false);
    token.is_normalised = object.boolean("normalized", !token.is_special);
    state.added.push_back(std::move(token));
  }
}

/// The token a member of tokenizer_config.json names, as a text or an object with its content.
std::optional<std::int32_t> config_token(const JsonObject& config, std::string_view name,
                                         const Tokenizer::State& state) {
  const JsonTree* entry = config.find(name);
  if (entry == nullptr) return std::nullopt;
  const std::string text =
      entry->is_object() ? JsonObject(*entry, config.where(), std::string(name)).text("content")
                         : config.text(name);
  for (const AddedToken& token : state.added) {
    if (token.text == text) return token.id;
  }
  if (const std::int32_t id = state.vocabulary.find(text); id >= 0) return id;
  fail_input("{}: \"{}\" names the token \"{}\", which {} lacks", config.where(), name,
             text_printable(text), state.where);
}

void config_apply(const JsonObject& config, std::string_view flag, std::string_view name,
                  std::optional<std::int32_t> token, std::vector<std::int32_t>& ids) {
  if (config.find(flag) == nullptr) return;
  ids.clear();
  if (!config.boolean(flag, false)) return;
  if (!token) {
    fail_input("{}: \"{}\" is true, but there is no \"{}\"", config.where(), flag, name);
  }
  ids.push_back(*token);
}

void config_read(std::string_view text, std::string_view where, Tokenizer::State& state) {
  JsonTreeReader reader(where);
  json_read(text, where, reader);
  const JsonObject config(reader.root, where, "");
  state.begin = config_token(config, "bos_token", state);
  state.end = config_token(config, "eos_token", state);
  config_apply(config, "add_bos_token", "bos_token", state.begin, state.prefix);
  config_apply(config, "add_eos_token", "eos_token", state.end, state.suffix);
}

}  // namespace

Tokenizer tokenizer_from_json(std::string_view text, std::string_view where,
                              std::string_view config, std::string_view config_where) {
  auto state = std::make_shared<Tokenizer::State>();
  state->where = where;
  FileReader file(state->where, state->vocabulary);
  json_read(text, state->where, file);
  state->vocabulary.index(state->where);
  const JsonTree& root = file.root;
  added_tokens_read(root, *state);
  model_read(root.find("model"), file, *state);
  normalizer_read(root.find("normalizer"), state->where, *state);
  pre_tokenizer_read(root.find("pre_tokenizer"), state->where, *state);
  decoder_read(root.find("decoder"), state->where, *state);
  post_processor_read(root.find("post_processor"), state->where, *state);
  if (!state->prefix.empty()) state->begin = state->prefix.front();
  if (!config.empty()) config_read(config, config_where, *state);
  state->finish();
  return Tokenizer(std::move(state));
}

}  // namespace lca
