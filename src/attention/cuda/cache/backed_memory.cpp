#include "attention/cuda/cache/backed_memory.h"

#include <algorithm>
#include <utility>

#include "core/cuda/memory.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// The driver's functions for addresses and memory, found at run time: the library does not link
/// the driver.
struct AddressDriver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;

  AddressDriver() {
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", access);
    find("cuMemGetAllocationGranularity", granularity);
  }

  template <typename Function>
  static void find(const char* name, Function& function) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
          "asking the driver for virtual memory");
    if (found != cudaDriverEntryPointSuccess) {
      fail_internal("the GPU driver has no {}; update it", name);
    }
    function = reinterpret_cast<Function>(entry);
  }

  static const AddressDriver& get() {
    static const AddressDriver driver;
    return driver;
  }
};

CUmemAllocationProp memory_kind(int device) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = device;
  return kind;
}

void driver_check(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  check(static_cast<cudaError_t>(result), doing);  // the driver's numbers are the runtime's
}

}  // namespace

BackedMemory::BackedMemory(const Device& device, std::size_t bytes)
    : device_(device.ordinal), bytes_(bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  const AddressDriver& driver = AddressDriver::get();
  const CUmemAllocationProp kind = memory_kind(device_);
  driver_check(driver.granularity(&granule_, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "asking for the size of pages");
  reserved_ = (bytes + granule_ - 1) / granule_ * granule_;
  driver_check(driver.reserve(&base_, reserved_, 0, 0, 0), "reserving GPU addresses");
}

BackedMemory::~BackedMemory() {
  if (reserved_ == 0) return;
  for (const auto& [granule, held] : granules_) {
    AddressDriver::get().unmap(base_ + granule * granule_, granule_);
    AddressDriver::get().release(held.memory);
    memory_count(-static_cast<std::ptrdiff_t>(granule_));
  }
  AddressDriver::get().free(base_, reserved_);
}

void BackedMemory::swap(BackedMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_, other.reserved_);
  std::swap(granule_, other.granule_);
  std::swap(granules_, other.granules_);
}

BackedMemory::Span BackedMemory::span_of(std::size_t begin, std::size_t bytes) const {
  const std::size_t end = std::min(begin + bytes, bytes_);
  if (bytes == 0 || begin >= end) return {0, 0};
  return {begin / granule_, (end + granule_ - 1) / granule_};
}

std::size_t BackedMemory::missing(std::size_t begin, std::size_t bytes) const {
  std::size_t next = 0;
  return missing_after(next, begin, bytes);
}

std::size_t BackedMemory::missing_after(std::size_t& next, std::size_t begin,
                                        std::size_t bytes) const {
  const Span span = span_of(begin, bytes);
  std::size_t count = 0;
  for (std::size_t i = std::max(span.first, next); i < span.end; ++i) {
    count += granules_.contains(i) ? 0 : 1;
  }
  next = std::max(next, span.end);
  return count * granule_;
}

bool BackedMemory::last_holder(std::size_t begin, std::size_t bytes) const {
  const Span span = span_of(begin, bytes);
  for (std::size_t i = span.first; i < span.end; ++i) {
    if (granules_.at(i).holders == 1) return true;
  }
  return false;
}

/// One more holder of a granule, which gets memory if it has none; returns whether it got some.
/// `needed` bytes are asked for in all.
bool BackedMemory::granule_hold(std::size_t index, std::size_t needed) {
  const auto [found, fresh] = granules_.try_emplace(index);
  Granule& granule = found->second;
  if (fresh) {
    const AddressDriver& driver = AddressDriver::get();
    const CUmemAllocationProp kind = memory_kind(device_);
    CUresult result = driver.create(&granule.memory, granule_, &kind, 0);
    if (result == CUDA_SUCCESS) {
      result = driver.map(base_ + index * granule_, granule_, 0, granule.memory, 0);
      if (result != CUDA_SUCCESS) driver.release(granule.memory);
    }
    if (result != CUDA_SUCCESS) {
      granules_.erase(found);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) memory_lacks(static_cast<double>(needed), "a cache");
      driver_check(result, "allocating a cache");
    }
    memory_count(static_cast<std::ptrdiff_t>(granule_));
  }
  ++granule.holders;
  return fresh;
}

void BackedMemory::hold(std::size_t begin, std::size_t bytes, const cudaStream_t* poison) {
  CUmemAccessDesc access{};
  access.location = memory_kind(device_).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const Span span = span_of(begin, bytes);
  const std::size_t needed = missing(begin, bytes);
  std::size_t at = span.first;
  // Granules in a row become accessible together: asking takes longer than doing.
  std::size_t fresh = 0;
  const auto fresh_open = [&](std::size_t end) {
    if (fresh == 0) return;
    const std::size_t first = (end - fresh) * granule_;
    driver_check(AddressDriver::get().access(base_ + first, fresh * granule_, &access, 1),
                 "giving a cache its addresses");
    if (poison != nullptr) {
      check(cudaMemsetAsync(as<char>() + first, 0xff, fresh * granule_, *poison),
            "filling GPU memory");
    }
    fresh = 0;
  };
  try {
    while (at < span.end) {
      const bool got = granule_hold(at++, needed);
      if (got) {
        ++fresh;
      } else {
        fresh_open(at - 1);
      }
    }
    fresh_open(at);
  } catch (...) {
    for (std::size_t i = span.first; i < at; ++i) release(i);
    throw;
  }
}

void BackedMemory::release(std::size_t granule) noexcept {
  const auto found = granules_.find(granule);
  if (found == granules_.end() || --found->second.holders > 0) return;
  AddressDriver::get().unmap(base_ + granule * granule_, granule_);
  AddressDriver::get().release(found->second.memory);
  granules_.erase(found);
  memory_count(-static_cast<std::ptrdiff_t>(granule_));
}

void BackedMemory::drop(std::size_t begin, std::size_t bytes) noexcept {
  const Span span = span_of(begin, bytes);
  for (std::size_t i = span.first; i < span.end; ++i) release(i);
}

}  // namespace lca::cuda
