#pragma once
/// Files of text and JSON that users name. Every byte is hostile until checked.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace lca::eval {

/// The whole file as UTF-8: what is none becomes U+FFFD. Throws Error naming it.
std::string source_read(const std::filesystem::path& path);

/// `text`, the content of `path`, as JSON. Throws Error naming the file and where it is wrong.
nlohmann::ordered_json source_json(const std::filesystem::path& path, std::string_view text);

/// The member `name` of `object`, which must be a list; `where` begins the message if it is not.
const nlohmann::ordered_json& json_list(const nlohmann::ordered_json& object, const char* name,
                                        std::string_view where);
/// The same for a text.
const std::string& json_text(const nlohmann::ordered_json& object, const char* name,
                             std::string_view where);

}  // namespace lca::eval
