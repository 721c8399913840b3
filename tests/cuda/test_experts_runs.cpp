// Mixtures of experts on the GPU: the same bits every time, whatever the other rows are, and in a
// graph whose rows are written by the kernel just before.

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "cuda/experts_case.h"
#include "ops/cuda/route.h"

namespace lca::test {
namespace {

using cuda::Kernels;
using OnGpu = ExpertsProblem::ExpertsOnGpu;

ExpertsCase runs_case(std::int64_t rows) {
  ExpertsCase c = hopper_case(rows);
  c.skew = 1;
  c.seed = 900 + static_cast<std::uint64_t>(rows);
  return c;
}

bool bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CudaExpertsRuns, TwoRunsGiveTheSameBits) {
  LCA_NEEDS_GPU();
  for (const std::int64_t rows : {1, 6, 90, 1500}) {
    for (const Kernels kernels : {Kernels::fast, Kernels::portable}) {
      const ExpertsProblem problem(runs_case(rows));
      const OnGpu on_gpu(problem);
      on_gpu.run(kernels, gpu_queue());
      const std::vector<float> first = on_gpu.residual.download();
      for (int again = 0; again < 3; ++again) {
        cuda::check(cudaMemcpy(on_gpu.residual.data(), problem.residual().data(),
                               first.size() * sizeof(float), cudaMemcpyHostToDevice),
                    "resetting");
        on_gpu.run(kernels, gpu_queue());
        EXPECT_TRUE(bits_equal(on_gpu.residual.download(), first)) << rows << " rows";
      }
    }
  }
}

TEST(CudaExpertsRuns, ARowDoesNotDependOnTheOthers) {
  LCA_NEEDS_GPU();
  for (const std::int64_t rows : {90, 1500}) {  // the paths that sort
    const ExpertsProblem problem(runs_case(rows));
    const OnGpu on_gpu(problem);
    on_gpu.run(Kernels::fast, gpu_queue());
    const std::vector<float> before = on_gpu.residual.download();
    // Row 2 stays, all others get the values of row 0 or of noise.
    Random random(3);
    std::vector<bf16> x = problem.x();
    const std::size_t hidden = 256;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / hidden != 2) x[i] = i / hidden % 2 == 0 ? x[i % hidden] : bf16_of(random.normal());
    }
    cuda::check(
        cudaMemcpy(on_gpu.x.data(), x.data(), x.size() * sizeof(bf16), cudaMemcpyHostToDevice),
        "other rows");
    cuda::check(cudaMemcpy(on_gpu.residual.data(), problem.residual().data(),
                           before.size() * sizeof(float), cudaMemcpyHostToDevice),
                "resetting");
    on_gpu.run(Kernels::fast, gpu_queue());
    const std::vector<float> after = on_gpu.residual.download();
    EXPECT_EQ(std::memcmp(&before[2 * hidden], &after[2 * hidden], hidden * sizeof(float)), 0)
        << rows << " rows";
    EXPECT_FALSE(bits_equal(before, after));
  }
}

TEST(CudaExpertsRuns, AGraphSeesRowsThatTheKernelBeforeItWrites) {
  LCA_NEEDS_GPU();
  for (const std::int64_t rows : {1, 8, 90, 1500}) {
    const ExpertsProblem problem(runs_case(rows));
    const OnGpu on_gpu(problem);
    on_gpu.run(Kernels::fast, gpu_queue());
    const std::vector<float> expected = on_gpu.residual.download();

    const DeviceArray<bf16> staged(problem.x());
    const DeviceArray<float> residual(problem.residual());
    std::vector<int> numbers(static_cast<std::size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    const DeviceArray<int> source(numbers);
    const cuda::Stream stream(gpu());
    const std::size_t x_bytes = problem.x().size() * sizeof(bf16);
    const std::size_t residual_bytes = expected.size() * sizeof(float);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    cuda::check(cudaMemsetAsync(on_gpu.x.data(), 0xff, x_bytes, stream), "poison");
    cuda::check(cudaMemcpyAsync(on_gpu.residual.data(), residual.data(), residual_bytes,
                                cudaMemcpyDeviceToDevice, stream),
                "resetting");
    // This kernel lets the next one start before it has written anything.
    cuda::route_gather(staged.data(), source.data(), rows, on_gpu.shape.hidden, on_gpu.x.data(),
                       stream.queue());
    on_gpu.run(Kernels::fast, stream.queue());
    cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check(cudaGraphInstantiate(&replay, graph, 0), "a graph");
    cudaGraphDestroy(graph);
    for (int again = 0; again < 5; ++again) {
      cuda::check(cudaGraphLaunch(replay, stream), "a graph");
      stream.wait();
      EXPECT_TRUE(bits_equal(on_gpu.residual.download(), expected)) << rows << " rows";
    }
    cudaGraphExecDestroy(replay);
  }
}

}  // namespace
}  // namespace lca::test
