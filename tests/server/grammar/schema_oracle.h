#pragma once
/// A second, slow implementation of the schemas: says whether a value satisfies one, and makes
/// random schemas and values. Shares nothing with the grammar.

#include <nlohmann/json.hpp>

#include <optional>
#include <random>
#include <string>
#include <vector>

namespace lca::test {

using Json = nlohmann::ordered_json;

/// Whether `value` satisfies `schema`, a part of `root`.
bool oracle_valid(const Json& schema, const Json& root, const Json& value);

/// Random schemas. Properties are in alphabetical order, so that a canonical value has them so.
class SchemaMaker {
 public:
  explicit SchemaMaker(std::uint64_t seed) : random_(seed) {}

  /// A schema with `$defs`, maybe recursive.
  Json schema();
  /// A value of `schema`, small; nothing where this attempt met a contradiction or went too deep.
  std::optional<Json> value(const Json& schema, const Json& root, int depth = 0);
  /// Any value.
  Json any(int depth = 0);
  /// `value` with one part of it replaced, removed or added.
  Json changed(Json value);

  int below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool chance(double part) { return std::bernoulli_distribution(part)(random_); }

 private:
  Json part(int depth);
  std::string text(int longest);

  std::mt19937_64 random_;
  int definitions_ = 0;
};

}  // namespace lca::test
