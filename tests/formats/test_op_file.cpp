#include "op_bytes.h"

#include <cmath>
#include <limits>

namespace lca {
namespace {

using test::expect_bad_op;
using test::expect_error;
using test::FileBuilder;
using test::gqa_file;
using test::mla_file;
using test::op_parse;
using test::ScratchFolder;
using test::write_file;

float value_at(const ConstTensor& tensor, std::int64_t i, std::int64_t j, std::int64_t k) {
  const void* row = tensor.row(i, j);
  if (tensor.dtype == DType::f32) return static_cast<const float*>(row)[k];
  return bf16_to_f32(static_cast<const bf16_bits*>(row)[k]);
}

/// The view must hold `first`, first + 1, … in row-major order and have the given shape.
void expect_counts(const ConstTensor& tensor, const std::array<std::int64_t, 3>& shape,
                   std::int64_t first, DType dtype = DType::f32) {
  EXPECT_EQ(tensor.shape, shape);
  EXPECT_EQ(tensor.dtype, dtype);
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for (std::int64_t j = 0; j < shape[1]; ++j) {
      for (std::int64_t k = 0; k < shape[2]; ++k) {
        EXPECT_EQ(value_at(tensor, i, j, k), static_cast<float>(first++));
      }
    }
  }
}

TEST(OpInput, ReadsTheMlaForm) {
  const OpInput input = op_parse(mla_file());
  EXPECT_EQ(input.batch, 2);
  EXPECT_EQ(input.length, 5);
  EXPECT_EQ(input.spec.shape, AttentionShape::mla(2, 3, 2, 4, 6));
  EXPECT_EQ(input.spec.settings, settings_preset("training"));
  EXPECT_EQ(input.spec.dtype, DType::f32);
  EXPECT_DOUBLE_EQ(input.spec.scale, 1 / std::sqrt(5.0));
  EXPECT_EQ(input.prefill, std::vector<std::int64_t>{5});
  EXPECT_TRUE(input.documents.empty());
  for (const std::int64_t entry : {0, 1}) {
    expect_counts(input.queries(entry).nope, {5, 2, 3}, entry * 30);
    expect_counts(input.queries(entry).rope, {5, 2, 2}, entry * 20);
    expect_counts(input.entries(entry).semantic, {5, 1, 4}, entry * 20);
    expect_counts(input.entries(entry).positional, {5, 1, 2}, entry * 10);
  }
  expect_counts(input.weights().w_uk, {2, 3, 4}, 0);
  expect_counts(input.weights().w_uv, {2, 6, 4}, 0);
}

TEST(OpInput, ReadsTheGqaForm) {
  const OpInput input = op_parse(gqa_file());
  EXPECT_EQ(input.spec.shape, AttentionShape::gqa(4, 2, 3, 7));
  EXPECT_DOUBLE_EQ(input.spec.scale, 1 / std::sqrt(3.0));
  for (const std::int64_t entry : {0, 1}) {
    EXPECT_TRUE(input.queries(entry).nope.empty());
    expect_counts(input.queries(entry).rope, {5, 4, 3}, entry * 60);
    expect_counts(input.entries(entry).semantic, {5, 2, 7}, entry * 70);
    expect_counts(input.entries(entry).positional, {5, 2, 3}, entry * 30);
  }
  EXPECT_TRUE(input.weights().w_uk.empty());
  EXPECT_TRUE(input.weights().w_uv.empty());
}

TEST(OpInput, ReadsTheSmallestFiles) {
  FileBuilder file;
  file.add("q", "F32", {1, 1, 1, 1}).add("k", "F32", {1, 1, 1, 1}).add("v", "F32", {1, 1, 1, 1});
  EXPECT_EQ(op_parse(file).length, 1);
}

TEST(OpInput, ViewsSurviveAMove) {
  OpInput first = op_parse(mla_file());
  const Queries before = first.queries(1);
  const OpInput second = std::move(first);
  EXPECT_EQ(second.queries(1).nope.data, before.nope.data);
  expect_counts(before.nope, {5, 2, 3}, 30);
}

TEST(OpInput, MemoryIsAlignedForVectors) {
  const OpInput input = op_parse(gqa_file());
  for (const void* data : {input.queries(0).rope.data, input.entries(0).semantic.data,
                           input.entries(0).positional.data}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
  }
}

TEST(OpInput, TheCacheStoresBf16OnlyWhereBothCachedTensorsAre) {
  const auto mla = [](const char* c, const char* k_rope) {
    return op_parse(mla_file().add("c", c, {2, 5, 4}).add("k_rope", k_rope, {2, 5, 2}));
  };
  EXPECT_EQ(mla("BF16", "BF16").spec.dtype, DType::bf16);
  expect_counts(mla("BF16", "BF16").entries(1).semantic, {5, 1, 4}, 20, DType::bf16);
  expect_counts(mla("BF16", "BF16").entries(1).positional, {5, 1, 2}, 10, DType::bf16);
  for (const auto& [c, k_rope] : {std::pair("BF16", "F32"), std::pair("F32", "BF16")}) {
    const OpInput input = mla(c, k_rope);
    EXPECT_EQ(input.spec.dtype, DType::f32);
    expect_counts(input.entries(1).semantic, {5, 1, 4}, 20);
    expect_counts(input.entries(1).positional, {5, 1, 2}, 10);
  }
  const OpInput gqa =
      op_parse(gqa_file().add("k", "BF16", {2, 5, 2, 3}).add("v", "BF16", {2, 5, 2, 7}));
  EXPECT_EQ(gqa.spec.dtype, DType::bf16);
  EXPECT_EQ(gqa.queries(0).rope.dtype, DType::f32);
}

TEST(OpInput, QueriesAndWeightsKeepTheirOwnDtype) {
  const OpInput input =
      op_parse(mla_file().add("q_nope", "BF16", {2, 5, 2, 3}).add("w_uv", "BF16", {2, 6, 4}));
  EXPECT_EQ(input.spec.dtype, DType::f32);
  expect_counts(input.queries(1).nope, {5, 2, 3}, 30, DType::bf16);
  expect_counts(input.queries(1).rope, {5, 2, 2}, 20, DType::f32);
  expect_counts(input.weights().w_uk, {2, 3, 4}, 0, DType::f32);
  expect_counts(input.weights().w_uv, {2, 6, 4}, 0, DType::bf16);
}

TEST(OpInput, NanAndInfinityAreData) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const OpInput input = op_parse(mla_file().add("c", "BF16", {2, 5, 4}, {nan, inf, -inf}));
  const ConstTensor c = input.entries(0).semantic;
  EXPECT_TRUE(std::isnan(value_at(c, 0, 0, 0)));
  EXPECT_EQ(value_at(c, 0, 0, 1), inf);
  EXPECT_EQ(value_at(c, 0, 0, 2), -inf);
}

