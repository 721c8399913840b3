// Any three texts as the files of an adapter. The input begins with two lengths of two bytes, of
// adapter_config.json and of lca.json; the rest is adapter_model.safetensors. Besides the
// sanitizers' checks: only lca::Error is thrown, each a single printable line, and every matrix of
// an accepted adapter lies inside the input.

#include "formats/adapter.h"
#include "fuzz/require.h"

#include <lca/error.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;

std::size_t value_bytes(const lca::PackedMatrix& matrix) {
  return matrix.type == lca::PackedType::f32 ? 4 : 2;
}

void check_matrix(const lca::PackedMatrix& matrix, std::span<const std::byte> bytes) {
  require(matrix.rows > 0 && matrix.columns > 0 && matrix.data >= bytes.data());
  const auto values = static_cast<std::size_t>(matrix.rows * matrix.columns);
  require(matrix.data + values * value_bytes(matrix) <= bytes.data() + bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const auto take = [&](std::size_t wanted) {
    const std::size_t count = std::min(wanted, size);
    const std::string_view piece(reinterpret_cast<const char*>(data), count);
    data += count;
    size -= count;
    return piece;
  };
  const std::string_view head = take(4);
  const auto length = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(head[at])) |
           static_cast<std::size_t>(static_cast<unsigned char>(head[at + 1])) << 8;
  };
  const std::string_view config = take(length(0));
  const std::string_view settings = take(length(2));
  const auto weights = std::as_bytes(std::span(data, size));
  try {
    const lca::Adapter adapter = lca::Adapter::parse(config, weights, settings, 2, "fuzz");
    require(!adapter.modules().empty() && adapter.parameters() > 0);
    require(adapter.settings().empty() == settings.empty());
    for (const auto& [module, pair] : adapter.modules()) {
      require(adapter.find(module) == &pair);
      require(pair.a.rows == pair.b.columns && std::isfinite(pair.scale) && pair.scale >= 0);
      check_matrix(pair.a, weights);
      check_matrix(pair.b, weights);
    }
  } catch (const lca::Error& error) {
    check_message(error, "fuzz/");
  }
  return 0;
}
