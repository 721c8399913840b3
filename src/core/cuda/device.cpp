#include "core/cuda/device.h"

#include <charconv>
#include <memory>

#include "core/error.h"

namespace lca::cuda {

namespace {

/// Errors after which every call of this process on that GPU fails.
bool error_stays(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky ends here
  if (error_stays(status)) {
    fail_internal(
        "{}: the GPU failed ({}); sessions on it are lost, and this process cannot use it any "
        "more: start again, or use the CPU",
        doing, cudaGetErrorString(status));
  }
  if (status == cudaErrorMemoryAllocation) {
    fail_memory("{}: the GPU's memory is full; use a shorter context or a smaller batch", doing);
  }
  fail_internal("{}: CUDA reports: {}", doing, cudaGetErrorString(status));
}

namespace {

/// GPUs, or why there are none.
struct Count {
  int devices = 0;
  std::string missing;

  Count() {
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0) return;
    cudaGetLastError();
    devices = 0;
    missing = fmt::format("no NVIDIA GPU can be used here ({}); use the CPU",
                          status == cudaSuccess ? "none found" : cudaGetErrorString(status));
  }
};

}  // namespace

/// All GPUs that were asked for, by ordinal.
struct DeviceTable {
  std::mutex lock;
  std::map<int, std::unique_ptr<Device>> devices;

  static DeviceTable& all() {
    static DeviceTable table;
    return table;
  }

  const Device& find(int ordinal) {
    const std::lock_guard hold(lock);
    std::unique_ptr<Device>& found = devices[ordinal];
    if (found) return *found;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU can do");
    found.reset(new Device);
    found->ordinal = ordinal;
    found->name = properties.name;
    found->major = properties.major;
    found->minor = properties.minor;
    found->multiprocessors = properties.multiProcessorCount;
    found->memory = properties.totalGlobalMem;
    found->cache = static_cast<std::size_t>(properties.l2CacheSize);
    found->shared_bytes = properties.sharedMemPerBlockOptin;
    return *found;
  }
};

int device_count() { return Count().devices; }

std::string device_missing(int ordinal) {
  const Count count;
  if (count.devices == 0) return count.missing;
  if (ordinal < 0 || ordinal >= count.devices) {
    return fmt::format(
        "there is no GPU cuda:{}; this machine has {} ({})", ordinal, count.devices,
        count.devices == 1 ? "cuda:0" : fmt::format("cuda:0 to cuda:{}", count.devices - 1));
  }
  const Device& device = DeviceTable::all().find(ordinal);
  if (device.major >= 8) return {};
  return fmt::format(
      "the GPU {} (compute capability {}.{}) is too old: the kernels need 8.0; use the CPU",
      device.name, device.major, device.minor);
}

int device_parse(std::string_view text) {
  int ordinal = 0;
  constexpr std::string_view kName = "cuda";
  bool valid = text.starts_with(kName);
  if (valid && text != kName) {
    const char* const end = text.data() + text.size();
    const char* const digits = text.data() + kName.size() + 1;
    const auto [stop, error] = digits <= end ? std::from_chars(digits, end, ordinal)
                                             : std::from_chars_result{end, std::errc{}};
    valid = text[kName.size()] == ':' && digits < end && *digits != '-' && stop == end &&
            error == std::errc{};
  }
  if (!valid) fail_input("no device is called '{}'; a GPU is cuda, or cuda:N counted from 0", text);
  if (const std::string missing = device_missing(ordinal); !missing.empty()) {
    fail_incompatible("{}", missing);
  }
  return ordinal;
}

const Device& Device::at(int ordinal) {
  if (const std::string missing = device_missing(ordinal); !missing.empty()) {
    fail_incompatible("{}", missing);
  }
  return DeviceTable::all().find(ordinal);
}

void Device::select() const { check(cudaSetDevice(ordinal), "selecting the GPU"); }

void Device::shared_allow(const void* kernel, std::size_t bytes) const {
  const std::lock_guard hold(lock_);
  std::size_t& allowed = allowed_[kernel];
  if (bytes <= allowed) return;
  const DeviceScope scope(*this);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "allowing a kernel its shared memory");
  allowed = bytes;
}

int Device::remember(const void* kernel, int key, const std::function<int()>& ask) const {
  {
    const std::lock_guard hold(lock_);
    const auto known = remembered_.find({kernel, key});
    if (known != remembered_.end()) return known->second;
  }
  const int value = ask();  // may call shared_allow, which locks
  const std::lock_guard hold(lock_);
  return remembered_[{kernel, key}] = value;
}

DeviceScope::DeviceScope(const Device& device) {
  check(cudaGetDevice(&before_), "asking for the current GPU");
  device.select();  // even if it is current: a new thread has no context until it selects
}

DeviceScope::~DeviceScope() { cudaSetDevice(before_); }

}  // namespace lca::cuda
