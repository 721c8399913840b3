// Any bytes through the GGUF reader, the model's configuration, and the tokenizer's tables. Besides
// the sanitizers' checks: only lca::Error is thrown, each a single printable line, and accepted
// files are valid.

#include "formats/gguf/gguf.h"
#include "fuzz/require.h"

#include <lca/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;

float touch(const lca::GgufTensor& tensor) {
  const lca::PackedTypeInfo& info = lca::packed_type_info(tensor.type);
  std::int64_t values = 1;
  for (const std::int64_t dim : tensor.shape) {
    require(dim > 0);
    values *= dim;
  }
  require(tensor.shape.back() % info.block_values == 0);
  require(lca::packed_bytes(tensor.type, values) == tensor.bytes.size());
  std::array<float, 256> block;
  lca::unpack_f32(tensor.type, tensor.bytes.data(), block.data(), info.block_values);
  const float first = block[0];
  lca::unpack_f32(tensor.type, tensor.bytes.data() + tensor.bytes.size() - info.block_bytes,
                  block.data(), info.block_values);
  return first + block[0];
}

float read_tensors(const lca::Gguf& file, std::size_t size) {
  float sum = 0;
  std::size_t total = 0;
  for (const lca::GgufTensor& tensor : file.tensors()) {
    require(file.find(tensor.name) == &tensor);
    sum += touch(tensor);
    total += tensor.bytes.size();
  }
  require(total <= size);
  for (const auto& [key, value] : file.values()) {
    require(file.value(key) == &value);
    require(value.is_list() || value.size() == 1);
    if (value.kind() == lca::GgufValue::Kind::text) {
      for (const std::string_view text : value.texts()) {
        for (const char c : text) sum += static_cast<float>(c);
      }
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      const bool is_number = value.kind() == lca::GgufValue::Kind::number;
      sum += is_number ? static_cast<float>(value.number(i) > 0)
                       : static_cast<float>(value.integer(i));
    }
  }
  return sum;
}

template <typename Work>
void attempt(const Work& work) {
  try {
    work();
  } catch (const lca::Error& error) {
    check_message(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static volatile float sink;  // keeps the reads from being optimised away
  attempt([&] {
    const lca::Gguf file = lca::Gguf::parse(std::as_bytes(std::span(data, size)), "fuzz");
    sink = read_tensors(file, size);
    attempt([&] {
      const lca::ModelConfig config = lca::model_config_from_gguf(file);
      config.validate("fuzz");
      require(config.vocabulary > 0 && config.layers > 0 && config.softmax_scale() > 0);
    });
    attempt([&] {
      const lca::GgufTokenizer tables = lca::gguf_tokenizer_tables(file);
      require(tables.scores.empty() || tables.scores.size() == tables.tokens.size());
      require(tables.types.empty() || tables.types.size() == tables.tokens.size());
    });
  });
  return 0;
}
