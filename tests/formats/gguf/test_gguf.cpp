#include "formats/byte_files.h"
#include "formats/gguf/gguf.h"
#include "gguf_bytes.h"
#include "support/allocation_count.h"

#include <algorithm>
#include <limits>

namespace lca {
namespace {

using test::bytes_of;
using test::expect_error;
using test::gguf_text;
using test::GgufBuilder;
using test::GgufType;
using test::raw;
using test::ScratchFolder;
using test::write_file;

Gguf gguf_parse(const std::string& bytes) { return Gguf::parse(bytes_of(bytes), "x.gguf"); }

/// Such a file must fail with a message that holds all of `parts` and begins with the file's name.
void expect_bad(const std::string& bytes, std::vector<std::string> parts,
                ErrorKind kind = ErrorKind::bad_input) {
  parts.insert(parts.begin(), "bad.gguf: ");
  const std::vector<char> exact(bytes.begin(),
                                bytes.end());  // exactly as long as its contents, for sanitizers
  expect_error(
      [&] { Gguf::parse(bytes_of(std::string_view(exact.data(), exact.size())), "bad.gguf"); },
      parts, kind);
}

void expect_bad(const GgufBuilder& file, const std::vector<std::string>& parts,
                ErrorKind kind = ErrorKind::bad_input) {
  expect_bad(file.bytes(), parts, kind);
}

TEST(Gguf, ReadsValuesOfEveryType) {
  GgufBuilder builder;
  builder.raw_value("u8", GgufType::u8, "\xff")
      .raw_value("i8", GgufType::i8, "\xff")
      .raw_value("u16", GgufType::u16, raw<std::uint16_t>(65535))
      .raw_value("i16", GgufType::i16, raw<std::int16_t>(-2))
      .raw_value("u32", GgufType::u32, raw<std::uint32_t>(4294967295u))
      .raw_value("i32", GgufType::i32, raw<std::int32_t>(-3))
      .raw_value("u64", GgufType::u64, raw<std::uint64_t>(1ull << 62))
      .raw_value("huge", GgufType::u64, raw<std::uint64_t>(1ull << 63))
      .raw_value("i64", GgufType::i64, raw<std::int64_t>(-4))
      .raw_value("f32", GgufType::f32, raw(0.5f))
      .raw_value("f64", GgufType::f64, raw(0.1))
      .boolean("yes", true)
      .boolean("no", false)
      .text("text",
            "häß\0"
            "lich")
      .texts("texts", {"", "b"})
      .list<std::int16_t>("list", GgufType::i16, {1, -1})
      .list<float>("empty", GgufType::f32, {});
  const std::string bytes = builder.bytes();
  const Gguf file = gguf_parse(bytes);
  EXPECT_EQ(file.name(), "x.gguf");
  EXPECT_EQ(file.values().size(), 17u);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.integer("u8"), 255);
  EXPECT_EQ(file.integer("i8"), -1);
  EXPECT_EQ(file.integer("u16"), 65535);
  EXPECT_EQ(file.integer("i16"), -2);
  EXPECT_EQ(file.integer("u32"), 4294967295);
  EXPECT_EQ(file.integer("i32"), -3);
  EXPECT_EQ(file.integer("u64"), std::int64_t{1} << 62);
  EXPECT_EQ(file.number("huge"), 0x1p63);
  EXPECT_EQ(file.integer("i64"), -4);
  EXPECT_EQ(file.number("f32"), 0.5);
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(file.number("i32"), -3.0);
  EXPECT_TRUE(file.boolean("yes", false));
  EXPECT_FALSE(file.boolean("no", true));
  EXPECT_TRUE(file.boolean("absent", true));
  EXPECT_EQ(file.text("absent", "else"), "else");
  EXPECT_EQ(file.integer("absent", 7), 7);
  EXPECT_EQ(file.number("absent", 7.5), 7.5);
  ASSERT_NE(file.value("texts"), nullptr);
  EXPECT_EQ(file.value("texts")->texts(), (std::vector<std::string_view>{"", "b"}));
  ASSERT_EQ(file.value("list")->size(), 2u);
  EXPECT_EQ(file.value("list")->integer(0), 1);
  EXPECT_EQ(file.value("list")->integer(1), -1);
  EXPECT_TRUE(file.value("empty")->is_list());
  EXPECT_EQ(file.value("absent"), nullptr);

