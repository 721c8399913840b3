#pragma once
/// Times of mixtures of experts and of thin products on made-up weights. No CUDA type appears here;
/// in builds without CUDA every function throws.

#include <cstdint>
#include <vector>

namespace lca::cuda {

/// A mixture of experts and what is done with it.
struct ExpertsSetup {
  int device = 0;
  bool portable = false;
  int hidden = 2048, width = 1408, experts = 64, per_token = 6, shared = 2;
  double skew = 1;  ///< rows of the largest expert, in means; 1: as the router gives them
};

struct ExpertsTimed {
  std::int64_t rows = 0;
  int hit = 0;            ///< experts with rows, shared ones included; mean over layers
  double largest = 0;     ///< rows of the largest, in means
  double seconds = 0;     ///< everything, router and combination included
  double router = 0;      ///< logits, choice, sorting; 0: not measured apart
  double combine = 0;     ///< adding up what the experts gave
  double gate_up = 0;     ///< first product alone
  double down = 0;        ///< second product alone
  double operations = 0;  ///< of both products
  double gate_up_operations = 0;
  double bytes = 0;  ///< weights of the experts hit
};

/// `rows` rows through one layer after another, whose weights together exceed the L2 cache.
ExpertsTimed bench_experts(const ExpertsSetup& setup, std::int64_t rows);

/// Operations per second of one product rows × columns × inner through cuBLASLt, for a second.
double bench_product_rate(int device, std::int64_t rows, std::int64_t columns, std::int64_t inner);
/// Bytes per second, read and written, of a copy on the device.
double bench_copy_rate(int device);

struct ThinTimed {
  int rows = 0, columns = 0, inner = 0, batch = 1;
  double thin = 0, blas = 0;  ///< seconds
};
/// One thin product after another, with our kernel and with cuBLASLt.
ThinTimed bench_thin(int device, int rows, int columns, int inner, int batch);

}  // namespace lca::cuda
