// Strips of packed weights as rows of bfloat16, or of float32 that bfloat16 can hold, for products
// of many rows. Included after strip_product-inl.h, whose types say where the quants are. Weights
// come with a row in each lane; a square of 32-bit words, kLanes rows of it, is transposed and
// stored. Besides, an Isa has
//   column(q, c)                  column c of four, as integers
//   rounded(x)                    bits of x, rounded to bfloat16 in their upper halves
//   pair(a, b)                    upper halves of a (below) and b (above)
//   transpose(words)
//   store_words(to, words)

/// kLanes · kColumns weights: kNarrow two in a word.
template <typename Type, bool kNarrow, int kRun>
inline void run_unpack(const Byte* strip, int count, std::int64_t columns, Byte* out) {
  constexpr int kLanes = Isa::kLanes, kInWord = kNarrow ? 2 : 1;
  constexpr int kGroups = kLanes * kInWord / 4;  // of four columns, in a square
  constexpr std::int64_t kValue = kNarrow ? 2 : 4;
#pragma GCC unroll 4
  for (int lane = 0; lane < 16; lane += kLanes) {
    const Scales<Type::kScales> scales = Type::scales(strip, kRun, lane);
#pragma GCC unroll 4
    for (int first = 0; first < 8; first += kGroups) {
      typename Isa::Ints words[kLanes];
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) {
        const int group = first + g;
        const int part = group * Type::kScales / 8;
        const auto q = Type::quants(strip, kRun, group, lane);
        const auto weight = [&](int c) {
          const Floats number = Isa::to_floats(Isa::template column<Type::kSigned>(q, c));
          return Isa::rounded(Isa::add_product(number, scales.a[part], scales.b[part]));
        };
        if constexpr (kNarrow) {
          words[2 * g] = Isa::pair(weight(0), weight(1));
          words[2 * g + 1] = Isa::pair(weight(2), weight(3));
        } else {
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) words[4 * g + c] = Isa::upper(weight(c));
        }
      }
      Isa::transpose(words);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        if (lane + r >= count) break;
        Isa::store_words(out + ((lane + r) * columns + 4 * first) * kValue, words[r]);
      }
    }
  }
}

template <typename Type, bool kNarrow>
void strip_unpack(const PackedMatrix& w, std::int64_t strip, int count, Byte* out) {
  const std::int64_t blocks = w.columns / (32 * Type::kRuns);
  const std::int64_t bytes = (blocks * Type::kBytes + 63) / 64 * 64;
  const auto* from = reinterpret_cast<const Byte*>(w.data) + strip * bytes;
  constexpr std::int64_t kRunBytes = 32 * (kNarrow ? 2 : 4);
  for (std::int64_t block = 0; block < blocks; ++block, from += Type::kBytes) {
    [&]<int... kRun>(std::integer_sequence<int, kRun...>) {
      (run_unpack<Type, kNarrow, kRun>(from, count, w.columns,
                                       out + (block * Type::kRuns + kRun) * kRunBytes),
       ...);
    }
    (std::make_integer_sequence<int, Type::kRuns>{});
  }
}

template <bool kNarrow>
void strip_unpack_of(const PackedMatrix& w, std::int64_t strip, int count, void* to) {
  auto* out = static_cast<Byte*>(to);
  type_choose(w.type,
              [&]<typename Type>(Type) { strip_unpack<Type, kNarrow>(w, strip, count, out); });
}
