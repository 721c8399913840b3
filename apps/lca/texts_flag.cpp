#include "texts_flag.h"

#include "core/error.h"
#include "core/text.h"
#include "model_flags.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace lca::cli {
namespace {

/// Every text of a folder, by name.
std::vector<std::string> folder_texts(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code code;
  for (std::filesystem::directory_iterator at(folder, code), end; !code && at != end;
       at.increment(code)) {
    const std::string extension = at->path().extension().string();
    if ((extension == ".txt" || extension == ".md") && at->is_regular_file(code)) {
      found.push_back(at->path().string());
    }
  }
  if (code) fail_input("{}: cannot be listed: {}", path_printable(folder), code.message());
  if (found.empty()) fail_input("{}: holds no .txt or .md file", path_printable(folder));
  std::ranges::sort(found);
  return found;
}

}  // namespace

void TextsFlag::add(CLI::App& app, const std::string& name, Values values,
                    const std::string& help) {
  name_ = name;
  CLI::Option* option = app.add_option(name, paths_, help);
  const bool several = values == Values::several;
  option->type_name(several ? "FILE|DIR..." : "FILE|DIR");
  if (!several) option->type_size(1)->allow_extra_args(false);
}

std::vector<TextsFlag::Text> TextsFlag::read() const {
  std::vector<Text> texts;
  const auto add = [&](const std::string& path) {
    texts.push_back({path, text_read(name_, path)});
    if (std::ranges::all_of(texts.back().text, [](char c) { return c == ' ' || c == '\n'; })) {
      fail_input("{}: holds no text", path_printable(path));
    }
  };
  for (const std::string& path : paths_) {
    std::error_code ignored;
    if (!path.empty() && std::filesystem::is_directory(path, ignored)) {
      for (const std::string& file : folder_texts(path)) add(file);
    } else {
      add(path);
    }
  }
  return texts;
}

}  // namespace lca::cli
