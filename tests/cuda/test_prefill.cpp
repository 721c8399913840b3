// Prefill attention on the GPU, both kernels, against plain loops in double precision. Cases that
// the Hopper kernel does not cover fall back to the portable one, whichever is asked for.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/prefill_problem.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

struct Widths {
  Form form;
  int heads, kv_heads, d_nope, d_rope, d_value;
};

constexpr Widths kDeepSeek{Form::mla, 2, 1, 128, 64, 128};
constexpr Widths kMiniCpm{Form::mla, 3, 1, 64, 32, 64};
constexpr Widths kQwen{Form::gqa, 7, 1, 0, 128, 128};
constexpr Widths kSmall{Form::gqa, 9, 3, 0, 64, 64};
constexpr Widths kOddMla{Form::mla, 5, 1, 20, 12, 24};
constexpr Widths kOddGqa{Form::gqa, 4, 2, 0, 48, 80};
constexpr Widths kWide{Form::gqa, 2, 1, 0, 256, 256};

PrefillCase with(const Widths& widths) {
  PrefillCase c;
  c.form = widths.form;
  c.heads = widths.heads;
  c.kv_heads = widths.kv_heads;
  c.d_nope = widths.d_nope;
  c.d_rope = widths.d_rope;
  c.d_value = widths.d_value;
  return c;
}

/// True where both kernels are right.
bool right(const PrefillCase& c, bool captured = false) {
  PrefillProblem problem(c);
  bool fine = true;
  for (const cuda::Kernels kernels : {cuda::Kernels::portable, cuda::Kernels::fast}) {
    const std::string wrong = problem.wrong(kernels, captured);
    if (wrong.empty()) continue;
    ADD_FAILURE() << (kernels == cuda::Kernels::fast ? "fast: " : "portable: ") << c.describe()
                  << "\n"
                  << wrong;
    fine = false;
  }
  return fine;
}

constexpr MethodKind kMethods[] = {MethodKind::lca, MethodKind::lca, MethodKind::dense,
                                   MethodKind::lca, MethodKind::window};
constexpr std::int64_t kGroups[] = {4, 8, 16, 32, 3};
constexpr std::int64_t kWindows[] = {16, 128, 1, 130, 200};
constexpr std::int64_t kSinks[] = {0, 5, 16, 150};

TEST(CudaPrefill, FollowsTheLawAtEveryWidthAndLength) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 0;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kQwen, kSmall, kOddMla, kOddGqa, kWide}) {
    int failures = 0;
    for (const std::int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 200, 333, 500, 1000}) {
      PrefillCase c = with(widths);
      c.seed = number++;
      c.layout = layout_of(kMethods[number % 5], kGroups[number % 5], kWindows[number / 2 % 5],
                           kSinks[number % 4]);
      c.runs = {{0, length}};
      c.sample = 48;
      if (!right(c) && ++failures == 3) break;  // enough to see what is wrong with this width
    }
  }
}

TEST(CudaPrefill, FollowsTheLawForEveryGroupWindowAndSink) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 1000;
  int failures = 0;
  for (const std::int64_t g : kGroups) {
    for (const std::int64_t w : kWindows) {
      for (const std::int64_t sink : kSinks) {
        for (const MethodKind method : {MethodKind::lca, MethodKind::window}) {
          if (method == MethodKind::window && g != 16) continue;
          PrefillCase c = with(number % 2 == 0 ? kDeepSeek : Widths{Form::gqa, 2, 1, 0, 128, 128});
          c.seed = number++;
          c.layout = layout_of(method, g, w, sink);
          c.runs = {{0, sink + w + g + 40 + static_cast<std::int64_t>(number % 97)}};
          c.sample = 64;
          if (!right(c) && ++failures == 6) return;
        }
      }
    }
  }
}

/// Plain frequencies for all channels of the key, or for `pairs` of them.
Rotation rotation_for(const Widths& widths, std::uint64_t number, std::int64_t pairs = 0) {
  Rotation rotation = rotation_plain(pairs > 0 ? 2 * pairs : widths.d_rope, 100);
  rotation.layout = number % 2 == 0 ? RopeLayout::halves : RopeLayout::adjacent;
  return rotation;
}

TEST(CudaPrefill, EntryPositionsFollowTheLawAtEveryWidthAndLength) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 100;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kQwen, kSmall, kOddMla, kOddGqa, kWide}) {
    int failures = 0;
    for (const std::int64_t length : {2, 64, 127, 129, 200, 333, 500, 1000}) {
      PrefillCase c = with(widths);
      c.seed = number++;
      c.layout = layout_of(kMethods[number % 5], kGroups[number % 5], kWindows[number / 2 % 5],
                           kSinks[number % 4]);
      c.rotation = rotation_for(widths, number / 2, number % 3 == 0 ? widths.d_rope / 2 - 3 : 0);
      c.runs = {{0, length}};
      c.sample = 48;
      if (!right(c) && ++failures == 3) break;
    }
  }
}

