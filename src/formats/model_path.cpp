#include "formats/model_path.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

namespace lca {

namespace fs = std::filesystem;

std::string path_shown(const fs::path& path) { return path_printable(path.native()); }

bool path_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

fs::path path_require(const fs::path& path) {
  std::error_code error;
  fs::path full = fs::absolute(path, error).lexically_normal();
  if (error || !path_exists(full)) {
    fail_not_found("{}: there is no such file or folder", path_shown(path));
  }
  return full;
}

bool path_is_gguf(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;  // opening a pipe would wait
  if (path.extension() == ".gguf") return true;
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

std::optional<fs::path> folder_find_gguf(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".gguf") found.push_back(at->path());
  }
  std::ranges::sort(found);
  if (found.empty()) return std::nullopt;
  // The parts of one model differ in the part's number only.
  const auto model = [](const fs::path& path) {
    constexpr std::string_view kTail = "00001-of-00001.gguf";
    std::string name = path.filename().string();
    if (name.size() > kTail.size() &&
        name.compare(name.size() - kTail.size() + 5, 4, "-of-") == 0) {
      name.replace(name.size() - kTail.size(), 5, "*");
    }
    return name;
  };
  const std::string first = model(found[0]);
  for (const fs::path& path : found) {
    if (model(path) == first) continue;
    fail_input("{}: holds several models, {} and {}: name one of the files", path_shown(folder),
               path_printable(found[0].filename().native()),
               path_printable(path.filename().native()));
  }
  return found[0];
}

}  // namespace lca
