#pragma once
/// Which fields of the protocols are honoured: one table, from which requests are checked and
/// docs/serving-fields.md is written.

#include "server/api/request_json.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lca::server {

enum class FieldUse : std::uint8_t {
  honoured,
  ignored,  ///< has no effect on text
  refused   ///< 400 unless it has a value of `allowed`
};

/// One field that a protocol defines, or an addition of ours.
struct FieldRule {
  std::string_view object;    ///< "chat", "chat.tools[]", …: the route and the place in its body
  std::string_view name;      ///< field
  FieldUse use;               ///< what we do with it
  std::string_view fallback;  ///< what holds where it is absent, as JSON, or words in parentheses
  std::string_view allowed;   ///< of a refused field: a JSON list of values with no effect
};

std::span<const FieldRule> field_rules();

/// Throws ApiException (400) for the first refused field of `fields`, in the table's order.
void fields_check(std::string_view object, const Fields& fields);

/// docs/serving-fields.md.
std::string fields_markdown();

}  // namespace lca::server
