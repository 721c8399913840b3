// Names of devices, in builds with and without CUDA.

#include "core/cuda/device_name.h"

#include <gtest/gtest.h>
#include <lca/error.h>

#include <string>

namespace lca::test {
namespace {

ErrorKind kind_of(std::string_view text) {
  try {
    cuda::device_parse(text);
  } catch (const Error& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.kind();
  }
  ADD_FAILURE() << text << " is a device";
  return ErrorKind::internal;
}

TEST(DeviceName, OnlyCudaAndAnOrdinalIsAGpu) {
  for (const char* text : {"", "cpu", "gpu", "CUDA", "cuda0"}) {
    EXPECT_EQ(kind_of(text), ErrorKind::bad_input) << text;
  }
}

TEST(DeviceName, AGpuThatIsNotThereIsIncompatible) {
  EXPECT_EQ(kind_of("cuda:512"), ErrorKind::incompatible);
  if (cuda::device_count() == 0) {
    EXPECT_EQ(kind_of("cuda"), ErrorKind::incompatible);
    EXPECT_FALSE(cuda::device_missing().empty());
  } else {
    EXPECT_EQ(cuda::device_parse("cuda"), 0);
    EXPECT_EQ(cuda::device_parse("cuda:0"), 0);
  }
}

}  // namespace
}  // namespace lca::test