TEST(CudaPrefill, EntryPositionsFollowTheLawForEveryGroupWindowAndSink) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 1300;
  int failures = 0;
  for (const std::int64_t g : {2, 16, 33}) {
    for (const std::int64_t w : {1, 7, 100, 128}) {
      for (const std::int64_t sink : {0, 4, 16, 150, 300}) {
        for (const MethodKind method : {MethodKind::lca, MethodKind::window}) {
          if (method == MethodKind::window && g != 16) continue;
          const Widths widths = number % 2 == 0 ? kDeepSeek : Widths{Form::gqa, 2, 1, 0, 128, 128};
          PrefillCase c = with(widths);
          c.seed = number++;
          c.layout = layout_of(method, g, w, sink);
          c.rotation = rotation_for(widths, number);
          // One run from the start, where the sink leaves the window inside a tile, one far behind.
          c.runs = {{0, sink + w + g + 40 + static_cast<std::int64_t>(number % 97)},
                    {sink + w + 5 * g + 333, 70}};
          c.bias = number % 3 == 0 ? Bias::each : Bias::none;
          c.sample = 48;
          if (!right(c) && ++failures == 6) return;
        }
      }
    }
  }
}

TEST(CudaPrefill, EntryPositionsEqualTokenPositionsBitForBitWhereNothingIsDropped) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 1500;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kQwen, kSmall, kOddMla}) {
    for (const std::int64_t sink : {0, 5, 150}) {
      for (const std::int64_t length : {100, 260, 420}) {
        PrefillCase c = with(widths);
        c.seed = number++;
        c.layout = layout_of(number % 4 == 0 ? MethodKind::window : MethodKind::lca, 16, 100, sink);
        c.rotation = rotation_for(widths, number);
        c.runs = {{0, length}};
        c.sample = 1;
        PrefillProblem problem(c);
        for (const cuda::Kernels kernels : {cuda::Kernels::portable, cuda::Kernels::fast}) {
          std::int64_t rows = 0;
          EXPECT_EQ(problem.unrotated_wrong(kernels, rows), "") << c.describe();
          EXPECT_GE(rows, std::min(length, sink + 100));
        }
      }
    }
  }
}

// What float32 angles would miss by a tenth of a turn.
TEST(CudaPrefill, EntryPositionsAreExactTwoMillionTokensIn) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 1600;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kQwen, kSmall, kOddGqa}) {
    for (const std::int64_t first : {(1 << 20) + 77, (1 << 21) - 90}) {
      for (const MethodKind method : {MethodKind::window, MethodKind::lca}) {
        PrefillCase c = with(widths);
        c.heads = c.form == Form::gqa ? c.kv_heads : 2;
        c.seed = number++;
        c.layout = layout_of(method, 4096, 64, 16);
        c.rotation = rotation_plain(widths.d_rope);
        c.rotation.layout = number % 4 < 2 ? RopeLayout::halves : RopeLayout::adjacent;
        c.runs = {{first, 150}};
        c.sample = 40;
        right(c);
      }
    }
  }
}

TEST(CudaPrefill, ContinuesADocumentWhoseCondensedTokensAreGone) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 2000;
  int failures = 0;
  for (const Widths& widths : {kDeepSeek, kQwen, kMiniCpm, kOddMla}) {
    for (const std::int64_t first : {1, 17, 64, 150, 299, 640}) {
      for (const std::int64_t count : {1, 64, 100, 193}) {
        PrefillCase c = with(widths);
        c.heads = c.form == Form::gqa ? 2 : c.heads;
        c.seed = number++;
        c.layout = layout_of(kMethods[number % 5], kGroups[number / 2 % 5], kWindows[number % 5],
                             kSinks[number / 3 % 4]);
        c.runs = {{first, count}};
        c.sample = 40;
        if (!right(c) && ++failures == 6) return;
      }
    }
  }
}

TEST(CudaPrefill, TakesBatchesOfDifferentLengths) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 3000;
  for (const Widths& widths : {kDeepSeek, kQwen, kSmall, kOddGqa}) {
    for (const std::int64_t sink : kSinks) {
      PrefillCase c = with(widths);
      c.seed = number++;
      c.layout = layout_of(MethodKind::lca, kGroups[number % 5], kWindows[number % 5], sink);
      c.runs = {{0, 130}, {211, 75}, {0, 1}};
      c.bias = number % 2 == 0 ? Bias::each : Bias::constant;
      c.sample = 60;
      right(c);
    }
  }
}

TEST(CudaPrefill, KeepsPackedDocumentsApart) {
  LCA_NEEDS_GPU();
  for (std::uint64_t number = 0; number < 8; ++number) {
    PrefillCase c = with(number % 2 == 0 ? kDeepSeek : kOddMla);
    c.seed = 4000 + number;
    c.layout =
        layout_of(MethodKind::lca, kGroups[number % 5], number < 4 ? 16 : 33, kSinks[number % 3]);
    c.spare = 0;
    c.runs = {{0, 100}, {0, 1}, {0, 257}, {0, 64}, {0, 31}};
    // Every document counts from 0.
    if (number >= 4) c.rotation = rotation_for(number % 2 == 0 ? kDeepSeek : kOddMla, number / 2);
    c.bias = number % 3 == 0 ? Bias::each : Bias::none;
    c.sample = 80;
    right(c);
  }
}