  expect_error([&] { file.integer("absent"); }, {"x.gguf: key \"absent\" is missing"});
  expect_error([&] { file.integer("f32"); }, {"x.gguf: key \"f32\" is a number, not an integer"});
  expect_error([&] { file.integer("list"); }, {"key \"list\" is a list, not an integer"});
  expect_error([&] { file.number("text"); }, {"key \"text\" is a text, not a number"});
  expect_error([&] { file.boolean("u8", true); }, {"\"u8\" is an integer, not a truth value"});
  expect_error([&] { file.text("yes"); }, {"\"yes\" is a truth value, not a text"});
  expect_error([&] { file.text("absent"); }, {"is missing"});
  expect_error([&] { file.number("absent"); }, {"is missing"});
}

TEST(Gguf, ReadsTensorsOfEveryTypeAndReversesTheirShapes) {
  GgufBuilder builder;
  for (int i = 0; i < kPackedTypes; ++i) {
    const auto type = static_cast<PackedType>(i);
    const PackedTypeInfo& info = packed_type_info(type);
    builder.tensor("t." + std::string(info.name), type, {2, 3, 2 * info.block_values});
  }
  const std::string bytes = builder.bytes();
  const Gguf file = gguf_parse(bytes);
  ASSERT_EQ(file.tensors().size(), static_cast<std::size_t>(kPackedTypes));
  for (int i = 0; i < kPackedTypes; ++i) {
    const auto type = static_cast<PackedType>(i);
    const PackedTypeInfo& info = packed_type_info(type);
    const GgufTensor* tensor = file.find("t." + std::string(info.name));
    ASSERT_NE(tensor, nullptr) << info.name;
    EXPECT_EQ(tensor->type, type);
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{2, 3, 2 * info.block_values}));
    ASSERT_EQ(tensor->bytes.size(), 12 * info.block_bytes);
    EXPECT_EQ(tensor->bytes[5], std::byte{6});
  }
  EXPECT_EQ(file.find("t"), nullptr);
  EXPECT_TRUE(std::ranges::is_sorted(file.tensors(), {}, &GgufTensor::name));
}

TEST(Gguf, HonoursTheAlignmentItIsGiven) {
  for (const std::uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.integer("general.alignment", alignment)
        .tensor("a", PackedType::f16, {3})
        .tensor("b", PackedType::f16, {1});
    const std::string bytes = builder.bytes();
    const Gguf file = gguf_parse(bytes);
    EXPECT_EQ(file.find("b")->bytes.data() - file.find("a")->bytes.data(),
              std::max<std::ptrdiff_t>(6, alignment));
    EXPECT_EQ(file.find("a")->bytes[0], std::byte{1});
  }
  for (const std::uint32_t wrong : {0u, 3u, 48u, 1u << 21, 1u << 31}) {
    GgufBuilder builder;
    builder.integer("general.alignment", wrong);
    expect_bad(builder, {"key \"general.alignment\": must be a power of two"});
  }
  GgufBuilder text;
  text.text("general.alignment", "32");
  expect_bad(text, {"key \"general.alignment\": must be a power of two"});
}

TEST(Gguf, RefusesWhatIsNoGguf3) {
  expect_bad(std::string(), {"does not begin with \"GGUF\""});
  expect_bad("GG", {"does not begin with \"GGUF\""});
  expect_bad("tjgg\1\0\0\0", {"older format"});
  expect_bad("GGUF", {"the file ends at byte 4, inside the version"});
  GgufBuilder builder;
  builder.version = 2;
  expect_bad(builder, {"GGUF version 2 is not read, only 3; convert the model again"},
             ErrorKind::incompatible);
  builder.version = 1;
  expect_bad(builder, {"GGUF version 1 is not read"}, ErrorKind::incompatible);
  builder.version = 0x03000000;
  expect_bad(builder, {"big-endian"}, ErrorKind::incompatible);
}

TEST(Gguf, RefusesCountsTheFileCannotHold) {
  GgufBuilder builder;
  builder.integer("a", 1).tensor("t", PackedType::f32, {4});
  builder.more_values = 1ull << 40;
  expect_bad(builder, {"settings and 1 tensors do not fit"});
  builder.more_values = 0;
  builder.more_tensors = std::numeric_limits<std::uint64_t>::max() - 1;
  expect_bad(builder, {"1 settings and 18446744073709551615 tensors do not fit"});
  builder.more_tensors = 1;
  expect_bad(builder, {});

  const auto list = [](GgufType type, std::uint64_t count) {
    GgufBuilder file;
    file.raw_value("l", GgufType::list, GgufBuilder::list_head(type, count) + "12345678");
    return file;
  };
  expect_bad(list(GgufType::u8, 9), {"key \"l\": 9 entries do not fit"});
  expect_bad(list(GgufType::text, 1ull << 60), {"key \"l\": 1152921504606846976 entries"});
  expect_bad(list(GgufType::list, 1), {"key \"l\": lists of lists are not read"});
  expect_bad(list(static_cast<GgufType>(13), 1), {"key \"l\": unknown type 13"});
}

