#include "eval/ruler/source_text.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "formats/tokenizer/utf8.h"

namespace lca::eval {

std::string source_read(const std::filesystem::path& path) {
  const MappedFile file(path, FileAccess::read);
  return utf8_clean({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

nlohmann::ordered_json source_json(const std::filesystem::path& path, std::string_view text) {
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail_input("{}: is not JSON: wrong at byte {} of {}", path_printable(path.string()), error.byte,
               text.size());
  } catch (const nlohmann::json::exception&) {  // a number out of range
    fail_input("{}: is not JSON that can be read", path_printable(path.string()));
  }
}

const nlohmann::ordered_json& json_list(const nlohmann::ordered_json& object, const char* name,
                                        std::string_view where) {
  if (object.is_object()) {
    const auto found = object.find(name);
    if (found != object.end() && found->is_array()) return *found;
  }
  fail_input("{}: the list \"{}\" is missing", where, name);
}

const std::string& json_text(const nlohmann::ordered_json& object, const char* name,
                             std::string_view where) {
  if (object.is_object()) {
    const auto found = object.find(name);
    if (found != object.end() && found->is_string()) {
      return found->get_ref<const std::string&>();
    }
  }
  fail_input("{}: the text \"{}\" is missing", where, name);
}

}  // namespace lca::eval
