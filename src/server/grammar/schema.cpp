// From a JSON schema to a program. Subschemas wait in a queue, so that nothing here is recursive.

#include "server/grammar/schema.h"

#include "core/error.h"
#include "core/text.h"
#include "server/grammar/grammar.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace lca::server {

namespace {

constexpr std::uint16_t kSpaceSymbol = 256;  // in a literal: white space or none

std::string json_canonical(const Json& value, std::string_view path) {
  try {
    return value.dump();
  } catch (const Json::exception&) {
    fail_input("schema: text at {} is not UTF-8", text_printable(path, 300));
  }
}

/// The symbols of a value as it is to be written; as deep as the schema, which is limited.
void symbols_add(const Json& value, std::string_view path, std::vector<std::uint16_t>& symbols) {
  const auto add = [&](std::string_view text) {
    for (const char letter : text) symbols.push_back(static_cast<std::uint8_t>(letter));
  };
  if (!value.is_structured()) {
    add(json_canonical(value, path));
    return;
  }
  const bool object = value.is_object();
  add(object ? "{" : "[");
  symbols.push_back(kSpaceSymbol);
  bool first = true;
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (!first) {
      add(",");
      symbols.push_back(kSpaceSymbol);
    }
    first = false;
    if (object) {
      add(json_canonical(Json(item.key()), path));
      add(":");
      symbols.push_back(kSpaceSymbol);
    }
    symbols_add(*item, path, symbols);
  }
  if (!value.empty()) symbols.push_back(kSpaceSymbol);
  add(object ? "}" : "]");
}

/// Values as a tree of their common beginnings.
class LiteralTree {
 public:
  void add(const std::vector<std::uint16_t>& symbols) {
    std::uint32_t at = 0;
    for (const std::uint16_t symbol : symbols) {
      const auto found = std::find_if(nodes_[at].next.begin(), nodes_[at].next.end(),
                                      [&](const auto& next) { return next.first == symbol; });
      if (found != nodes_[at].next.end()) {
        at = found->second;
        continue;
      }
      if (nodes_.size() >= ProgramBuilder::kMaxNodes) {
        fail_input("schema: the values of enum and const are too long together; shorten them");
      }
      const auto made = static_cast<std::uint32_t>(nodes_.size());
      nodes_[at].next.emplace_back(symbol, made);
      nodes_.emplace_back();
      at = made;
    }
    nodes_[at].whole = true;
  }

