#include "formats/safetensors_set.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/json_text.h"
#include "formats/model_path.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lca {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

/// Reads {"metadata": …, "weight_map": {tensor: file}}.
class IndexReader : public JsonReader {
 public:
  explicit IndexReader(std::string file) : file_(std::move(file)) {}

  std::map<std::string, std::string> files;  ///< of each tensor
  bool complete = false;                     ///< there was a weight_map

  void object_begin() override {
    ++depth_;
    if (depth_ == 2 && key_ == "weight_map") {
      if (std::exchange(complete, true)) fail_input("{}: weight_map appears twice", file_);
      inside_ = true;
    } else if (inside_) {
      fail_entry("an object");
    }
  }
  void object_end() override {
    if (depth_ == 2) inside_ = false;
    --depth_;
  }
  void list_begin() override {
    ++depth_;
    if (inside_) fail_entry("a list");
  }
  void list_end() override { --depth_; }
  void key(std::string& name) override {
    if (depth_ <= 2) key_ = std::move(name);
  }
  void scalar(JsonScalar& value) override {
    if (!inside_) return;
    if (value.kind != JsonScalar::Kind::text) fail_entry(value.describe());
    const std::string& name = value.text;
    // A plain name in the same folder: an index must not lead anywhere else.
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || name.starts_with('.')) {
      fail_entry(value.describe() + ", not a plain file name");
    }
    if (!files.try_emplace(key_, std::move(value.text)).second) fail_entry("there twice");
  }

 private:
  [[noreturn]] void fail_entry(std::string_view what) const {
    fail_input("{}: weight_map: \"{}\" is {}", file_, text_printable(key_), what);
  }

  std::string file_;
  std::string key_;
  int depth_ = 0;
  bool inside_ = false;
};

[[noreturn]] void fail_no_weights(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    fail_input(
        "{}: only safetensors are read; convert in Python: "
        "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, "
        "safe_serialization=True)",
        path_shown(folder / name));
  }
  fail_not_found("{}: there is neither {} nor {}: not a model's folder, or not all of it",
                 path_shown(folder), kSingle, kIndex);
}

}  // namespace

SafetensorsSet SafetensorsSet::open(const std::filesystem::path& folder, FileAccess access) {
  SafetensorsSet set;
  std::error_code ignored;
  // The single file takes precedence, as in transformers: an index beside it is ignored.
  if (std::filesystem::exists(folder / kSingle, ignored)) {
    set.files_.push_back(Safetensors::open(folder / kSingle, access));
    for (const TensorInfo& tensor : set.files_[0].tensors()) {
      set.members_.push_back({&tensor, set.files_.data()});
    }
    return set;
  }

  const std::filesystem::path index = folder / kIndex;
  if (!std::filesystem::exists(index, ignored)) fail_no_weights(folder);
  IndexReader reader(path_shown(index));
  text_read(index, [&](std::string_view text) { json_read(text, path_shown(index), reader); });
  if (!reader.complete) fail_input("{}: weight_map is missing", path_shown(index));

  std::map<std::string_view, std::size_t> numbers;  // of each file
  for (const auto& [tensor, file] : reader.files) numbers.try_emplace(file, numbers.size());
  std::vector<std::string_view> names(numbers.size());
  for (const auto& [file, number] : numbers) names[number] = file;
  set.files_.reserve(names.size());  // members point into it
  for (const std::string_view name : names) {
    const std::filesystem::path at = folder / name;
    if (!std::filesystem::exists(at, ignored)) {
      fail_not_found("{}: is missing, but {} lists it: complete the download", path_shown(at),
                     kIndex);
    }
    set.files_.push_back(Safetensors::open(at, access));
  }
  for (const auto& [name, file] : reader.files) {
    const Safetensors& shard = set.files_[numbers.at(file)];
    const TensorInfo* tensor = shard.find(name);
    if (tensor == nullptr) {
      fail_input("{}: tensor \"{}\" is not there, but {} says so", shard.name(),
                 text_printable(name), kIndex);
    }
    set.members_.push_back({tensor, &shard});
  }
  return set;
}

const SafetensorsSet::Member* SafetensorsSet::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      members_, name, std::ranges::less{},
      [](const Member& member) -> std::string_view { return member.tensor->name; });
  return at != members_.end() && at->tensor->name == name ? &*at : nullptr;
}

}  // namespace lca
