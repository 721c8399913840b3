#pragma once
/// Texts that a command reads.

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace lca::cli {

/// A flag that names files or folders of text, any number of them.
class TextsFlag {
 public:
  /// How many paths follow the flag each time it is given; with `several` a MODEL must stand before
  /// it.
  enum class Values { one, several };
  void add(CLI::App& app, const std::string& name, Values values, const std::string& help);
  bool given() const { return !paths_.empty(); }

  struct Text {
    std::string path, text;
  };
  /// All of them, in the order given; of a folder every file whose name ends in .txt or .md, by
  /// name. Throws Error (bad input) for one that holds no text.
  std::vector<Text> read() const;

 private:
  std::string name_;
  std::vector<std::string> paths_;
};

}  // namespace lca::cli
