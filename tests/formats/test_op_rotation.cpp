// How operator files say that keys and queries are rotated on (mechanism §10).

#include "op_bytes.h"

#include <limits>

namespace lca {
namespace {

using test::expect_bad_op;
using test::expect_error;
using test::FileBuilder;
using test::gqa_file;
using test::mla_file;
using test::op_parse;

constexpr const char* kHalf = R"({"positions":"entry","rope_layout":"half"})";
constexpr const char* kAdjacent = R"({"positions":"entry","rope_layout":"adjacent"})";

TEST(OpRotation, BothFormsSayFrequenciesAndLayout) {
  const OpInput mla =
      op_parse(mla_file().settings(kHalf).add("rope_frequencies", "F32", {1}, {0.25}));
  EXPECT_EQ(mla.spec.settings.positions, Positions::entry);
  EXPECT_EQ(mla.spec.rotation, (Rotation{RopeLayout::halves, {0.25}}));
  const OpInput gqa =
      op_parse(gqa_file().settings(kAdjacent).add("rope_frequencies", "F32", {1}, {-0.5}));
  EXPECT_EQ(gqa.spec.rotation, (Rotation{RopeLayout::adjacent, {-0.5}}));
  EXPECT_EQ(op_parse(mla_file()).spec.rotation, Rotation{});
}

TEST(OpRotation, EntryPositionsNeedBoth) {
  expect_bad_op(mla_file().settings(kHalf), {"\"rope_frequencies\" is missing", "positions entry"});
  expect_bad_op(
      mla_file().settings(R"({"positions":"entry"})").add("rope_frequencies", "F32", {1}, {0.25}),
      {"\"rope_layout\" is missing", "positions entry"});
  const std::vector<SettingOverride> changes = {{"positions", "entry"}};
  expect_error([&] { op_parse(mla_file(), changes); }, {"rope_frequencies"});
}

TEST(OpRotation, TokenPositionsRefuseBoth) {
  for (const char* settings : {"{}", R"({"positions":"token"})"}) {
    expect_bad_op(mla_file().settings(settings).add("rope_frequencies", "F32", {1}, {0.25}),
                  {"\"rope_frequencies\"", "positions token"});
  }
  expect_bad_op(mla_file().settings(R"({"rope_layout":"half"})"),
                {"\"rope_layout\"", "positions token"});
  const std::vector<SettingOverride> changes = {{"positions", "token"}};
  expect_error(
      [&] {
        op_parse(mla_file().settings(kHalf).add("rope_frequencies", "F32", {1}, {0.25}), changes);
      },
      {"positions token"});
}

TEST(OpRotation, FrequenciesOfAnotherTypeOrShapeAreNamed) {
  expect_bad_op(mla_file().settings(kHalf).add("rope_frequencies", "BF16", {1}),
                {"\"rope_frequencies\"", "must be F32, not BF16"});
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2}, {1, 1}, {0}, std::vector<std::int64_t>{}}) {
    expect_bad_op(mla_file().settings(kHalf).add("rope_frequencies", "F32", shape),
                  {"\"rope_frequencies\"", "[d_r/2] = [1]"});
  }
  expect_bad_op(gqa_file().settings(kHalf).add("rope_frequencies", "F32", {3}), {"[d/2] = [1]"});
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    expect_bad_op(mla_file().settings(kHalf).add("rope_frequencies", "F32", {1}, {value}),
                  {"frequency is not a finite number"});
  }
}

TEST(OpRotation, KeysOfOneChannelCannotBeRotated) {
  FileBuilder file;
  file.add("q", "F32", {1, 1, 1, 1}).add("k", "F32", {1, 1, 1, 1}).add("v", "F32", {1, 1, 1, 1});
  expect_bad_op(file.settings(kHalf).add("rope_frequencies", "F32", {0}), {"RoPE frequencies"});
}

TEST(OpRotation, TheLayoutIsANameAndBelongsToOperatorFilesOnly) {
  for (const char* value : {"\"\"", "\"halves\"", "0", "null", "true", "[\"half\"]", "{}"}) {
    expect_bad_op(mla_file().settings("{\"rope_layout\":" + std::string(value) + "}"),
                  {"field \"rope_layout\" must be one of half, adjacent"});
  }
  expect_bad_op(mla_file().settings(R"({"rope_layout":"half","rope_layout":"half"})"),
                {"\"rope_layout\" appears twice"});
  expect_error(
      [] { settings_from_json(R"({"rope_layout":"half"})", "x: lca", SettingsScope::layer); },
      {"x: lca: unknown field \"rope_layout\""});
  SettingsObject object;
  object.rope_layout = RopeLayout::adjacent;
  EXPECT_EQ(settings_from_json(settings_to_json(object), "x: lca", SettingsScope::op_file), object);
}

}  // namespace
}  // namespace lca