TEST(CudaPrefill, TakesMoreRunsThanALaunchCarries) {
  LCA_NEEDS_GPU();
  for (const Widths& widths : {kDeepSeek, kMiniCpm}) {
    PrefillCase c = with(widths);
    c.seed = 4100;
    c.layout = layout_of(MethodKind::lca, 4, 8, 2);
    for (std::int64_t i = 0; i < 150; ++i) c.runs.push_back({i % 7 * 5, 1 + i * 13 % 40});
    c.runs.push_back({0, 0});  // nothing to do
    c.runs.push_back({0, 140});
    right(c);
  }
}

TEST(CudaPrefill, CapturedCallsKeepAnyNumberOfRuns) {
  LCA_NEEDS_GPU();
  for (const Widths& widths : {kDeepSeek, kMiniCpm}) {
    PrefillCase c = with(widths);
    c.seed = 4100;
    c.layout = layout_of(MethodKind::lca, 4, 8, 2);
    for (std::int64_t i = 0; i < 150; ++i) c.runs.push_back({i % 7 * 5, 1 + i * 13 % 40});
    c.runs.push_back({0, 0});  // nothing to do
    c.runs.push_back({0, 140});
    right(c, true);
  }
}

TEST(CudaPrefill, AddsTheBiasOfEachRepresentative) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 5000;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kQwen, kSmall, kOddMla, kOddGqa}) {
    for (const Bias bias : {Bias::none, Bias::constant, Bias::each}) {
      PrefillCase c = with(widths);
      c.seed = number++;
      c.layout = layout_of(MethodKind::lca, 3, 20, 5);
      c.runs = {{0, 300}};
      c.bias = bias;
      c.lse = bias != Bias::constant;
      c.sharpness = 3;
      c.sample = 50;
      right(c);
    }
  }
}

TEST(CudaPrefill, ReadsViewsIntoLargerTensors) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 6000;
  for (const Widths& widths : {kDeepSeek, kMiniCpm, kOddMla, kQwen}) {
    for (const std::int64_t shift : {0, 8, 1}) {  // aligned as it should be, barely, and not
      PrefillCase c = with(widths);
      c.seed = number++;
      c.layout = layout_of(MethodKind::lca, 16, 64, 16);
      c.runs = {{0, 333}, {120, 70}};
      c.fused = true;
      c.shift = shift;
      c.bias = shift == 0 ? Bias::each : Bias::none;
      c.sample = 60;
      right(c);
    }
  }
}

TEST(CudaPrefill, HoldsForRandomProblems) {
  LCA_NEEDS_GPU();
  int failures = 0;
  for (std::uint64_t seed = 0; seed < 200 && failures < 8; ++seed) {
    Random random(seed + 9000);
    PrefillCase c = with(random.pick({kDeepSeek, kMiniCpm, kQwen, kSmall, kOddMla, kOddGqa}));
    c.seed = seed;
    if (random.chance(0.2)) {
      c.heads = 2;
      c.kv_heads = c.form == Form::gqa ? static_cast<int>(random.integer(1, 2)) : 1;
      c.d_nope = static_cast<int>(random.integer(1, 100));
      c.d_rope = static_cast<int>(random.integer(1, 130));
      c.d_value = static_cast<int>(random.integer(1, 200));
    }
    c.layout = layout_of(random.pick({MethodKind::lca, MethodKind::lca, MethodKind::lca,
                                      MethodKind::dense, MethodKind::window}),
                         random.integer(1, 40), random.integer(1, 150),
                         random.chance(0.4) ? 0 : random.integer(0, 140));
    const std::int64_t runs = random.integer(1, 3);
    for (std::int64_t i = 0; i < runs; ++i) {
      c.runs.push_back({random.chance(0.5) ? 0 : random.integer(1, 400), random.integer(1, 300)});
    }
    c.bias = random.pick({Bias::none, Bias::constant, Bias::each});
    c.lse = random.chance(0.8);
    c.fused = random.chance(0.5);
    c.spare = random.pick<std::int64_t>({0, 1, 5});
    c.shift = random.pick<std::int64_t>({0, 0, 0, 8, 3});
    c.sharpness = random.pick({0.3, 1.0, 4.0});
    c.sample = 16;
    if (c.d_rope > 1 && random.chance(0.5)) c.rotation = random_rotation(random, c.d_rope);
    if (!right(c)) ++failures;
  }
}

TEST(CudaPrefill, HoldsForALongDocument) {
  LCA_NEEDS_GPU();
  for (const Widths& widths : {kDeepSeek, Widths{Form::gqa, 2, 1, 0, 128, 128}}) {
    PrefillCase c = with(widths);
    c.seed = 31;
    c.layout = layout_of(MethodKind::lca, 16, 1024, 16);
    c.runs = {{0, 4096}};
    c.bias = Bias::each;
    c.sample = 64;
    right(c);
  }
}

}  // namespace
}  // namespace lca::test
