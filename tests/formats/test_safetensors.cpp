#include "byte_files.h"
#include "formats/safetensors.h"

#include <cmath>
#include <limits>

namespace lca {
namespace {

using test::bytes_of;
using test::expect_error;
using test::FileBuilder;
using test::read_file;
using test::safetensors_bytes;
using test::ScratchFolder;
using test::write_file;

/// Parsing such a file must fail with a message that holds all of `parts` and names the file.
void expect_bad_file(const std::string& file, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "bad.safetensors: ");
  // A copy of exactly this size, so that a sanitizer detects every access beyond its end.
  const std::vector<char> exact(file.begin(), file.end());
  expect_error(
      [&] {
        Safetensors::parse(bytes_of(std::string_view(exact.data(), exact.size())),
                           "bad.safetensors");
      },
      parts);
}

void expect_bad_header(const std::string& header, const std::vector<std::string>& parts,
                       std::size_t data = 0) {
  expect_bad_file(safetensors_bytes(header, std::string(data, 'x')), parts);
}

/// A header with one tensor "a" made of the given fields.
std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

TEST(Safetensors, ReadsTensorsOfEveryTypeInAnyOrder) {
  const std::string header = R"({
    "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]},
    "__metadata__": {"format": "pt", "lca": "{}"},
    "a": {"data_offsets": [0, 8], "shape": [], "dtype": "F64"},
    "none": {"dtype": "I64", "shape": [4, 0], "data_offsets": [32, 32]},
    "h": {"dtype": "F16", "shape": [1], "data_offsets": [32, 34]},
    "x": {"dtype": "BF16", "shape": [1], "data_offsets": [34, 36]},
    "s": {"dtype": "I16", "shape": [1], "data_offsets": [36, 38]},
    "t": {"dtype": "U16", "shape": [1], "data_offsets": [38, 40]},
    "i": {"dtype": "I32", "shape": [1], "data_offsets": [40, 44]},
    "u": {"dtype": "U32", "shape": [1], "data_offsets": [44, 48]},
    "l": {"dtype": "U64", "shape": [1], "data_offsets": [48, 56]},
    "y": {"dtype": "I8", "shape": [1], "data_offsets": [56, 57]},
    "z": {"dtype": "U8", "shape": [1], "data_offsets": [57, 58]},
    "o": {"dtype": "BOOL", "shape": [2], "data_offsets": [58, 60]}
  }   )";
  std::string data(60, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i);
  const std::string bytes = safetensors_bytes(header, data);
  const Safetensors file = Safetensors::parse(bytes_of(bytes), "x");

  EXPECT_EQ(file.tensors().size(), 13u);
  EXPECT_EQ(file.tensors().front().name, "a");
  EXPECT_EQ(file.metadata(), (Safetensors::Metadata{{"format", "pt"}, {"lca", "{}"}}));
  const TensorInfo* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, TensorType::f32);
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b->bytes.size(), 24u);
  EXPECT_EQ(b->bytes[0], std::byte{8});
  EXPECT_TRUE(file.find("a")->shape.empty());
  EXPECT_TRUE(file.find("none")->bytes.empty());
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  const std::string bytes = safetensors_bytes("{}");
  EXPECT_TRUE(Safetensors::parse(bytes_of(bytes), "x").tensors().empty());
}

TEST(Safetensors, StaysValidWhenMoved) {
  const ScratchFolder folder;
  write_file(folder / "in", FileBuilder().add("a", "F32", {3}).bytes());
  Safetensors first = Safetensors::open(folder / "in");
  const Safetensors second = std::move(first);
  float value = 0;
  std::memcpy(&value, second.find("a")->bytes.data() + 8, sizeof value);
  EXPECT_EQ(value, 2.0f);
}

TEST(Safetensors, FilesTooShortOrTruncatedAreErrors) {
  expect_bad_file("", {"0 bytes are too few"});
  expect_bad_file("1234567", {"7 bytes are too few"});
  expect_bad_file(std::string(8, '\0'), {"does not begin with '{'"});
  const std::string whole = FileBuilder().add("a", "F32", {3}).bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    expect_bad_file(whole.substr(0, length), {});
  }
  expect_bad_file(whole.substr(0, whole.size() - 1), {"tensor \"a\"", "truncated"});
  expect_bad_file(whole.substr(0, 20), {"longer than the file", "truncated"});
}

TEST(Safetensors, HeadersLongerThanTheFileOrTheLimitAreErrors) {
  expect_bad_file(std::string(8, '\xff') + "{}", {"18446744073709551615", "longer than the file"});
  std::string file = safetensors_bytes("{}");
  file[0] = 3;
  expect_bad_file(file, {"header of 3 bytes is longer than the file"});
  expect_bad_header("{" + std::string(100'000'000, ' '), {"above the limit of 100000000"});
}

