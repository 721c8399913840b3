#pragma once
/// A model on one GPU: what all its sessions share.

#include <cstdint>
#include <vector>

#include "core/cuda/memory.h"
#include "formats/model_config.h"
#include "models/cuda/device_caches.h"
#include "models/cuda/device_weights.h"
#include "models/cuda/stage_spaces.h"
#include "models/rope.h"
#include "ops/cuda/product.h"

namespace lca::cuda {

/// Everything of a model runs on one stream, one step at a time
/// (DeviceStores::turn).
struct CudaModel {
  CudaModel(const Device& on, const ModelConfig& of, const Rope& rotation, Kernels which)
      : device(on),
        config(of),
        widths(of),
        rope(rotation),
        kernels(which),
        stream(on),
        products(on) {
    const DeviceScope scope(device);
    product_scratch = Buffer(Products::kScratchBytes);
  }

  const Device& device;
  const ModelConfig& config;
  const StageWidths widths;
  const Rope& rope;
  Kernels kernels = Kernels::fast;
  Stream stream;
  Products products;
  Buffer product_scratch;
  DeviceWeights weights;
  Buffer rope_steps;  ///< [pairs], where they do not depend on the length
  std::unique_ptr<DeviceStores> stores;

  ProductSpace product_space() { return {&products, product_scratch.as<void>()}; }
  std::int64_t rope_pairs() const { return config.rope.width / 2; }
};

}  // namespace lca::cuda