  /// The children of a node were made after it.
  std::uint32_t build(ProgramBuilder& builder) const {
    std::vector<std::uint32_t> made(nodes_.size());
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      std::vector<Edge> edges;
      std::vector<std::uint32_t> targets;
      for (const auto& [symbol, next] : nodes_[i].next) {
        if (symbol == kSpaceSymbol) {
          targets.push_back(builder.maybe_space(made[next]));
        } else {
          const auto code = static_cast<std::uint8_t>(symbol);
          edges.push_back({code, code, made[next]});
        }
      }
      if (!edges.empty()) targets.push_back(builder.bytes(edges));
      if (nodes_[i].whole) targets.push_back(builder.base.ret);
      made[i] = targets.size() == 1 ? targets[0] : builder.split(targets);
    }
    return made[0];
  }

 private:
  struct TreeNode {
    std::vector<std::pair<std::uint16_t, std::uint32_t>> next;
    bool whole = false;
  };
  std::vector<TreeNode> nodes_{1};
};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root) : root_(root) {}

  Program compile() {
    kept_ = schema_size(root_);
    const std::uint32_t rule = rule_for(root_, "#");
    const std::uint32_t start = builder_.begin(rule);
    while (!queue_.empty()) {
      const Task task = std::move(queue_.front());
      queue_.pop_front();
      rule_build(*task.schema, task.node, task.path);
    }
    Program program = builder_.finish(start);
    const std::uint32_t height = program.nodes[start].height;
    if (height == kNever) {
      fail_input("schema: no finite value satisfies it; look at {}", culprit(program));
    }
    if (height > kMaxCalls) {
      fail_input("schema: its smallest value is nested too deeply; at most about {} levels",
                 kMaxCalls / 2);
    }
    return program;
  }

 private:
  struct Task {
    const Json* schema;
    std::uint32_t node;
    std::string path;
  };

  std::uint32_t rule_for(const Json& schema, const std::string& path) {
    const auto found = rules_.find(&schema);
    if (found != rules_.end()) return found->second;
    if (rules_.size() >= kMaxSubschemas) {
      fail_input("schema: more than {} subschemas; make it smaller", kMaxSubschemas);
    }
    const std::uint32_t node = builder_.reserve();
    rules_.emplace(&schema, node);
    paths_.emplace_back(node, path);
    queue_.push_back({&schema, node, path});
    return node;
  }

  /// The rule of a value: most are builtins, which all grammars share.
  std::uint32_t value_rule(const Json& schema, const std::string& path) {
    if (schema.is_boolean() && schema.get<bool>()) return builder_.base.any;
    return rule_for(schema, path);
  }

  void rule_build(const Json& schema, std::uint32_t node, const std::string& path) {
    std::vector<std::uint32_t> targets;
    if (schema.is_boolean()) {
      if (schema.get<bool>()) targets.push_back(builder_.base.any);
    } else {
      if (!schema.is_object()) {
        fail_input("schema: {} must be an object, true or false", text_printable(path, 300));
      }
      keywords_check(schema, path);
      definitions_add(schema, path);
      if (schema.contains("$ref")) {
        targets_of_reference(schema, path, targets);
      } else if (schema.contains("anyOf")) {
        targets_of_any(schema, path, targets);
      } else {
        targets_of_types(schema, path, targets);
      }
    }
    builder_.define_split(node, targets);
  }

  /// Definitions are looked at even if nothing uses them: a mistake there is one.
  void definitions_add(const Json& schema, const std::string& path) {
    const auto found = schema.find("$defs");
    if (found == schema.end()) return;
    if (!found->is_object()) {
      fail_input("schema: '$defs' at {} must be an object", text_printable(path, 300));
    }
    const std::string below = path_join(path, "$defs");
    for (const auto& [name, value] : found->items()) rule_for(value, path_join(below, name));
  }

  static bool constrains(const Json& schema, std::string_view besides) {
    for (const auto& [keyword, value] : schema.items()) {
      if (keyword != besides && keyword != "$defs" && !keyword_annotates(keyword)) return true;
    }
    return false;
  }

  static Json without(const Json& schema, std::string_view keyword) {
    Json made = Json::object();
    for (const auto& [name, value] : schema.items()) {
      if (name != keyword && name != "$defs" && !keyword_annotates(name)) made[name] = value;
    }
    return made;
  }

  static void merge_check(bool fits, const std::string& path) {
    if (fits) return;
    fail_input(
        "schema: too large once $ref and anyOf at {} are combined with what stands beside them",
        text_printable(path, 300));
  }

  std::uint32_t merged_rule(const Json& one, const Json& other, const std::string& path) {
    if (merged_.size() >= kMaxMerges) {
      fail_input("schema: $ref or anyOf at {} is combined too often or with itself; simplify it",
                 text_printable(path, 300));
    }
    // What is read for it counts too: of long lists that are combined little may be left.
    read_ += schema_size(one);
    read_ += schema_size(other);
    merge_check(read_.fits(100), path);
    Json made = schemas_merge(one, other, path);
    kept_ += schema_size(made);
    merge_check(kept_.fits(4), path);
    merged_.push_back(std::move(made));
    return rule_for(merged_.back(), path);
  }

  void targets_of_reference(const Json& schema, const std::string& path,
                            std::vector<std::uint32_t>& targets) {
    const Json& target = reference_find(root_, schema.at("$ref"), path);
    if (constrains(schema, "$ref")) {
      targets.push_back(merged_rule(without(schema, "$ref"), target, path));
    } else {
      targets.push_back(rule_for(target, path_join(path, "$ref")));
    }
  }

  void targets_of_any(const Json& schema, const std::string& path,
                      std::vector<std::uint32_t>& targets) {
    const Json& choices = schema.at("anyOf");
    if (!choices.is_array() || choices.empty()) {
      fail_input("schema: 'anyOf' at {} must be a list of schemas", text_printable(path, 300));
    }
    const bool beside = constrains(schema, "anyOf");
    const Json rest = beside ? without(schema, "anyOf") : Json();
    const std::string below = path_join(path, "anyOf");
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::string at = path_join(below, std::to_string(i));
      targets.push_back(beside ? merged_rule(rest, choices[i], at) : rule_for(choices[i], at));
    }
  }

  void targets_of_types(const Json& schema, const std::string& path,
                        std::vector<std::uint32_t>& targets) {
    const std::uint32_t types = types_of(schema, path);
    const std::uint32_t max_length = count_of(schema, "maxLength", kUnlimited, path);
    const std::uint32_t min_items = count_of(schema, "minItems", 0, path);
    const std::uint32_t max_items = count_of(schema, "maxItems", kUnlimited, path);
    const Integer low = bound_of(schema, "minimum", kIntegerMin, path);
    const Integer high =
        bound_of(schema, "maximum", low > kIntegerUsualMax ? kIntegerMax : kIntegerUsualMax, path);
    const std::vector<std::string> required = required_of(schema, path);
    // Looked at whatever the type is: a mistake in them is one.
    std::uint32_t item = builder_.base.any;
    if (const auto found = schema.find("items"); found != schema.end()) {
      item = value_rule(*found, path_join(path, "items"));
    }
    const bool listed = schema.contains("enum") || schema.contains("const");
    object_add(schema, required, (types & kObject) != 0 && !listed, path, targets);
    if (listed) {
      LiteralTree tree;
      std::vector<std::uint16_t> symbols;
      for (const Json& value : values_of(schema, path)) {
        symbols.clear();
        symbols_add(value, path, symbols);
        tree.add(symbols);
      }
      targets.push_back(tree.build(builder_));
      return;
    }
    const bool bounded = schema.contains("minimum") || schema.contains("maximum");
    if (bounded && (types & kNumber) != 0) {
      fail_input("schema: '{}' at {} is supported for integers only; say \"type\": \"integer\"",
                 schema.contains("minimum") ? "minimum" : "maximum", text_printable(path, 300));
    }
    if ((types & kNull) != 0) targets.push_back(builder_.base.null);
    if ((types & kBoolean) != 0) targets.push_back(builder_.base.boolean);
    if ((types & kNumber) != 0) {
      targets.push_back(builder_.base.number);
    } else if ((types & kInteger) != 0) {
      targets.push_back(bounded ? integer_rule(low, high) : builder_.base.integer);
    }
    if ((types & kString) != 0) targets.push_back(builder_.string(max_length));
    if ((types & kArray) != 0 && min_items <= max_items) {
      targets.push_back(builder_.array(item, min_items, max_items));
    }
  }

  std::uint32_t integer_rule(Integer low, Integer high) {
    const auto found = integers_.find({low, high});
    if (found != integers_.end()) return found->second;
    const std::uint32_t made = builder_.integer(low, high);
    integers_.emplace(std::pair{low, high}, made);
    return made;
  }

  struct Property {
    std::string canonical;  // with its quotes
    std::uint32_t value = 0;
    bool required = false;
  };

  void object_add(const Json& schema, const std::vector<std::string>& required, bool wanted,
                  const std::string& path, std::vector<std::uint32_t>& targets) {
    bool open = true;
    std::uint32_t additional = builder_.base.any;
    if (const auto found = schema.find("additionalProperties"); found != schema.end()) {
      open = !(found->is_boolean() && !found->get<bool>());
      if (open) additional = value_rule(*found, path_join(path, "additionalProperties"));
    }
    std::unordered_set<std::string> needed(required.begin(), required.end());
    std::vector<Property> properties;
    if (const auto found = schema.find("properties"); found != schema.end()) {
      if (!found->is_object()) {
        fail_input("schema: 'properties' at {} must be an object", text_printable(path, 300));
      }
      const std::string below = path_join(path, "properties");
      for (const auto& [name, value] : found->items()) {
        const std::string at = path_join(below, name);
        properties.push_back(
            {json_canonical(Json(name), at), value_rule(value, at), needed.erase(name) > 0});
      }
    }
    for (const std::string& name : required) {
      if (needed.erase(name) == 0) continue;
      if (!open) {
        if (!wanted) continue;
        fail_input(
            "schema: '{}' at {} is required, but neither among its properties nor allowed by "
            "additionalProperties",
            text_printable(name, 80), text_printable(path, 300));
      }
      properties.push_back({json_canonical(Json(name), path), additional, true});
    }
    if (!wanted) return;
    targets.push_back(properties.empty() && open ? builder_.object_of(additional)
                                                 : object_build(properties, open, additional));
  }

  /// Properties in their order, optional ones or not, then any others. `keys` is where the next key
  /// begins, `after` where a value has ended.
  std::uint32_t object_build(const std::vector<Property>& properties, bool open,
                             std::uint32_t additional) {
    const std::uint32_t end = builder_.maybe_space(builder_.byte('}', builder_.base.ret));
    std::uint32_t keys = kUnlimited;  // none
    std::uint32_t after = end;
    if (open) {
      std::vector<std::string_view> names;
      names.reserve(properties.size());
      for (const Property& property : properties) {
        names.push_back(
            std::string_view(property.canonical).substr(1, property.canonical.size() - 2));
      }
      after = builder_.reserve();
      keys = builder_.any_property(additional, builder_.names(names), after);
      const std::uint32_t comma = builder_.byte(',', builder_.maybe_space(keys));
      builder_.define_split(after, std::initializer_list<std::uint32_t>{end, comma});
    }
    bool may_end = true;
    for (std::size_t i = properties.size(); i-- > 0;) {
      const Property& property = properties[i];
      const std::uint32_t value = builder_.maybe_space(builder_.call(property.value, after));
      const std::uint32_t key = builder_.text(property.canonical + ":", value);
      if (property.required) may_end = false;
      keys = property.required || keys == kUnlimited ? key : builder_.split({key, keys});
      const std::uint32_t comma = builder_.byte(',', builder_.maybe_space(keys));
      after = may_end ? builder_.split({end, comma}) : comma;
    }
    const std::uint32_t begin = keys == kUnlimited ? end : builder_.maybe_space(keys);
    return builder_.byte('{', may_end && keys != kUnlimited ? builder_.split({end, begin}) : begin);
  }

  /// The last of the subschemas that nothing satisfies, in the order they were found: the innermost
  /// of a contradiction, one of its circle for a recursion without end.
  std::string culprit(const Program& program) const {
    std::string found = "#";
    for (const auto& [node, path] : paths_) {
      if (program.nodes[node].height == kNever) found = path;
    }
    return text_printable(found, 300);
  }

  const Json& root_;
  ProgramBuilder builder_;
  std::unordered_map<const Json*, std::uint32_t> rules_;
  std::vector<std::pair<std::uint32_t, std::string>> paths_;
  std::deque<Task> queue_;
  std::deque<Json> merged_;
  std::map<std::pair<Integer, Integer>, std::uint32_t> integers_;
  SchemaSize kept_;  // the schema and all that was combined
  SchemaSize read_;  // to combine it
};

}  // namespace

Grammar Grammar::from_schema(const Json& schema) {
  return guarded([&] { return Grammar(SchemaCompiler(schema).compile()); });
}

}  // namespace lca::server
