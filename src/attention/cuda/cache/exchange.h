#pragma once
/// A sequence's cache between the GPU and its host form (lca::Cache), in which caches are saved,
/// forked and moved between devices. Both directions wait for the stream.

#include "attention/cuda/calls.h"

namespace lca::cuda {

/// One layer of a sequence or mark as the host holds it. Representatives are as readers see them
/// (dequantised); bf16 values are exact in either dtype of the cache.
Cache cache_to_host(const CacheStore& store, int layer, const HeldCache& held, const Queue& queue);

/// What of a host cache is written.
enum class HostPart { all, window };  ///< `window`: everything but representatives

/// Throws Error (incompatible) where the cache is of another layer, or has not ended its run.
void cache_from_host_check(const Cache& cache, const LayerSpec& spec);

/// The other way, into memory that is there for its length (CacheSequence::replace). Float32 values
/// are rounded to bf16, representatives are quantised as the store does.
void cache_from_host(const Cache& cache, const LayerView& layer, const HeldCache& held,
                     HostPart part, const ProductSpace& products, const Queue& queue);

/// The first position whose query one of the layers has; layers that keep fewer queries need fewer.
std::int64_t host_queries_first(std::span<const Cache> caches);

}  // namespace lca::cuda