TEST(Safetensors, HeadersThatAreNotJsonAreErrors) {
  expect_bad_header("{", {"header: bad JSON"});
  expect_bad_header("{}x", {"header: bad JSON"});
  expect_bad_header("{}{}", {"header: bad JSON"});
  expect_bad_header("{'a':1}", {"header: bad JSON"});
  expect_bad_header("{\"a\":}", {"header: bad JSON"});
  expect_bad_header("{\"a\nb\":1}", {"header: bad JSON"});
  expect_bad_header("{\"\xff\":1}", {"header: bad JSON"});
  expect_bad_header("{\"\\ud800\":1}", {"header: bad JSON"});
  expect_bad_header(std::string("{}\0\0", 4), {"a zero byte inside"});
  expect_bad_header(" {}", {"does not begin with '{'"});
  expect_bad_header("\xef\xbb\xbf{}", {"does not begin with '{'"});
  expect_bad_header("[]", {"does not begin with '{'"});
  expect_bad_header("\x1b[2J\n\n", {"does not begin with '{'"});
}

TEST(Safetensors, DepthBombsAreErrorsAndNoStackOverflows) {
  const std::size_t deep = 2'000'000;
  expect_bad_header("{\"a\":" + std::string(deep, '['), {"\"a\" is a list"});
  expect_bad_header(one("\"shape\":" + std::string(deep, '[')), {"shape cannot be a list"});
  std::string objects = "{";
  for (std::size_t i = 0; i < deep / 5; ++i) objects += "\"a\":{";
  expect_bad_header(objects, {"tensor \"a\": unknown field \"a\""});
  objects = "{\"a\":{";
  for (std::size_t i = 0; i < deep / 9; ++i) objects += "\"shape\":{";
  expect_bad_header(objects, {"shape cannot be an object"});
}

TEST(Safetensors, EntriesOfTheWrongKindAreErrors) {
  expect_bad_header("{\"a\":1}", {"\"a\" is 1, not an object"});
  expect_bad_header("{\"a\":null}", {"\"a\" is null, not an object"});
  expect_bad_header("{\"a\":\"b\"}", {"\"a\" is \"b\", not an object"});
  expect_bad_header("{\"a\":[]}", {"\"a\" is a list, not an object"});
  expect_bad_header("{\"a\":{}}", {"tensor \"a\": dtype is missing"});
  expect_bad_header(one(R"("dtype":"F32","data_offsets":[0,0])"), {"\"a\": shape is missing"});
  expect_bad_header(one(R"("dtype":"F32","shape":[0])"), {"\"a\": data_offsets is missing"});
  expect_bad_header(one(R"("dtype":3)"), {"dtype cannot be 3"});
  expect_bad_header(one(R"("dtype":["F32"])"), {"dtype cannot be a list"});
  expect_bad_header(one(R"("dtype":{})"), {"dtype cannot be an object"});
  expect_bad_header(one(R"("shape":"1")"), {"shape cannot be \"1\""});
  expect_bad_header(one(R"("shape":null)"), {"shape cannot be null"});
  expect_bad_header(one(R"("shape":[[1]])"), {"shape cannot be a list"});
  expect_bad_header(one(R"("shape":[{}])"), {"shape cannot be an object"});
  expect_bad_header(one(R"("strides":[1])"), {"unknown field \"strides\""});
}

TEST(Safetensors, AnUnknownTypeIsNamed) {
  for (const char* type : {"F8_E4M3", "f32", "", "COMPLEX64", "F32 "}) {
    expect_bad_header(one("\"dtype\":\"" + std::string(type) + "\""),
                      {"tensor \"a\": unknown dtype \"" + std::string(type) + "\""});
  }
}

TEST(Safetensors, ShapesMustBeIntegersFromZero) {
  for (const char* value : {"-1", "1.0", "1e2", "true", "null", "\"1\"", "9223372036854775808",
                            "18446744073709551616", "1e999", "-9223372036854775809"}) {
    expect_bad_header(one("\"shape\":[" + std::string(value) + "]"),
                      {"tensor \"a\": shape holds", value, "not an integer from 0"});
    expect_bad_header(one("\"data_offsets\":[0," + std::string(value) + "]"),
                      {"tensor \"a\": data_offsets holds", value});
  }
  std::string many = "0";
  for (int i = 0; i < 100; ++i) many += ",0";
  expect_bad_header(one("\"shape\":[" + many + "]"), {"shape holds more than 64 numbers"});
}

