#pragma once
/// What decode is tested with: a shape for each kernel and way of sharing heads, and both kinds of
/// positions.

#include <initializer_list>
#include <string>
#include <vector>

#include "attention/rotate.h"
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

inline constexpr std::initializer_list<std::size_t> kAllShapes = {0, 1, 2, 3, 4, 5, 6, 7};

/// Entry positions: both layouts, and now and then a part of the channels alone.
inline Rotation rotation_for(const AttentionShape& shape, std::uint64_t number) {
  const std::int64_t width = shape.d_positional();
  Rotation rotation = rotation_plain(number % 3 == 2 ? width - 6 : width, 50);
  rotation.layout = number % 2 == 0 ? RopeLayout::halves : RopeLayout::adjacent;
  return rotation;
}

/// The case's next seed, and with entry positions a rotation of its own.
inline void case_next(DecodeCase& c, Positions positions) {
  ++c.seed;
  c.rotation = positions == Positions::entry ? rotation_for(c.shape, c.seed) : Rotation{};
}

/// Runs it with both kinds of kernels; stops at the first step that is wrong.
inline void expect_right(DecodeCase c) {
  for (const Kernels kernels : {Kernels::fast, Kernels::portable}) {
    c.kernels = kernels;
    DecodeRun run(c);
    if (!run.go()) return;
  }
}

/// The same for some shapes, each with a seed of its own.
inline void expect_right(DecodeCase c, Positions positions,
                         std::initializer_list<std::size_t> which) {
  const std::string name = c.name;
  for (const std::size_t i : which) {
    c.name = name + ", " + shapes()[i].name;
    c.shape = shapes()[i].shape;
    case_next(c, positions);
    expect_right(c);
  }
}

}  // namespace lca::test