TEST(Gguf, RefusesBadSettings) {
  GgufBuilder builder;
  builder.integer("a", 1).again("a");
  expect_bad(builder, {"key \"a\": appears twice"});
  expect_bad(GgufBuilder().integer("", 1), {"a setting has an empty name"});
  expect_bad(GgufBuilder().integer(std::string(70000, 'k'), 1), {"70000 bytes long", "65535"});
  expect_bad(GgufBuilder().raw_value("a", static_cast<GgufType>(77), "x"), {"unknown type 77"});
  expect_bad(GgufBuilder().raw_value("a", GgufType::boolean, "\2"), {"holds 2 for a truth value"});
  expect_bad(GgufBuilder().raw_value("a", GgufType::text, raw<std::uint64_t>(1ull << 50)),
             {"inside key \"a\""});
  expect_bad(GgufBuilder().raw_value("\x1b[2J\n", static_cast<GgufType>(77), "x"), {"\\x1b[2J"});
}

TEST(Gguf, RefusesBadTensors) {
  using Dims = std::vector<std::uint64_t>;
  const auto one = [](const Dims& dims, std::uint32_t type = 0, std::uint64_t offset = 0) {
    GgufBuilder file;
    file.tensor("first", PackedType::f32, {8});
    file.raw_tensor("t", type, dims, offset);
    return file;
  };
  expect_bad(one({}), {"tensor \"t\": has 0 dimensions"});
  expect_bad(one({1, 1, 1, 1, 1}), {"has 5 dimensions, not 1 to 4"});
  expect_bad(one({0, 1}), {"dimension 0 is 0"});
  expect_bad(one({1, 1ull << 63}), {"dimension 1 is 9223372036854775808"});
  expect_bad(one({1ull << 32, 1ull << 32}), {"shape [4294967296,4294967296] of F32 needs more"});
  expect_bad(one({1000}), {"needs more bytes than the file's"});
  expect_bad(one({33}, 2), {"rows of 33 values do not hold whole Q4_0 blocks of 32"});
  expect_bad(one({128}, 12), {"rows of 128 values do not hold whole Q4_K blocks of 256"});
  expect_bad(one({4}, 0, 8), {"begins at byte 8 of the data, not a multiple of 32"});
  expect_bad(one({4}, 0, 64), {"16 bytes at byte 64 end behind the 32 bytes of the data"});
  expect_bad(one({4}, 0, 1ull << 63), {"end behind"});
  expect_bad(one({4}), {"overlaps another tensor"});
  GgufBuilder twice;
  twice.tensor("t", PackedType::f32, {8}).tensor("t", PackedType::f32, {8});
  expect_bad(twice, {"tensor \"t\" appears twice"});
  expect_bad(GgufBuilder().tensor("", PackedType::f32, {8}), {"a tensor has an empty name"});
  expect_bad(GgufBuilder().tensor(std::string(65, 'n'), PackedType::f32, {8}), {"65 bytes long"});
  gguf_parse(GgufBuilder().tensor(std::string(64, 'n'), PackedType::f32, {8}).bytes());
}

TEST(Gguf, NamesTheTypesItDoesNotRead) {
  const std::vector<std::pair<std::uint32_t, std::string>> types = {
      {9, "Q8_1"},
      {10, "Q2_K"},
      {11, "Q3_K"},
      {15, "Q8_K"},
      {16, "IQ2_XXS"},
      {17, "IQ2_XS"},
      {19, "IQ1_S"},
      {20, "IQ4_NL"},
      {23, "IQ4_XS"},
      {26, "I32"},
      {28, "F64"},
      {29, "IQ1_M"},
      {34, "TQ1_0"},
      {35, "TQ2_0"},
      {39, "MXFP4"},
      {4, "number 4, which is unknown"},
      {99, "number 99, which is unknown"}};
  for (const auto& [number, name] : types) {
    GgufBuilder file;
    file.raw_tensor("blk.0.ffn_up.weight", number, {256}, 0);
    expect_bad(file, {"tensor \"blk.0.ffn_up.weight\": is of type " + name + ";", "Q4_K"});
  }
}