TEST(Safetensors, SizesMustFitTheShapeWithoutOverflow) {
  const auto fields = [](const std::string& shape, const std::string& offsets) {
    return one("\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]");
  };
  expect_bad_header(fields("2", "0,4"), {"shape [2] of F32 does not fit its 4 bytes"}, 4);
  expect_bad_header(fields("", "0,0"), {"does not fit its 0 bytes"});
  expect_bad_header(fields("0", "0,4"), {"does not fit its 4 bytes"}, 4);
  // 2^62 values of 4 bytes are 2^64 bytes, which is 0 in 64 bits.
  expect_bad_header(fields("4611686018427387904", "0,0"), {"does not fit its 0 bytes"});
  expect_bad_header(fields("4294967296,4294967296", "0,0"), {"does not fit its 0 bytes"});
  expect_bad_header(fields("9223372036854775807,9223372036854775807", "0,4"), {"does not fit"}, 4);
}

TEST(Safetensors, OffsetsMustBeTwoInOrderAndInsideTheFile) {
  const auto fields = [](const std::string& offsets) {
    return one(R"("dtype":"U8","shape":[4],"data_offsets":[)" + offsets + "]");
  };
  expect_bad_header(fields("0"), {"data_offsets must be two numbers"}, 4);
  expect_bad_header(fields(""), {"data_offsets must be two numbers"}, 4);
  expect_bad_header(fields("0,4,4"), {"data_offsets must be two numbers"}, 4);
  expect_bad_header(fields("4,0"), {"data_offsets run backwards, 4 to 0"}, 4);
  expect_bad_header(fields("0,4"), {"ends at byte 4 of the data, but there are only 3"}, 3);
  expect_bad_header(fields("9223372036854775803,9223372036854775807"), {"truncated"}, 4);
}

TEST(Safetensors, TensorsMayNeitherOverlapNorLeaveHoles) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[)" + a +
           R"(]},"b":{"dtype":"U8","shape":[2],"data_offsets":[)" + b + "]}}";
  };
  expect_bad_header(two("0,2", "1,3"), {"tensor \"b\": overlaps"}, 3);
  expect_bad_header(two("0,2", "0,2"), {"overlaps"}, 2);
  expect_bad_header(two("0,2", "3,5"), {"tensor \"b\": leaves a hole"}, 5);
  expect_bad_header(two("1,3", "3,5"), {"tensor \"a\": leaves a hole"}, 5);
  expect_bad_header(two("0,2", "2,4"), {"1 bytes after the last tensor"}, 5);
  expect_bad_header("{}", {"1 bytes after the last tensor"}, 1);
  const std::string swapped = safetensors_bytes(two("2,4", "0,2"), "wxyz");
  EXPECT_EQ(Safetensors::parse(bytes_of(swapped), "x").find("a")->bytes[0], std::byte{'y'});
}

TEST(Safetensors, DuplicateKeysAreErrors) {
  const std::string tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_bad_header("{\"a\":" + tensor + ",\"b\":" + tensor + ",\"a\":" + tensor + "}",
                    {"tensor \"a\" appears twice"});
  expect_bad_header("{\"\\u0061\":" + tensor + ",\"a\":" + tensor + "}",
                    {"tensor \"a\" appears twice"});
  expect_bad_header(one(R"("dtype":"U8","dtype":"U8")"), {"dtype appears twice"});
  expect_bad_header(one(R"("shape":[],"shape":[])"), {"shape appears twice"});
  expect_bad_header(one(R"("data_offsets":[],"data_offsets":[])"), {"data_offsets appears twice"});
  expect_bad_header(R"({"__metadata__":{},"__metadata__":{}})", {"__metadata__ appears twice"});
  expect_bad_header(R"({"__metadata__":{"k":"1","k":"2"}})", {"__metadata__ holds \"k\" twice"});
}

TEST(Safetensors, MetadataMustMapTextToText) {
  expect_bad_header(R"({"__metadata__":{"k":1}})", {"__metadata__: \"k\" is 1, not a text"});
  expect_bad_header(R"({"__metadata__":{"k":null}})", {"\"k\" is null"});
  expect_bad_header(R"({"__metadata__":{"k":{}}})", {"\"k\" is an object"});
  expect_bad_header(R"({"__metadata__":{"k":["v"]}})", {"\"k\" is a list"});
  expect_bad_header(R"({"__metadata__":[]})", {"\"__metadata__\" is a list, not an object"});
  expect_bad_header(R"({"__metadata__":"x"})", {"\"__metadata__\" is \"x\", not an object"});
}

