// Any text as config.json, and as the settings of a model's layers. Besides the sanitizers' checks:
// only lca::Error is thrown, each a single printable line, and accepted configurations are valid.

#include "formats/model_config.h"
#include "formats/settings_json.h"
#include "fuzz/require.h"
#include "models/rope.h"

#include <lca/error.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using lca::fuzz::check_message;
using lca::fuzz::require;

void check_config(std::string_view text) {
  const lca::ModelConfig config = lca::model_config_from_json(text, "fuzz");
  config.validate("fuzz");
  config.attention.validate();
  require(config.softmax_scale() > 0 && std::isfinite(config.softmax_scale()));
  require(config.lca.empty() || config.lca.size() == static_cast<std::size_t>(config.layers));
  const lca::Rope rope(config.rope);
  require(rope.width() == config.attention.d_rope);
  for (const std::int64_t length : {std::int64_t{1}, config.context, 2 * config.context}) {
    require(std::isfinite(rope.multiplier(length)) && rope.multiplier(length) > 0);
    const std::vector<double> frequencies = rope.frequencies(length);
    require(static_cast<std::int64_t>(frequencies.size()) == rope.width() / 2);
    for (const double frequency : frequencies) require(!std::isnan(frequency) && frequency >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check_config(text);
  } catch (const lca::Error& error) {
    check_message(error, "fuzz");
  }
  try {
    const std::vector<lca::Settings> layers = lca::settings_layers_from_json(text, "fuzz", 3);
    require(layers.size() == 3);
    for (const lca::Settings& layer : layers) layer.validate();
  } catch (const lca::Error& error) {
    check_message(error, "fuzz");
  }
  return 0;
}
