#pragma once
/// Small JSON documents as a tree, with lookups that say what is wrong.

#include "formats/json_text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// A JSON value. `path` names it in messages: `model.type`.
struct JsonTree {
  enum class Kind { scalar, object, list };
  Kind kind = Kind::scalar;
  JsonScalar scalar;
  std::vector<std::string> names;  ///< of an object: one an item
  std::vector<JsonTree> items;     ///< of a list or an object

  bool is_null() const { return kind == Kind::scalar && scalar.kind == JsonScalar::Kind::null; }
  bool is_object() const { return kind == Kind::object; }
  bool is_text() const { return kind == Kind::scalar && scalar.kind == JsonScalar::Kind::text; }
  /// A member that is there and not null; else a null pointer.
  const JsonTree* find(std::string_view name) const;
  /// The value as a message shows it.
  std::string describe() const;
};

/// Builds the tree from events. Trees are small: deep or large ones throw Error.
class JsonTreeReader : public JsonReader {
 public:
  explicit JsonTreeReader(std::string_view where) : where_(where) {}
  JsonTree root;

  void object_begin() override { open(JsonTree::Kind::object); }
  void object_end() override { stack_.pop_back(); }
  void list_begin() override { open(JsonTree::Kind::list); }
  void list_end() override { stack_.pop_back(); }
  void key(std::string& name) override { key_ = std::move(name); }
  void scalar(JsonScalar& value) override { place().scalar = std::move(value); }

 protected:
  std::string_view where() const { return where_; }
  std::size_t depth() const { return stack_.size(); }

 private:
  JsonTree& place();
  void open(JsonTree::Kind kind);

  std::string_view where_;
  std::vector<JsonTree*> stack_;
  std::string key_;
  std::size_t count_ = 0;
};

/// Typed members; the errors begin with `where` and name the member `path.name`.
class JsonObject {
 public:
  /// Throws Error where `tree` is no object.
  JsonObject(const JsonTree& tree, std::string_view where, std::string path);

  std::string text(std::string_view name) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  bool boolean(std::string_view name, bool fallback) const;
  std::int64_t integer(std::string_view name) const;
  /// A list; empty where the member is not there.
  const std::vector<JsonTree>& list(std::string_view name) const;
  const JsonTree* find(std::string_view name) const { return tree_.find(name); }
  const std::string& path() const { return path_; }
  std::string_view where() const { return where_; }
  /// Throws Error about a member.
  [[noreturn]] void fail(std::string_view name, std::string_view wanted) const;

 private:
  const JsonTree& tree_;
  std::string_view where_;
  std::string path_;
};

}  // namespace lca
