#pragma once
/// The shapes that decode is tested with: one for each kernel and way of sharing heads.

#include <string>
#include <vector>

#include "cuda/decode_run.h"

namespace lca::test {

struct Shaped {
  const char* name;
  AttentionShape shape;
};

inline const std::vector<Shaped>& shapes() {
  static const std::vector<Shaped> all = {
      {"mla 16 x 512+64", AttentionShape::mla(16, 128, 64, 512, 128)},
      {"mla 20 x 512+64", AttentionShape::mla(20, 128, 64, 512, 128)},
      {"mla 40 x 256+32", AttentionShape::mla(40, 64, 32, 256, 64)},
      {"mla 5 x 40+12", AttentionShape::mla(5, 8, 12, 40, 16)},
      {"gqa 28/4 x 128", AttentionShape::gqa(28, 4, 128, 128)},
      {"gqa 9/3 x 64", AttentionShape::gqa(9, 3, 64, 64)},
      {"gqa 20/1 x 64", AttentionShape::gqa(20, 1, 64, 64)},
      {"gqa 6/2 x 20, 12", AttentionShape::gqa(6, 2, 20, 12)},
  };
  return all;
}

/// Runs it with both kinds of kernels; stops at the first step that is wrong.
inline void expect_right(DecodeCase c) {
  for (const Kernels kernels : {Kernels::fast, Kernels::portable}) {
    c.kernels = kernels;
    DecodeRun run(c);
    if (!run.go()) return;
  }
}

inline void expect_right_everywhere(DecodeCase c) {
  const std::string name = c.name;
  for (const Shaped& shaped : shapes()) {
    c.name = name + ", " + shaped.name;
    c.shape = shaped.shape;
    ++c.seed;
    expect_right(c);
  }
}

}  // namespace lca::test
