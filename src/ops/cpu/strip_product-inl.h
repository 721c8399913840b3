// Strips of packed weights times activations of 15 bits. Included by a file for one instruction
// set, inside its unnamed namespace, after struct Isa. Every run of 32 weights is brought to the
// form w = a·q + b:
//
//   Σ w·x = s · a · Σ q·x̂ + b · Σ x     x = s·x̂, x̂ = 128·high + low; Σ x made once per row of x
//
// Q6_K has a and b for each 16 weights. An Isa has
//   kLanes            rows of a strip in one vector, four columns of each
//   kSignedBytes      whether bytes are multiplied as they are, signed, or moved by 128
//   Bytes, Floats     vectors
//   load, low_bits, high_bits, fifth, merge, down, exclusive_or, bits_and    quants
//   halves, bytes, signed_bytes, and so on            scales, as float32
//   Accumulator<kLargest, kSigned>                    Σ q·x̂ of |q| ≤ kLargest
//
// Bound by memory for one row of x (4 to 8.5 bits a weight, read once), by products from two or
// four on.

using Byte = std::uint8_t;
using Floats = Isa::Floats;

// A type says what a block is: kRuns of 32 columns, kScales for each, kBytes, and where scales and
// quants are.

/// How many bytes ahead of what is read are prefetched. Processors foresee a stream within a page
/// of 4 KiB, and some too late: a Xeon with AMX reads twice as fast with one thread.
constexpr int kAhead = 8192;

/// a and b of a run, for each of its scales.
template <int kScales>
struct Scales {
  Floats a[kScales], b[kScales];
};

/// Q4_0 … Q8_0: headers, fifth bits, quants.
template <bool kMinimums, bool kFifth, bool kWide, int kOffset>
struct Plain {
  static constexpr int kRuns = 1, kScales = 1;
  static constexpr int kFifthAt = kMinimums ? 64 : 32;
  static constexpr int kQuantsAt = kFifthAt + (kFifth ? 64 : 0);
  static constexpr int kBytes = kQuantsAt + (kWide ? 512 : 256);
  static constexpr bool kSigned = kWide && Isa::kSignedBytes;
  static constexpr int kLargest = kWide ? 128 : kFifth ? 31 : 15;

  [[gnu::always_inline]] static Scales<1> scales(const Byte* block, int, int lane) {
    const Floats a = Isa::halves(block + 2 * lane);
    if constexpr (kMinimums) return {{a}, {Isa::halves(block + 32 + 2 * lane)}};
    return {{a}, {Isa::times(a, kSigned ? 0.0F : -static_cast<float>(kOffset))}};
  }
  static Isa::Bytes quants(const Byte* block, int, int group, int lane) {
    if constexpr (kWide) {
      return Isa::wide(Isa::load(block + kQuantsAt + 64 * group + 4 * lane));
    }
    const auto both = Isa::load(block + kQuantsAt + 64 * (group % 4) + 4 * lane);
    const auto q = group < 4 ? Isa::low_bits(both) : Isa::high_bits(both);
    if constexpr (kFifth) return Isa::merge(q, Isa::fifth(block + kFifthAt + 8 * group, lane));
    return q;
  }
};

/// Four columns of a run that shares its bytes with others; the words are 8 groups · 64 bytes each.
inline Isa::Bytes woven(const Weave& weave, const Byte* words, int run) {
  const auto& parts = weave.parts[static_cast<std::size_t>(run)];
  const auto part = [&](int i) {
    const auto& from = parts[static_cast<std::size_t>(i)];
    const auto bytes = Isa::load(words + 512 * from.word);
    return from.down == 0 ? bytes : Isa::down(bytes, from.down);
  };
  auto q = part(0);
  if (parts[1].gives != 0) q = Isa::exclusive_or(q, part(1));
  if (parts[2].gives != 0) q = Isa::exclusive_or(q, part(2));
  return Isa::bits_and(q, (1 << weave.bits) - 1);
}

