#include "formats/tokenizer/json_tree.h"

#include "core/error.h"
#include "core/text.h"

namespace lca {
namespace {

constexpr std::size_t kDeepest = 24;
constexpr std::size_t kMostValues = 500'000;

}  // namespace

const JsonTree* JsonTree::find(std::string_view name) const {
  // The last of equal names counts.
  for (std::size_t i = names.size(); i-- > 0;) {
    if (names[i] == name) return items[i].is_null() ? nullptr : &items[i];
  }
  return nullptr;
}

std::string JsonTree::describe() const {
  if (kind == Kind::object) return "an object";
  return kind == Kind::list ? "a list" : scalar.describe();
}

JsonTree& JsonTreeReader::place() {
  if (++count_ > kMostValues) fail_input("{}: more than {} values", where_, kMostValues);
  if (stack_.empty()) return root;
  JsonTree& parent = *stack_.back();
  if (parent.kind == JsonTree::Kind::object) parent.names.push_back(std::move(key_));
  return parent.items.emplace_back();
}

void JsonTreeReader::open(JsonTree::Kind kind) {
  if (stack_.size() >= kDeepest) fail_input("{}: nested more than {} deep", where_, kDeepest);
  JsonTree& tree = place();
  tree.kind = kind;
  // Stays where it is while it is open: only the innermost open value grows.
  stack_.push_back(&tree);
}

JsonObject::JsonObject(const JsonTree& tree, std::string_view where, std::string path)
    : tree_(tree), where_(where), path_(std::move(path)) {
  if (!tree.is_object()) {
    fail_input("{}: {} must be an object, not {}", where_, path_.empty() ? "the whole" : path_,
               tree.describe());
  }
}

void JsonObject::fail(std::string_view name, std::string_view wanted) const {
  const JsonTree* found = tree_.find(name);
  fail_input("{}: \"{}{}{}\" must be {}, not {}", where_, path_, path_.empty() ? "" : ".", name,
             wanted, found == nullptr ? "missing" : found->describe());
}

std::string JsonObject::text(std::string_view name) const {
  const JsonTree* found = tree_.find(name);
  if (found == nullptr || !found->is_text()) fail(name, "a text");
  return found->scalar.text;
}

std::string JsonObject::text(std::string_view name, std::string_view fallback) const {
  return tree_.find(name) == nullptr ? std::string(fallback) : text(name);
}

bool JsonObject::boolean(std::string_view name, bool fallback) const {
  const JsonTree* found = tree_.find(name);
  if (found == nullptr) return fallback;
  if (found->kind != JsonTree::Kind::scalar || found->scalar.kind != JsonScalar::Kind::boolean) {
    fail(name, "true or false");
  }
  return found->scalar.boolean;
}

std::int64_t JsonObject::integer(std::string_view name) const {
  const JsonTree* found = tree_.find(name);
  if (found == nullptr || found->kind != JsonTree::Kind::scalar ||
      found->scalar.kind != JsonScalar::Kind::integer) {
    fail(name, "a whole number");
  }
  return found->scalar.integer;
}

const std::vector<JsonTree>& JsonObject::list(std::string_view name) const {
  static const std::vector<JsonTree> empty;
  const JsonTree* found = tree_.find(name);
  if (found == nullptr) return empty;
  if (found->kind != JsonTree::Kind::list) fail(name, "a list");
  return found->items;
}

}  // namespace lca