TEST(OpInput, TakesSettingsFromTheMetadata) {
  const OpInput input = op_parse(mla_file().settings(
      R"({"group":2,"window":1,"summary":"prompt","scale":0.25,"prefill":[2,1]})"));
  EXPECT_EQ(input.spec.settings.group, 2);
  EXPECT_EQ(input.spec.settings.summary, Summary::prompt);
  EXPECT_EQ(input.spec.settings.summary_queries, 16);
  EXPECT_EQ(input.spec.scale, 0.25);
  EXPECT_EQ(input.prefill, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(input.groups(), 2);
}

TEST(OpInput, OverridesTakePrecedenceOverTheFile) {
  const std::vector<SettingOverride> changes = {{"group", "4"}, {"scale", "3"}, {"prefill", "1,1"}};
  const OpInput input =
      op_parse(mla_file().settings(R"({"group":2,"window":1,"scale":0.25})"), changes);
  EXPECT_EQ(input.spec.settings.group, 4);
  EXPECT_EQ(input.spec.settings.window, 1);
  EXPECT_EQ(input.spec.scale, 3.0);
  EXPECT_EQ(input.prefill, (std::vector<std::int64_t>{1, 1}));
  const std::vector<SettingOverride> wrong = {{"group", "0"}};
  expect_error([&] { op_parse(mla_file(), wrong); }, {"group must be an integer"});
}

TEST(OpInput, WrongSettingsNameTheFileAndTheField) {
  expect_bad_op(mla_file().settings(R"({"group":0})"), {"metadata \"lca\"", "field \"group\""});
  expect_bad_op(mla_file().settings(R"({"colour":1})"), {"unknown field \"colour\""});
  expect_bad_op(mla_file().settings("nonsense"), {"metadata \"lca\": bad JSON"});
  expect_bad_op(mla_file().settings(R"({"scale":null})"), {"field \"scale\"", "not null"});
  expect_bad_op(mla_file().settings(R"({"prefill":[]})"), {"field \"prefill\""});
}

TEST(OpInput, PrefillMayNotHoldMoreThanThereIs) {
  EXPECT_NO_THROW(op_parse(mla_file().settings(R"({"prefill":[4,1]})")));
  for (const char* list :
       {"[6]", "[5,1]", "[1,1,1,1,1,1]", "[9223372036854775807]", "[1,9223372036854775807]",
        "[4611686018427387904,4611686018427387904]"}) {
    expect_bad_op(mla_file().settings("{\"prefill\":" + std::string(list) + "}"),
                  {"prefill sums to more than the 5 tokens"});
  }
}

TEST(OpInput, EveryMissingTensorIsNamed) {
  for (const char* name : {"q_nope", "q_rope", "c", "k_rope", "w_uk", "w_uv"}) {
    expect_bad_op(mla_file().remove(name),
                  {"tensor \"" + std::string(name) + "\" of the MLA form is missing"});
  }
  for (const char* name : {"q", "k", "v"}) {
    expect_bad_op(gqa_file().remove(name),
                  {"tensor \"" + std::string(name) + "\" of the GQA form is missing"});
  }
  expect_bad_op(FileBuilder(), {"no tensors of MLA (q_nope, q_rope, c, k_rope, w_uk, w_uv)"});
  expect_bad_op(FileBuilder().add("cu_seqlens", "I32", {2}), {"no tensors"});
}

TEST(OpInput, UnknownTensorsAndMixedFormsAreNamed) {
  expect_bad_op(mla_file().add("mask", "F32", {1}), {"unknown tensor \"mask\""});
  expect_bad_op(gqa_file().add("K", "F32", {1}), {"unknown tensor \"K\""});
  expect_bad_op(mla_file().add("v", "F32", {2, 5, 2, 7}), {"mixes both forms", "\"v\""});
  expect_bad_op(gqa_file().add("c", "F32", {2, 5, 4}), {"mixes both forms", "\"c\""});
}

TEST(OpInput, OtherDtypesAreErrors) {
  for (const char* dtype : {"F64", "F16", "I32", "I8", "BOOL"}) {
    expect_bad_op(mla_file().add("c", dtype, {2, 5, 4}),
                  {"tensor \"c\": dtype must be F32 or BF16, not " + std::string(dtype)});
    expect_bad_op(gqa_file().add("q", dtype, {2, 5, 4, 3}), {"tensor \"q\": dtype must be"});
    expect_bad_op(mla_file().add("w_uv", dtype, {2, 6, 4}), {"tensor \"w_uv\": dtype must be"});
  }
}

TEST(OpInput, EveryShapeMustFitTheOthers) {
  expect_bad_op(mla_file().add("q_rope", "F32", {2, 5, 3, 2}),
                {"tensor \"q_rope\"", "[B,n,H,d_r] is [2,5,3,2]", "H is 2 in \"q_nope\""});
  expect_bad_op(mla_file().add("c", "F32", {1, 5, 4}), {"tensor \"c\"", "B is 2"});
  expect_bad_op(mla_file().add("c", "F32", {2, 6, 4}), {"tensor \"c\"", "n is 5"});
  expect_bad_op(mla_file().add("k_rope", "F32", {2, 5, 3}), {"tensor \"k_rope\"", "d_r is 2"});
  expect_bad_op(mla_file().add("w_uk", "F32", {3, 3, 4}), {"tensor \"w_uk\"", "H is 2"});
  expect_bad_op(mla_file().add("w_uk", "F32", {2, 4, 4}), {"tensor \"w_uk\"", "d_n is 3"});
  expect_bad_op(mla_file().add("w_uk", "F32", {2, 3, 5}), {"tensor \"w_uk\"", "d_c is 4"});
  expect_bad_op(mla_file().add("w_uv", "F32", {2, 6, 5}), {"tensor \"w_uv\"", "d_c is 4"});
  expect_bad_op(gqa_file().add("k", "F32", {2, 5, 2, 4}), {"tensor \"k\"", "d is 3"});
  expect_bad_op(gqa_file().add("v", "F32", {2, 5, 4, 7}), {"tensor \"v\"", "KV is 2"});
  expect_bad_op(gqa_file().add("v", "F32", {2, 4, 2, 7}), {"tensor \"v\"", "n is 5"});
}

TEST(OpInput, EveryShapeMustHaveItsRank) {
  expect_bad_op(mla_file().add("c", "F32", {2, 5, 1, 4}),
                {"tensor \"c\": shape must be [B,n,d_c]"});
  expect_bad_op(mla_file().add("q_nope", "F32", {5, 2, 3}), {"must be [B,n,H,d_n], not [5,2,3]"});
  expect_bad_op(gqa_file().add("v", "F32", {}),
                {"tensor \"v\": shape must be [B,n,KV,d_v], not []"});
}

TEST(OpInput, NoDimensionMayBeZero) {
  expect_bad_op(mla_file(0), {"B must be at least 1"});
  FileBuilder empty;
  empty.add("q", "F32", {1, 0, 2, 3}).add("k", "F32", {1, 0, 2, 3}).add("v", "F32", {1, 0, 2, 3});
  expect_bad_op(empty, {"n must be at least 1"});
  expect_bad_op(mla_file().add("w_uv", "F32", {2, 0, 4}), {"\"w_uv\"", "d_v must be at least 1"});
  FileBuilder headless;
  headless.add("q", "F32", {1, 2, 0, 3})
      .add("k", "F32", {1, 2, 1, 3})
      .add("v", "F32", {1, 2, 1, 3});
  expect_bad_op(headless, {"H must be at least 1"});
  expect_bad_op(gqa_file().add("k", "F32", {2, 5, 0, 3}).add("v", "F32", {2, 5, 0, 7}),
                {"\"k\"", "KV must be at least 1"});
}

TEST(OpInput, HeadsMustBeAMultipleOfKvHeads) {
  FileBuilder file;
  file.add("q", "F32", {1, 2, 5, 3}).add("k", "F32", {1, 2, 2, 3}).add("v", "F32", {1, 2, 2, 3});
  expect_bad_op(file, {"5 query heads are not a multiple of 2 KV heads"});
}

TEST(OpInput, ReadsPackedDocuments) {
  const OpInput input = op_parse(
      mla_file(1).add("cu_seqlens", "I32", {3}, {0, 2, 5}).settings(R"({"group":1,"window":1})"));
  EXPECT_EQ(input.documents, (std::vector<std::int64_t>{0, 2, 5}));
  EXPECT_TRUE(input.prefill.empty());
  EXPECT_EQ(input.groups(), 1 + 2);
  EXPECT_EQ(OpOutput(input).groups, 3);
}

TEST(OpInput, PackedDocumentsMustCoverTheSequenceInOrder) {
  const auto documents = [](const std::vector<double>& starts) {
    return mla_file(1).add("cu_seqlens", "I32", {static_cast<std::int64_t>(starts.size())}, starts);
  };
  EXPECT_NO_THROW(op_parse(documents({0, 5})));
  expect_bad_op(documents({1, 5}), {"cu_seqlens", "must start with 0"});
  expect_bad_op(documents({0, 4}), {"cu_seqlens", "must end with n = 5, not 4"});
  expect_bad_op(documents({0, 6}), {"cu_seqlens", "must end with n = 5, not 6"});
  expect_bad_op(documents({0, 2, 2, 5}), {"cu_seqlens", "strictly increasing"});
  expect_bad_op(documents({0, 3, 2, 5}), {"cu_seqlens", "strictly increasing"});
  expect_bad_op(documents({0, 9, 5}), {"cu_seqlens", "strictly increasing"});
  expect_bad_op(documents({0, -2147483648.0, 5}), {"cu_seqlens", "strictly increasing"});
  expect_bad_op(documents({0}), {"cu_seqlens", "[D+1]", "[1]"});
  expect_bad_op(documents({}), {"cu_seqlens", "[D+1]", "[0]"});
  expect_bad_op(mla_file(1).add("cu_seqlens", "I32", {1, 2}, {0, 5}), {"[D+1]", "[1,2]"});
  expect_bad_op(mla_file(1).add("cu_seqlens", "I32", {}, {0}), {"[D+1]", "[]"});
  expect_bad_op(mla_file(1).add("cu_seqlens", "I64", {2}, {0, 5}), {"dtype must be I32, not I64"});
}

TEST(OpInput, PackedDocumentsExcludeBatchesPrefillAndPromptSummaries) {
  const auto documents = [](std::int64_t batch) {
    return gqa_file(batch).add("cu_seqlens", "I32", {2}, {0, 5});
  };
  expect_bad_op(documents(2), {"cu_seqlens", "B = 1, not 2"});
  expect_bad_op(documents(1).settings(R"({"prefill":[5]})"), {"cu_seqlens", "prefill"});
  expect_bad_op(documents(1).settings(R"({"summary":"prompt"})"), {"cu_seqlens", "summary prompt"});
  const std::vector<SettingOverride> paper = {{"preset", "paper"}};
  expect_error([&] { op_parse(documents(1), paper); }, {"cu_seqlens", "summary prompt"});
}

TEST(OpInput, ReadsFromDiskAndNamesThePath) {
  const ScratchFolder folder;
  write_file(folder / "in.safetensors", mla_file().bytes());
  EXPECT_EQ(OpInput::read(folder / "in.safetensors").length, 5);
  write_file(folder / "cut.safetensors", mla_file().bytes().substr(0, 900));
  expect_error([&] { OpInput::read(folder / "cut.safetensors"); }, {"cut.safetensors: "});
  expect_error([&] { OpInput::read(folder.path()); }, {"is a folder"});
  expect_error([&] { OpInput::read(folder / "none"); }, {"none: No such file"},
               ErrorKind::not_found);
}

TEST(OpInput, ReadsEveryGoldenFile) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(LCA_SOURCE_DIR) / "tests/golden/op")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".safetensors") continue;
    if (name.find(".expected.") != std::string::npos) {
      EXPECT_NO_THROW(Safetensors::open(entry.path())) << name;
      continue;
    }
    const OpInput input = OpInput::read(entry.path());
    std::filesystem::path expected = entry.path();
    expected.replace_extension(".expected.safetensors");
    const Safetensors result = Safetensors::open(expected);
    const AttentionShape& shape = input.spec.shape;
    EXPECT_EQ(result.find("out")->shape,
              (std::vector<std::int64_t>{input.batch, input.length, shape.heads, shape.d_value}))
        << name;
    EXPECT_EQ(result.find("rep_bias")->shape.at(1), input.groups()) << name;
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(OpOutput, HoldsZerosOfTheRightSizes) {
  const OpInput input = op_parse(gqa_file().settings(R"({"group":2,"window":1})"));
  const OpOutput output(input);
  EXPECT_EQ(output.groups, 2);
  EXPECT_EQ(output.out, std::vector<float>(2 * 5 * 4 * 7));
  EXPECT_EQ(output.lse, std::vector<float>(2 * 5 * 4));
  EXPECT_EQ(output.rep_semantic, std::vector<float>(2 * 2 * 2 * 7));
  EXPECT_EQ(output.rep_positional, std::vector<float>(2 * 2 * 2 * 3));
  EXPECT_EQ(output.rep_bias, std::vector<float>(2 * 2 * 2));
}