TEST(Safetensors, HostileNamesStayOnOneShortLine) {
  expect_bad_header(R"({"\u001b[2J\n\u2028\u202e":1})", {"\\x1b[2J\\x0a\\u2028\\u202e"});
  expect_bad_header("{\"" + std::string(100000, 'n') + "\":1}", {"nnn…"});
  expect_bad_header("{\"a\":{\"dtype\":\"" + std::string(100000, 'd') + "\"}}", {"ddd…"});
  expect_bad_header(one("\"shape\":[0." + std::string(100000, '1') + "]"), {"111…"});
  expect_bad_header("{\"a\\u0000b\":1}", {"a\\x00b"});
}

TEST(Safetensors, FilesThatAreAbsentOrFoldersAreNamed) {
  const ScratchFolder folder;
  expect_error([&] { Safetensors::open(folder / "absent.safetensors"); },
               {"absent.safetensors: No such file"}, ErrorKind::not_found);
  expect_error([&] { Safetensors::open(folder.path()); }, {"is a folder"});
  write_file(folder / "empty", "");
  expect_error([&] { Safetensors::open(folder / "empty"); }, {"empty: 0 bytes are too few"});
}

/// Bytes of the values, which must outlive the result.
template <typename T>
TensorInfo tensor(std::string name, TensorType type, std::vector<std::int64_t> shape,
                  const std::vector<T>& values) {
  return {std::move(name), type, std::move(shape), std::as_bytes(std::span(values))};
}

std::string written(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                    const Safetensors::Metadata& metadata = {}) {
  FileWriter writer(path);
  safetensors_write(writer, tensors, metadata);
  writer.commit();
  return read_file(path);
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const ScratchFolder folder;
  const std::vector<float> f = {1.5f, -0.0f, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<double> d = {0.1};
  const std::vector<std::int32_t> i = {-7, 8};
  const std::vector<bf16_bits> h = {0x3f80};
  const std::vector<float> none;
  const Safetensors::Metadata metadata = {{"lca", R"({"group":4})"}, {"né\n", "\"\\"}};
  const std::string bytes =
      written(folder / "out",
              {tensor("f", TensorType::f32, {1, 3}, f), tensor("h", TensorType::bf16, {1}, h),
               tensor("d", TensorType::f64, {}, d), tensor("i", TensorType::i32, {2}, i),
               tensor("e", TensorType::f32, {2, 0, 5}, none)},
              metadata);
  const Safetensors file = Safetensors::open(folder / "out");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.find("f")->shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(std::memcmp(file.find("f")->bytes.data(), f.data(), 12), 0);
  EXPECT_EQ(file.find("d")->dtype, TensorType::f64);
  EXPECT_EQ(std::memcmp(file.find("d")->bytes.data(), d.data(), 8), 0);
  EXPECT_EQ(std::memcmp(file.find("i")->bytes.data(), i.data(), 8), 0);
  EXPECT_EQ(std::memcmp(file.find("h")->bytes.data(), h.data(), 2), 0);
  EXPECT_EQ(file.find("e")->shape, (std::vector<std::int64_t>{2, 0, 5}));

  // Every tensor is aligned to its own element, counted from the start of the file.
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  for (const TensorInfo& t : file.tensors()) {
    const auto address = reinterpret_cast<std::uintptr_t>(t.bytes.data());
    EXPECT_EQ(address % tensor_type_bytes(t.dtype), 0u) << t.name;
  }
}

TEST(SafetensorsWriter, GivesTheSameBytesWhateverTheOrder) {
  const ScratchFolder folder;
  const std::vector<float> f = {1, 2};
  const TensorInfo a = tensor("a", TensorType::f32, {2}, f);
  const TensorInfo b = tensor("b", TensorType::f32, {2}, f);
  EXPECT_EQ(written(folder / "1", {a, b}), written(folder / "2", {b, a}));
}

TEST(SafetensorsWriter, RefusesBytesThatDoNotFitTheShape) {
  const ScratchFolder folder;
  const std::vector<float> f = {1, 2};
  expect_error([&] { written(folder / "out", {tensor("a", TensorType::f32, {3}, f)}); },
               {"tensor \"a\": 8 bytes do not fit shape [3]"}, ErrorKind::internal);
  EXPECT_EQ(folder.count(), 0u);
}

TEST(SafetensorsWriter, RefusesNamesThatAreNotUtf8) {
  const ScratchFolder folder;
  const std::vector<float> f;
  expect_error([&] { written(folder / "out", {tensor("\xff", TensorType::f32, {0}, f)}); },
               {"\"\\xff\" is not UTF-8"});
}

}  // namespace
}  // namespace lca