/// Everything that is done with a file: it may throw Error, and nothing else.
void exercise(std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    const Gguf file = Gguf::parse(bytes_of({exact.data(), exact.size()}), "x");
    for (const GgufTensor& tensor : file.tensors()) {
      const PackedTypeInfo& info = packed_type_info(tensor.type);
      std::vector<float> block(static_cast<std::size_t>(info.block_values));
      unpack_f32(tensor.type, tensor.bytes.data(), block.data(), info.block_values);
      unpack_f32(tensor.type, tensor.bytes.data() + tensor.bytes.size() - info.block_bytes,
                 block.data(), info.block_values);
    }
    try {
      model_config_from_gguf(file).validate("x");
    } catch (const Error&) {
    }
    gguf_tokenizer_tables(file);
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::incompatible)
        << error.what();
  }
}

TEST(Gguf, SurvivesTruncationAtEveryByte) {
  GgufBuilder builder = test::gguf_llama();
  const std::string bytes = test::gguf_add_tokenizer(builder).bytes();
  gguf_parse(bytes);
  const std::size_t header = bytes.size() - 4000;  // and some of the data
  for (std::size_t length = 0; length < bytes.size(); length += length < header ? 1 : 97) {
    const std::string prefix = bytes.substr(0, length);
    exercise(prefix);
    EXPECT_THROW(gguf_parse(prefix), Error) << length;
  }
}

TEST(Gguf, SurvivesEveryFlippedBit) {
  GgufBuilder builder = test::gguf_minicpm();
  std::string bytes = test::gguf_add_tokenizer(builder).bytes();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<char>(1 << bit % 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
    exercise(bytes);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
  }
  gguf_parse(bytes);
}

TEST(Gguf, ReadsTheTokenizersTables) {
  GgufBuilder builder;
  test::gguf_add_tokenizer(builder);
  const std::string bytes = builder.bytes();
  const Gguf file = gguf_parse(bytes);
  const GgufTokenizer tables = gguf_tokenizer_tables(file);
  EXPECT_EQ(tables.model, "gpt2");
  EXPECT_EQ(tables.pre, "smollm");
  ASSERT_EQ(tables.tokens.size(), 6u);
  EXPECT_EQ(tables.tokens[2], "ab");
  EXPECT_EQ(tables.scores[2], -1.0);
  EXPECT_EQ(tables.types[4], 3);
  EXPECT_EQ(tables.merges, std::vector<std::string_view>{"a b"});
  EXPECT_EQ(tables.begin, 3);
  EXPECT_EQ(tables.end, 4);
  EXPECT_FALSE(tables.unknown.has_value());
  EXPECT_EQ(tables.add_begin, false);
  EXPECT_FALSE(tables.add_end.has_value());
}

TEST(Gguf, RefusesTokenizersThatContradictThemselves) {
  const auto expect = [](const std::function<void(GgufBuilder&)>& change, const std::string& part) {
    GgufBuilder builder;
    test::gguf_add_tokenizer(builder);
    change(builder);
    const std::string bytes = builder.bytes();
    expect_error([&] { gguf_tokenizer_tables(gguf_parse(bytes)); }, {"x.gguf: ", part});
  };
  expect([](auto& f) { f.remove("tokenizer.ggml.model"); }, "\"tokenizer.ggml.model\" is missing");
  expect([](auto& f) { f.remove("tokenizer.ggml.tokens"); }, "the file has no tokenizer");
  expect([](auto& f) { f.integer("tokenizer.ggml.tokens", 3); }, "is not a list of texts");
  expect([](auto& f) { f.text("tokenizer.ggml.merges", "a b"); }, "is not a list of texts");
  expect([](auto& f) { f.template list<float>("tokenizer.ggml.scores", GgufType::f32, {1}); },
         "1 scores for 6 tokens");
  expect(
      [](auto& f) {
        f.template list<int>("tokenizer.ggml.token_type", GgufType::i32, {1, 2});
      },
      "2 types for 6 tokens");
  expect([](auto& f) { f.integer("tokenizer.ggml.bos_token_id", 6); },
         "\"tokenizer.ggml.bos_token_id\" is 6, not one of the 6 tokens");
  expect([](auto& f) { f.integer("tokenizer.ggml.add_bos_token", 1); }, "not a truth value");
}

// --- parts ---------------------------------------------------------------------------------------

GgufBuilder part(std::uint16_t number, std::uint16_t count, std::uint32_t tensors) {
  GgufBuilder file;
  file.raw_value("split.no", GgufType::u16, raw(number))
      .raw_value("split.count", GgufType::u16, raw(count))
      .raw_value("split.tensors.count", GgufType::i32, raw(tensors))
      .tensor("t" + std::to_string(number), PackedType::f32, {2});
  return file;
}