/// Writes an output whose vectors count up, and returns the file's tensors by name.
std::map<std::string, TensorInfo> write_counting(const std::filesystem::path& path,
                                                 const OpInput& input, Safetensors& file) {
  OpOutput output(input);
  float value = 0;
  for (std::vector<float>* values :
       {&output.out, &output.lse, &output.rep_semantic, &output.rep_positional, &output.rep_bias}) {
    for (float& v : *values) v = value++;
  }
  FileWriter writer(path);
  op_output_write(writer, output);
  file = Safetensors::open(path);
  std::map<std::string, TensorInfo> tensors;
  for (const TensorInfo& tensor : file.tensors()) tensors[tensor.name] = tensor;
  return tensors;
}

void expect_output(const std::map<std::string, TensorInfo>& tensors, const std::string& name,
                   const std::vector<std::int64_t>& shape, float first) {
  ASSERT_TRUE(tensors.contains(name)) << name;
  const TensorInfo& tensor = tensors.at(name);
  EXPECT_EQ(tensor.shape, shape) << name;
  EXPECT_EQ(tensor.dtype, TensorType::f32) << name;
  if (tensor.bytes.empty()) return;
  float value = -1;
  std::memcpy(&value, tensor.bytes.data(), sizeof value);
  EXPECT_EQ(value, first) << name;
}

