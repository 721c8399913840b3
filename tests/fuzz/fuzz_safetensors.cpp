// Any bytes through the safetensors reader and the reader of operator files. Besides the
// sanitizers' checks: only lca::Error is thrown, each a single printable line, and accepted files
// are valid.

#include "formats/op_file.h"
#include "formats/safetensors.h"
#include "fuzz/require.h"

#include <lca/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;

/// Reads every byte, so that sanitizers detect a view outside its memory.
unsigned touch(const void* data, std::size_t size) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += static_cast<const unsigned char*>(data)[i];
  return sum;
}

unsigned touch(const lca::ConstTensor& view) {
  if (view.empty()) return 0;
  const auto count = static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2]);
  require(count > 0);
  return touch(view.data, count * lca::dtype_bytes(view.dtype));
}

unsigned read_tensors(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  const lca::Safetensors file = lca::Safetensors::parse(bytes, "fuzz");
  std::size_t total = 0;
  for (const lca::TensorInfo& tensor : file.tensors()) {
    require(file.find(tensor.name) == &tensor);
    sum += touch(tensor.bytes.data(), tensor.bytes.size());
    total += tensor.bytes.size();
  }
  require(total <= bytes.size());
  return sum;
}

unsigned read_input(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  const lca::OpInput input = lca::OpInput::parse(bytes, "fuzz");
  input.spec.shape.validate();
  input.spec.settings.validate();
  require(input.batch > 0 && input.length > 0 && input.spec.scale > 0);
  require(input.groups() >= 0 && input.groups() <= input.length);
  require(input.prefill.empty() != input.documents.empty());
  for (std::int64_t entry = 0; entry < input.batch; ++entry) {
    sum += touch(input.queries(entry).nope) + touch(input.queries(entry).rope);
    sum += touch(input.entries(entry).semantic) + touch(input.entries(entry).positional);
  }
  sum += touch(input.weights().w_uk) + touch(input.weights().w_uv);

  lca::SettingsObject object{input.spec.settings, input.spec.scale, input.prefill, {}};
  if (object.settings.positions == lca::Positions::entry) {
    object.rope_layout = input.spec.rotation.layout;
  }
  const std::string text = lca::settings_to_json(object);
  require(lca::settings_from_json(text, "fuzz", lca::SettingsScope::op_file) == object);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static volatile unsigned sink;  // keeps the reads from being optimised away
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    sink = read_tensors(bytes);
  } catch (const lca::Error& error) {
    check_message(error);
  }
  try {
    sink = read_input(bytes);
  } catch (const lca::Error& error) {
    check_message(error);
  }
  return 0;
}
