#pragma once
/// Hand-made files, valid and invalid, and checks of the errors about them.

#include "core/bf16.h"
#include "core/text.h"
#include "formats/safetensors.h"

#include <lca/error.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lca::test {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Header length, header and data, concatenated without checks.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

/// A folder that is removed when the test ends.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lca-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// How many files it holds, including hidden ones.
  std::size_t count() const {
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++files;
    return files;
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// `work` must throw Error of `kind` whose one printable line holds all of `parts`.
inline void expect_error(const std::function<void()>& work, const std::vector<std::string>& parts,
                         ErrorKind kind = ErrorKind::bad_input) {
  try {
    work();
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(error.kind(), kind) << line;
    EXPECT_EQ(text_printable(line, line.size()), line) << "not one printable line";
    EXPECT_LT(line.size(), 2000u) << line;
    for (const std::string& part : parts) {
      EXPECT_NE(line.find(part), std::string::npos) << "no \"" << part << "\" in: " << line;
    }
    return;
  }
  std::string all;
  for (const std::string& part : parts) all += " \"" + part + "\"";
  ADD_FAILURE() << "nothing was thrown; expected an error with" << all;
}

/// A safetensors file in memory, tensor by tensor. Its tensors hold 0, 1, 2, …, exact in bf16 up to
/// 256, unless values are given.
class FileBuilder {
 public:
  FileBuilder& add(const std::string& name, const std::string& dtype,
                   const std::vector<std::int64_t>& shape, std::vector<double> values = {}) {
    std::size_t count = 1;
    for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
    for (std::size_t i = values.size(); i < count; ++i) values.push_back(static_cast<double>(i));
    tensors_[name] = {dtype, shape, encode(dtype, values)};
    return *this;
  }
  FileBuilder& remove(const std::string& name) {
    tensors_.erase(name);
    return *this;
  }
  /// The text of the metadata key `lca`, as a JSON string would hold it.
  FileBuilder& settings(std::string text) {
    settings_ = std::move(text);
    return *this;
  }

  std::string bytes() const {
    std::string header = "{";
    std::string data;
    if (!settings_.empty()) {
      std::string escaped;
      for (const char c : settings_)
        escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
      header += R"("__metadata__":{"format":"pt","lca":")" + escaped + "\"},";
    }
    for (const auto& [name, tensor] : tensors_) {
      std::string dims;
      for (const std::int64_t dim : tensor.shape) {
        dims += (dims.empty() ? "" : ",") + std::to_string(dim);
      }
      header += "\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + dims +
                "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
      data += tensor.bytes;
      header += std::to_string(data.size()) + "]},";
    }
    if (header.back() == ',') header.pop_back();
    return safetensors_bytes(header + "}", data);
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };

  template <typename T>
  static void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  static std::string encode(const std::string& dtype, const std::vector<double>& values) {
    std::string bytes;
    for (const double value : values) {
      if (dtype == "F64") {
        append(bytes, value);
      } else if (dtype == "F32") {
        append(bytes, static_cast<float>(value));
      } else if (dtype == "BF16") {
        append(bytes, bf16_from_f32(static_cast<float>(value)));
      } else if (dtype == "F16" || dtype == "I16") {
        append(bytes, static_cast<std::int16_t>(value));
      } else if (dtype == "I32") {
        append(bytes, static_cast<std::int32_t>(value));
      } else if (dtype == "I64") {
        append(bytes, static_cast<std::int64_t>(value));
      } else {
        append(bytes, static_cast<std::int8_t>(value));
      }
    }
    return bytes;
  }

  std::map<std::string, Tensor> tensors_;
  std::string settings_;
};

/// A valid MLA file: B 2, n 5, H 2, d_n 3, d_r 2, d_c 4, d_v 6.
inline FileBuilder mla_file(std::int64_t batch = 2) {
  FileBuilder file;
  file.add("q_nope", "F32", {batch, 5, 2, 3})
      .add("q_rope", "F32", {batch, 5, 2, 2})
      .add("c", "F32", {batch, 5, 4})
      .add("k_rope", "F32", {batch, 5, 2})
      .add("w_uk", "F32", {2, 3, 4})
      .add("w_uv", "F32", {2, 6, 4});
  return file;
}

/// A valid GQA file: B 2, n 5, H 4, KV 2, d 3, d_v 7.
inline FileBuilder gqa_file(std::int64_t batch = 2) {
  FileBuilder file;
  file.add("q", "F32", {batch, 5, 4, 3})
      .add("k", "F32", {batch, 5, 2, 3})
      .add("v", "F32", {batch, 5, 2, 7});
  return file;
}

}  // namespace lca::test
