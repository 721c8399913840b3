#pragma once
/// A sequence's cache between the GPU and its host form (lca::Cache), in which caches are saved,
/// forked and moved between devices. Both directions wait for the stream.

#include "attention/cuda/calls.h"

namespace lca::cuda {

/// One layer of a sequence as the host holds it. Representatives are as readers see them
/// (dequantised); bf16 values are exact in either dtype of the cache.
Cache cache_to_host(const CacheStore& store, int layer, int slot, const Queue& queue);

/// The other way: `cache` into a slot that is open, whatever it held. Float32 values are rounded to
/// bf16, representatives are quantised as the store does. Throws Error (incompatible) where the
/// cache is of another layer or has not ended its run. Call CacheStore::set_length when all layers
/// are in.
void cache_from_host(const Cache& cache, CacheStore& store, const LayerView& layer, int slot,
                     const ProductSpace& products, const Queue& queue);

}  // namespace lca::cuda
