// One object for each GPU, with what has been prepared on it.

#include <gtest/gtest.h>
#include <lca/error.h>

#include <thread>

#include "cuda/support.h"

namespace lca::test {
namespace {

TEST(CudaDevice, NamesMeanOrdinals) {
  LCA_NEEDS_GPU();
  EXPECT_EQ(cuda::device_parse("cuda"), 0);
  EXPECT_EQ(cuda::device_parse("cuda:0"), 0);
  for (const char* text :
       {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 0", "cuda:99999999999"}) {
    try {
      cuda::device_parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << text;
    }
  }
}

TEST(CudaDevice, OneThatIsNotThereIsIncompatibleAndNamesThoseThatAre) {
  LCA_NEEDS_GPU();
  const int count = cuda::device_count();
  try {
    cuda::Device::at(count);
    ADD_FAILURE() << "there is one too many";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::incompatible);
    EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
  }
}

TEST(CudaDevice, IsTheSameObjectInEveryThread) {
  LCA_NEEDS_GPU();
  const cuda::Device* other = nullptr;
  std::thread([&] { other = &cuda::Device::at(0); }).join();
  EXPECT_EQ(other, &cuda::Device::at(0));
  EXPECT_EQ(gpu().ordinal, 0);
  EXPECT_GE(gpu().major, 8);
}

TEST(CudaDevice, RemembersWhatItWasAskedOncePerKernelAndKey) {
  LCA_NEEDS_GPU();
  int asked = 0;
  const auto ask = [&] { return ++asked; };
  const int here = 0;
  const int there = 0;
  EXPECT_EQ(gpu().remember(&here, 2, ask), 1);
  EXPECT_EQ(gpu().remember(&here, 2, ask), 1);
  EXPECT_EQ(gpu().remember(&here, 4, ask), 2);
  EXPECT_EQ(gpu().remember(&there, 2, ask), 3);
}

}  // namespace
}  // namespace lca::test
