#pragma once
/// A checkpoint small enough to be created for every test: two layers, random weights, and a real
/// tokenizer with a chat template. Tests may change any part before it is written.

#include "formats/byte_files.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lca::test {

class TinyModel {
 public:
  static constexpr std::int64_t kLayers = 2, kHidden = 32, kVocabulary = 807, kContext = 256;

  TinyModel();

  nlohmann::ordered_json config;
  nlohmann::ordered_json tokenizer;
  FileBuilder weights;
  std::string chat_template;  ///< ChatML; empty: none is written
  /// Writes all of it to the folder, replacing earlier files.
  TinyModel& write();

  std::string path() const { return folder_.path().string(); }
  std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }

  /// Small pseudo-random numbers, always the same.
  static std::vector<double> noise(std::int64_t count, std::uint64_t seed, double size);

 private:
  ScratchFolder folder_;
};

}  // namespace lca::test