TEST(OpOutput, WritesExactlyTheMlaTensors) {
  const ScratchFolder folder;
  Safetensors file;
  const OpInput input = op_parse(mla_file().settings(R"({"group":2,"window":1})"));
  const auto tensors = write_counting(folder / "out", input, file);
  EXPECT_EQ(tensors.size(), 5u);
  EXPECT_TRUE(file.metadata().empty());
  expect_output(tensors, "out", {2, 5, 2, 6}, 0);
  expect_output(tensors, "lse", {2, 5, 2}, 120);
  expect_output(tensors, "rep_c", {2, 2, 4}, 140);
  expect_output(tensors, "rep_k_rope", {2, 2, 2}, 156);
  expect_output(tensors, "rep_bias", {2, 2}, 164);
}

TEST(OpOutput, WritesExactlyTheGqaTensors) {
  const ScratchFolder folder;
  Safetensors file;
  const OpInput input = op_parse(gqa_file().settings(R"({"group":2,"window":1})"));
  const auto tensors = write_counting(folder / "out", input, file);
  EXPECT_EQ(tensors.size(), 5u);
  expect_output(tensors, "out", {2, 5, 4, 7}, 0);
  expect_output(tensors, "lse", {2, 5, 4}, 280);
  expect_output(tensors, "rep_v", {2, 2, 2, 7}, 320);
  expect_output(tensors, "rep_k", {2, 2, 2, 3}, 376);
  expect_output(tensors, "rep_bias", {2, 2, 2}, 400);
}

TEST(OpOutput, WritesEmptyRepresentativesWhereNothingIsCondensed) {
  const ScratchFolder folder;
  Safetensors file;
  const auto mla = write_counting(folder / "mla", op_parse(mla_file()), file);
  expect_output(mla, "rep_c", {2, 0, 4}, 0);
  expect_output(mla, "rep_k_rope", {2, 0, 2}, 0);
  expect_output(mla, "rep_bias", {2, 0}, 0);
  const auto gqa = write_counting(
      folder / "gqa", op_parse(gqa_file().settings(R"({"method":"dense","group":1,"window":1})")),
      file);
  expect_output(gqa, "rep_v", {2, 0, 2, 7}, 0);
  expect_output(gqa, "rep_k", {2, 0, 2, 3}, 0);
  expect_output(gqa, "rep_bias", {2, 0, 2}, 0);
}

TEST(OpOutput, SizesThatDoNotFitLeaveNoFile) {
  const ScratchFolder folder;
  OpOutput output(op_parse(mla_file()));
  output.lse.pop_back();
  expect_error(
      [&] {
        FileWriter writer(folder / "out");
        op_output_write(writer, output);
      },
      {"tensor \"lse\""}, ErrorKind::internal);
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace lca