TEST(GgufParts, OpenTogetherFromAnyOfThem) {
  const ScratchFolder folder;
  GgufBuilder first = part(0, 3, 3);
  first.text("general.name", "all");
  write_file(folder / "m-00001-of-00003.gguf", first.bytes());
  write_file(folder / "m-00002-of-00003.gguf", part(1, 3, 3).bytes());
  write_file(folder / "m-00003-of-00003.gguf", part(2, 3, 3).bytes());
  for (const char* name : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    const Gguf file = Gguf::open(folder / name);
    EXPECT_EQ(file.text("general.name"), "all");
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.find("t2")->bytes[0], std::byte{1});
  }
  std::filesystem::remove(folder / "m-00002-of-00003.gguf");
  expect_error([&] { Gguf::open(folder / "m-00003-of-00003.gguf"); },
               {"m-00002-of-00003.gguf: part 2 of 3 is missing"}, ErrorKind::not_found);
}

TEST(GgufParts, MustAgree) {
  const ScratchFolder folder;
  const auto expect = [&](const GgufBuilder& second, const std::vector<std::string>& parts,
                          std::uint32_t tensors = 2) {
    write_file(folder / "m-00001-of-00002.gguf", part(0, 2, tensors).bytes());
    write_file(folder / "m-00002-of-00002.gguf", second.bytes());
    expect_error([&] { Gguf::open(folder / "m-00001-of-00002.gguf"); }, parts);
  };
  expect(part(0, 2, 2), {"m-00002-of-00002.gguf: the name says part 2 of 2, the file part 1 of 2"});
  expect(part(1, 3, 2), {"the file part 2 of 3"});
  expect(GgufBuilder().integer("a", 1), {"the file part 1 of 1"});
  expect(part(1, 2, 2), {"hold 2 tensors, but split.tensors.count is 5"}, 5);
  GgufBuilder twin = part(1, 2, 3);
  twin.tensor("t0", PackedType::f32, {2});
  expect(twin, {"tensor \"t0\" is in two parts"}, 3);
  GgufBuilder odd = part(1, 2, 2);
  odd.text("split.no", "1");
  expect(odd, {"m-00002-of-00002.gguf: key \"split.no\" is not an integer"});
  odd.raw_value("split.no", GgufType::i64, raw(std::numeric_limits<std::int64_t>::max()));
  expect(odd, {"key \"split.no\" is 9223372036854775807, out of range"});
  write_file(folder / "renamed.gguf", part(0, 2, 2).bytes());
  expect_error([&] { Gguf::open(folder / "renamed.gguf"); },
               {"renamed.gguf: is part 1 of 2", "-00001-of-00002.gguf"});
}

TEST(GgufParts, OfOneAreOneFile) {
  const ScratchFolder folder;
  write_file(folder / "m-00001-of-00001.gguf", part(0, 1, 1).bytes());
  EXPECT_EQ(Gguf::open(folder / "m-00001-of-00001.gguf").tensors().size(), 1u);
  // A name that only looks like a part's.
  for (const char* name : {"m-00003-of-00002.gguf", "m-1-of-2.gguf", "00001-of-00002.gguf"}) {
    write_file(folder / name, GgufBuilder().integer("a", 1).bytes());
    EXPECT_EQ(Gguf::open(folder / name).integer("a"), 1) << name;
  }
  expect_error([&] { Gguf::open(folder / "absent.gguf"); }, {"absent.gguf"}, ErrorKind::not_found);
}

TEST(Gguf, AListThatIsNotReadTakesNoMemory) {
  if (!test::allocations_are_counted()) GTEST_SKIP() << "this build does not count";
  constexpr std::size_t kCount = std::size_t{1} << 22;
  const std::string bytes =
      GgufBuilder()
          .list<std::uint8_t>("bytes", GgufType::u8, std::vector<std::uint8_t>(kCount, 7))
          .list<std::uint8_t>("truths", GgufType::boolean, std::vector<std::uint8_t>(kCount, 1))
          .texts("texts", std::vector<std::string>(kCount / 16))
          .bytes();
  const std::int64_t before = test::allocated_bytes();
  const Gguf file = Gguf::parse(test::bytes_of(bytes), "x.gguf");
  EXPECT_LT(test::allocated_bytes() - before, 16384);
  EXPECT_EQ(file.value("bytes")->size(), kCount);
  EXPECT_EQ(file.value("bytes")->integer(kCount - 1), 7);
  EXPECT_EQ(file.value("truths")->integer(1), 1);
  EXPECT_EQ(file.value("texts")->texts().size(), kCount / 16);
}

}  // namespace
}  // namespace lca