/// Q4_K and Q5_K: scales and minimums of eight runs in 6 bits.
template <bool kFifth>
struct KRuns {
  static constexpr int kRuns = 8, kScales = 1;
  static constexpr int kQuantsAt = 64 + 12 * 16;
  static constexpr int kBytes = kQuantsAt + (kFifth ? 5 * 512 : 4 * 512);
  static constexpr bool kSigned = false;
  static constexpr int kLargest = kFifth ? 31 : 15;

  [[gnu::always_inline]] static Scales<1> scales(const Byte* block, int run, int lane) {
    const auto packed = [&](int at) { return Isa::bytes(block + 64 + 16 * at + lane); };
    const auto scale = run < 4 ? Isa::ints_and(packed(run), 63)
                               : Isa::ints_join(Isa::ints_and(packed(run + 4), 15),
                                                Isa::ints_high(packed(run - 4), 6));
    const auto least = run < 4 ? Isa::ints_and(packed(run + 4), 63)
                               : Isa::ints_join(Isa::ints_high(packed(run + 4), 4),
                                                Isa::ints_high(packed(run), 6));
    return {{Isa::product(Isa::halves(block + 2 * lane), Isa::to_floats(scale))},
            {Isa::times(Isa::product(Isa::halves(block + 32 + 2 * lane), Isa::to_floats(least)),
                        -1.0F)}};
  }
  static Isa::Bytes quants(const Byte* block, int run, int group, int lane) {
    const Byte* words = block + kQuantsAt + 64 * group + 4 * lane;
    if constexpr (kFifth) return woven(kFiveBits, words, run);
    const auto both = Isa::load(words + 512 * (run / 2));
    return run % 2 == 0 ? Isa::low_bits(both) : Isa::high_bits(both);
  }
};

/// Q6_K: two scales a run; the four runs of each half of 128 columns share their bytes.
struct K6 {
  static constexpr int kRuns = 8, kScales = 2;
  static constexpr int kScalesAt = 32;
  static constexpr int kHalvesAt = kScalesAt + 16 * 16;
  static constexpr int kHalfBytes = 3 * 512;
  static constexpr int kBytes = kHalvesAt + 2 * kHalfBytes;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 63;

  [[gnu::always_inline]] static Scales<2> scales(const Byte* block, int run, int lane) {
    const Floats whole = Isa::halves(block + 2 * lane);
    const auto a = [&](int at) {
      const auto scale = Isa::signed_bytes(block + kScalesAt + 16 * (2 * run + at) + lane);
      return Isa::product(whole, Isa::to_floats(scale));
    };
    const Floats a0 = a(0), a1 = a(1);
    return {{a0, a1}, {Isa::times(a0, -32.0F), Isa::times(a1, -32.0F)}};
  }
  static Isa::Bytes quants(const Byte* block, int run, int group, int lane) {
    const Byte* words = block + kHalvesAt + kHalfBytes * (run / 4) + 64 * group + 4 * lane;
    return woven(kSixBits, words, run % 4);
  }
};

/// One run of 32 columns, `kRun` of block `block`; sum[vector][row of activations].
template <typename Type, int kRun, int kRows>
inline void run_dots(const Byte* strip, std::int64_t block, const QuantisedRows& x,
                     std::int64_t row, Floats (&sum)[16 / Isa::kLanes][kRows]) {
  constexpr int kGroups = 8 / Type::kScales;  // of four columns
  const std::int64_t first = row * x.blocks + block * Type::kRuns + kRun;
  constexpr int kLines = (Type::kBytes + 63) / 64;
#pragma GCC unroll 8
  for (int line = kLines * kRun / Type::kRuns; line < kLines * (kRun + 1) / Type::kRuns; ++line) {
    __builtin_prefetch(strip + kAhead + 64 * line, 0, 2);
  }
  // Code for one vector of four lanes serves all four: copies would make half a megabyte of it.
#pragma GCC unroll(Isa::kLanes >= 8 ? 2 : 1)
  for (int vector = 0; vector < 16 / Isa::kLanes; ++vector) {
    const int lane = vector * Isa::kLanes;
    const Scales<Type::kScales> scales = Type::scales(strip, kRun, lane);
#pragma GCC unroll 2
    for (int part = 0; part < Type::kScales; ++part) {
      typename Isa::template Accumulator<Type::kLargest, Type::kSigned> dot[kRows];
#pragma GCC unroll 8
      for (int step = 0; step < kGroups; ++step) {
        const int group = part * kGroups + step;
        const auto q = Type::quants(strip, kRun, group, lane);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const std::int64_t at = (first + m * x.blocks) * 32 + 4 * group;
          dot[m].add(step, q, x.high + at, x.low + at);
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const std::int64_t at = first + m * x.blocks;
        const float total =
            Type::kScales == 1 ? x.sums[2 * at] + x.sums[2 * at + 1] : x.sums[2 * at + part];
        Floats& into = sum[vector][m];
        into = Isa::add_product(scales.b[part], Isa::all(total), into);
        into = Isa::add_product(Isa::to_floats(dot[m].total()),
                                Isa::times(scales.a[part], x.scales[at]), into);
      }
    }
  }
}

