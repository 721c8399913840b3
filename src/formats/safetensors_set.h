#pragma once
/// The weights of a Hugging Face folder: `model.safetensors`, or shards with an index.

#include "formats/safetensors.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// All tensors of all files, as one.
class SafetensorsSet {
 public:
  struct Member {
    const TensorInfo* tensor;
    const Safetensors* file;
  };

  /// Opens the weights in `folder`; throws Error naming the file that is missing or wrong.
  static SafetensorsSet open(const std::filesystem::path& folder,
                             FileAccess access = FileAccess::map);

  /// Sorted by name.
  const std::vector<Member>& members() const { return members_; }
  const Member* find(std::string_view name) const;
  /// Throws Error where a file was cut short since it was opened.
  void require_intact() const {
    for (const Safetensors& file : files_) file.require_intact();
  }

 private:
  std::vector<Safetensors> files_;
  std::vector<Member> members_;
};

}  // namespace lca
