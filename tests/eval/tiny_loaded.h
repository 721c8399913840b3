#pragma once
/// The tiny model as tests of the evaluation read it.

#include "apps/tiny_model.h"

#include <lca/model.h>

#include <memory>

namespace lca::test {

/// Writes the model's files and loads them: on the CPU, in float32.
inline std::shared_ptr<const Model> tiny_loaded(TinyModel& tiny) {
  ModelOptions load;
  load.path = tiny.write().path();
  load.device = "cpu";
  load.precision = Precision::f32;
  return Model::load(load);
}

}  // namespace lca::test
