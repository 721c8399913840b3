#pragma once
/// Results of a run, sample by sample, in a file from which an interrupted run is taken up again.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <vector>

#include "core/descriptor.h"

namespace lca::eval {

using Json = nlohmann::ordered_json;

/// JSON lines: the first is the fingerprint of the run, each further one a finished sample. One
/// process at a time.
class ResultsFile {
 public:
  /// Opens the file, or creates it with `fingerprint`, an object that names all that decides the
  /// results. A last line that is not whole (the run was killed while writing it) is cut off.
  /// Throws Error: incompatible where the file has another fingerprint, naming what differs; bad
  /// input where it is no such file, which is then left as it is; busy where another process writes
  /// to it.
  ResultsFile(std::filesystem::path path, const Json& fingerprint);

  /// Samples that were in the file when it was opened, each an object.
  const std::vector<Json>& rows() const { return rows_; }
  /// Appends a sample. It is in the file when this returns, whatever becomes of the process.
  void add(const Json& row);

 private:
  void write(const std::string& line);
  void read(const Json& fingerprint);

  std::filesystem::path path_;
  Descriptor file_;
  std::vector<Json> rows_;
};

}  // namespace lca::eval