/// One strip, of which `count` rows are wanted, with kRows rows of activations.
template <typename Type, int kRows>
inline void strip_dots(const Byte* strip, std::int64_t blocks, const QuantisedRows& x,
                       std::int64_t row, int count, float* out, std::int64_t stride) {
  Floats sum[16 / Isa::kLanes][kRows];
  for (auto& vector : sum) {
    for (Floats& each : vector) each = Isa::zero();
  }
  for (std::int64_t block = 0; block < blocks; ++block, strip += Type::kBytes) {
    // Shifts and places depend on the run: each is code of its own.
    [&]<int... kRun>(std::integer_sequence<int, kRun...>) {
      (run_dots<Type, kRun>(strip, block, x, row, sum), ...);
    }
    (std::make_integer_sequence<int, Type::kRuns>{});
  }
  for (int m = 0; m < kRows; ++m) {
    for (int vector = 0; vector < 16 / Isa::kLanes; ++vector) {
      const int lane = vector * Isa::kLanes;
      if (count > lane) Isa::store(out + (row + m) * stride + lane, sum[vector][m], count - lane);
    }
  }
}

template <typename Type>
void strips_of(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
               std::int64_t rows, float* out, std::int64_t stride) {
  const std::int64_t blocks = w.columns / (32 * Type::kRuns);
  const std::int64_t bytes = (blocks * Type::kBytes + 63) / 64 * 64;
  const auto* strip = reinterpret_cast<const Byte*>(w.data) + first / 16 * bytes;
  for (std::int64_t n = first; n < end; n += 16, strip += bytes) {
    const int count = static_cast<int>(end - n >= 16 ? 16 : end - n);
    std::int64_t m = 0;
    for (; m + 4 <= rows; m += 4) strip_dots<Type, 4>(strip, blocks, x, m, count, out + n, stride);
    if (m + 2 <= rows) {
      strip_dots<Type, 2>(strip, blocks, x, m, count, out + n, stride);
      m += 2;
    }
    if (m < rows) strip_dots<Type, 1>(strip, blocks, x, m, count, out + n, stride);
  }
}

/// Calls body(Type{}) with the type's place of quants and scales.
template <typename Body>
void type_choose(PackedType type, const Body& body) {
  switch (type) {
    case PackedType::q4_0:
      return body(Plain<false, false, false, 8>{});
    case PackedType::q4_1:
      return body(Plain<true, false, false, 0>{});
    case PackedType::q5_0:
      return body(Plain<false, true, false, 16>{});
    case PackedType::q5_1:
      return body(Plain<true, true, false, 0>{});
    case PackedType::q8_0:
      return body(Plain<false, false, true, 128>{});
    case PackedType::q4_k:
      return body(KRuns<false>{});
    case PackedType::q5_k:
      return body(KRuns<true>{});
    case PackedType::q6_k:
      return body(K6{});
    default:
      return;
  }
}

void strips_dot_of(const PackedMatrix& w, std::int64_t first, std::int64_t end,
                   const QuantisedRows& x, std::int64_t rows, float* out, std::int64_t stride) {
  type_choose(w.type,
              [&]<typename Type>(Type) { strips_of<Type>(w, first, end, x, rows, out, stride); });
}
