// Strips of packed weights times many rows of activations of 15 bits, for processors that multiply
// pairs of 16-bit numbers faster than float32. Included after strip_product-inl.h. A strip's quants
// are brought to 16 bits once, [pairs of columns][16 rows][2], and stay in cache while all rows of
// activations pass; sums are added as strip_product-inl.h adds them, so a row gets the same bits
// from both. Besides, an Isa has
//   kPanelRows               rows of activations at once
//   words<kSigned>(q, pair)  columns 2·pair and 2·pair + 1 of four, as 16-bit numbers
//   add_pairs(sum, w, x)     sum + products of two neighbours
//   store_ints, load_floats

/// One strip as a panel.
template <typename Type>
struct StripPanel {
  std::int16_t* words;  ///< [columns / 2][16][2]
  float *a, *b;         ///< [columns · kScales / 32][16]

  StripPanel(void* memory, std::int64_t columns)
      : words(static_cast<std::int16_t*>(memory)),
        a(reinterpret_cast<float*>(words + columns * 16)),
        b(a + columns * Type::kScales / 32 * 16) {}

  void fill(const Byte* strip, std::int64_t blocks) {
    for (std::int64_t block = 0; block < blocks; ++block, strip += Type::kBytes) {
      [&]<int... kRun>(std::integer_sequence<int, kRun...>) {
        (run_fill<kRun>(strip, block * Type::kRuns + kRun), ...);
      }
      (std::make_integer_sequence<int, Type::kRuns>{});
    }
  }

 private:
  template <int kRun>
  void run_fill(const Byte* strip, std::int64_t run) {
#pragma GCC unroll 2
    for (int lane = 0; lane < 16; lane += Isa::kLanes) {
      const Scales<Type::kScales> scales = Type::scales(strip, kRun, lane);
#pragma GCC unroll 2
      for (int part = 0; part < Type::kScales; ++part) {
        const std::int64_t at = (run * Type::kScales + part) * 16 + lane;
        Isa::store(a + at, scales.a[part], Isa::kLanes);
        Isa::store(b + at, scales.b[part], Isa::kLanes);
      }
#pragma GCC unroll 8
      for (int group = 0; group < 8; ++group) {
        const auto q = Type::quants(strip, kRun, group, lane);
        std::int16_t* to = words + ((run * 16 + 2 * group) * 16 + lane) * 2;
        Isa::store_ints(to, Isa::template words<Type::kSigned, 0>(q));
        Isa::store_ints(to + 32, Isa::template words<Type::kSigned, 1>(q));
      }
    }
  }
};

/// kRows rows of activations, from `row` on, with one panel: sums[kRows][16]. They stay in memory,
/// where they are touched once in 32 columns: registers are for the integers.
template <typename Type, int kRows>
[[gnu::noinline]] void panel_dots(const StripPanel<Type>& panel, const WordRows& x,
                                  std::int64_t row, float* sums) {
  constexpr int kVectors = 16 / Isa::kLanes, kPairs = 16 / Type::kScales;
  const std::int64_t parts = x.blocks * Type::kScales;
  const std::int64_t width = x.blocks * 32;
  for (std::int64_t part = 0; part < parts; ++part) {
    typename Isa::Ints dot[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) dot[m][v] = Isa::no_ints();
    }
    const std::int16_t* w = panel.words + part * kPairs * 32;
    const std::int16_t* values = x.words + row * width + part * kPairs * 2;
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
      typename Isa::Ints weights[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = Isa::load_ints(w + 32 * pair + v * Isa::kLanes * 2);
      }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const auto both = Isa::two_values(values + m * width + 2 * pair);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          dot[m][v] = Isa::add_pairs(dot[m][v], weights[v], both);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const std::int64_t at = (row + m) * x.blocks + part / Type::kScales;
      const float total = Type::kScales == 1 ? x.sums[2 * at] + x.sums[2 * at + 1]
                                             : x.sums[(row + m) * x.blocks * 2 + part];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t lane = part * 16 + v * Isa::kLanes;
        float* into = sums + m * 16 + v * Isa::kLanes;
        Floats sum = part == 0 ? Isa::zero() : Isa::load_floats(into);
        sum = Isa::add_product(Isa::load_floats(panel.b + lane), Isa::all(total), sum);
        sum = Isa::add_product(Isa::to_floats(dot[m][v]),
                               Isa::times(Isa::load_floats(panel.a + lane), x.scales[at]), sum);
        Isa::store(into, sum, Isa::kLanes);
      }
    }
  }
}

template <typename Type>
void panels_of(const PackedMatrix& w, std::int64_t first, std::int64_t end, const WordRows& x,
               std::int64_t rows, float* out, std::int64_t stride, void* scratch) {
  constexpr int kRows = Isa::kPanelRows;
  const std::int64_t blocks = w.columns / (32 * Type::kRuns);
  const std::int64_t bytes = (blocks * Type::kBytes + 63) / 64 * 64;
  const auto* strip = reinterpret_cast<const Byte*>(w.data) + first / 16 * bytes;
  StripPanel<Type> panel(scratch, w.columns);
  for (std::int64_t n = first; n < end; n += 16, strip += bytes) {
    const int count = static_cast<int>(end - n >= 16 ? 16 : end - n);
    panel.fill(strip, blocks);
    alignas(64) float sums[kRows * 16];
    for (std::int64_t m = 0; m < rows;) {
      const bool all = m + kRows <= rows;
      all ? panel_dots<Type, kRows>(panel, x, m, sums) : panel_dots<Type, 1>(panel, x, m, sums);
      for (const std::int64_t end_m = m + (all ? kRows : 1); m < end_m; ++m) {
        const float* from = sums + (all ? m % kRows : 0) * 16;
        for (int r = 0; r < count; ++r) out[m * stride + n + r] = from[r];
      }
    }
  }
}

void panels_dot_of(const PackedMatrix& w, std::int64_t first, std::int64_t end, const WordRows& x,
                   std::int64_t rows, float* out, std::int64_t stride, void* scratch) {
  type_choose(w.type, [&]<typename Type>(Type) {
    panels_of<Type>(w, first, end, x, rows, out, stride, scratch);
  });
}
