#include "formats/byte_files.h"

#include <lca/settings.h>
#include <lca/shape.h>

#include <cmath>

namespace lca {
namespace {

using test::expect_error;

constexpr std::int64_t kLargest = 2147483647;

TEST(Settings, DefaultsAreThePresetTraining) {
  EXPECT_EQ(settings_preset("training"), Settings{});
  EXPECT_NO_THROW(Settings{}.validate());
}

TEST(Settings, PresetsAreTheTableOfTheSpec) {
  Settings paper;
  paper.group = 16, paper.window = 1024, paper.summary_queries = 16, paper.sink = 0;
  paper.summary = Summary::prompt;
  paper.semantic_pool = Pool::weighted, paper.positional_pool = Pool::select;
  paper.mass = Mass::none;
  EXPECT_EQ(settings_preset("paper"), paper);

  Settings free = paper;
  free.sink = 16;
  free.summary = Summary::streaming;
  free.semantic_pool = Pool::select;
  free.mass = Mass::score;
  EXPECT_EQ(paper.positions, Positions::token);
  free.positions = Positions::entry;
  EXPECT_EQ(settings_preset("training-free"), free);

  EXPECT_EQ(settings_presets(),
            (std::vector<std::string_view>{"paper", "training", "training-free"}));
}

TEST(Settings, AnUnknownPresetListsTheNames) {
  expect_error([] { settings_preset("fast\n"); },
               {"preset \"fast\\x0a\"", "paper, training, training-free"});
}

TEST(Settings, FieldsComeInTheOrderOfTheSettingsFile) {
  std::vector<std::string_view> names;
  for (const SettingField& field : setting_fields()) {
    names.push_back(field.name);
    EXPECT_FALSE(field.help.empty()) << field.name;
    EXPECT_EQ(field.is_integer, field.choices.empty()) << field.name;
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{
                       "method", "group", "window", "sink", "summary_queries", "summary",
                       "head_reduce", "semantic_pool", "positional_pool", "mass", "positions"}));
}

TEST(Settings, EveryFieldReadsBackWhatWasSet) {
  for (const SettingField& field : setting_fields()) {
    const std::int64_t count =
        field.is_integer ? 5 : static_cast<std::int64_t>(field.choices.size());
    for (std::int64_t value = field.minimum; value < count; ++value) {
      Settings settings;
      field.set(settings, value);
      EXPECT_EQ(field.get(settings), value) << field.name;
      EXPECT_NO_THROW(settings.validate()) << field.name;
      for (const SettingField& other : setting_fields()) {
        if (other.name != field.name) {
          EXPECT_EQ(other.get(settings), other.get(Settings{})) << field.name << other.name;
        }
      }
    }
  }
}

TEST(Settings, ChoicesAreNamedLikeTheEnum) {
  Settings settings;
  settings_set(settings, "method", "window");
  EXPECT_EQ(settings.method, MethodKind::window);
  settings_set(settings, "method", "dense");
  EXPECT_EQ(settings.method, MethodKind::dense);
  settings_set(settings, "summary", "prompt");
  EXPECT_EQ(settings.summary, Summary::prompt);
  settings_set(settings, "head_reduce", "sum");
  EXPECT_EQ(settings.head_reduce, HeadReduce::sum);
  settings_set(settings, "head_reduce", "max");
  EXPECT_EQ(settings.head_reduce, HeadReduce::max);
  settings_set(settings, "mass", "count");
  EXPECT_EQ(settings.mass, Mass::count);
  settings_set(settings, "mass", "score");
  EXPECT_EQ(settings.mass, Mass::score);
  const std::vector<std::pair<const char*, Pool>> pools = {{"weighted", Pool::weighted},
                                                           {"mean", Pool::mean},
                                                           {"max", Pool::max},
                                                           {"select", Pool::select}};
  for (const auto& [name, pool] : pools) {
    settings_set(settings, "semantic_pool", name);
    EXPECT_EQ(settings.semantic_pool, pool);
    settings_set(settings, "positional_pool", name);
    EXPECT_EQ(settings.positional_pool, pool);
  }
}

TEST(Settings, IntegersComeFromTextWithUnits) {
  Settings settings;
  settings_set(settings, "group", "32");
  EXPECT_EQ(settings.group, 32);
  settings_set(settings, "window", "4K");
  EXPECT_EQ(settings.window, 4096);
  settings_set(settings, "window", "2M");
  EXPECT_EQ(settings.window, 2 * 1024 * 1024);
  settings_set(settings, "sink", "0");
  EXPECT_EQ(settings.sink, 0);
  settings_set(settings, "summary_queries", "2147483647");
  EXPECT_EQ(settings.summary_queries, kLargest);
}

TEST(Settings, TextThatIsNoIntegerInRangeNamesTheField) {
  Settings settings;
  const std::vector<const char*> wrong = {"",
                                          "0",
                                          "-1",
                                          "1.5",
                                          "1e3",
                                          " 1",
                                          "1 ",
                                          "0x10",
                                          "2147483648",
                                          "nan",
                                          "K",
                                          "1k",
                                          "+1",
                                          "2048M",
                                          "1KK",
                                          "true",
                                          "99999999999999999999",
                                          "9223372036854775807K"};
  for (const char* text : wrong) {
    for (const char* name : {"group", "window", "summary_queries"}) {
      expect_error([&] { settings_set(settings, name, text); },
                   {name, "an integer from 1 to 2147483647", "\"" + std::string(text) + "\""});
    }
  }
  expect_error([&] { settings_set(settings, "sink", "-1"); }, {"sink", "from 0 to 2147483647"});
  EXPECT_EQ(settings, Settings{});
}

TEST(Settings, UnknownFieldsAndChoicesAreNamed) {
  Settings settings;
  expect_error([&] { settings_set(settings, "grop", "1"); }, {"unknown setting \"grop\""});
  expect_error([&] { settings_set(settings, "mass", "all"); },
               {"mass", "none, count, score", "\"all\""});
  expect_error([&] { settings_set(settings, "method", "LCA"); }, {"method", "lca, dense, window"});
  expect_error([&] { settings_set(settings, "summary", ""); }, {"summary", "streaming, prompt"});
}

TEST(Settings, ValidateNamesTheFieldThatIsOutOfRange) {
  for (const SettingField& field : setting_fields()) {
    Settings settings;
    if (field.is_integer) {
      for (const std::int64_t value : {field.minimum - 1, kLargest + 1, INT64_MIN, INT64_MAX}) {
        field.set(settings, value);
        expect_error([&] { settings.validate(); }, {std::string(field.name)});
      }
      field.set(settings, kLargest);
      EXPECT_NO_THROW(settings.validate());
    } else {
      field.set(settings, static_cast<std::int64_t>(field.choices.size()));
      expect_error([&] { settings.validate(); }, {std::string(field.name)});
    }
  }
}

TEST(Shapes, NamedShapesAreThePublishedModels) {
  const NamedShape& lite = named_shape("deepseek-v2-lite");
  EXPECT_EQ(lite.shape, AttentionShape::mla(16, 128, 64, 512, 128));
  EXPECT_EQ(lite.layers, 27);
  EXPECT_EQ(lite.hidden, 2048);
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(lite.scale, mscale * mscale / std::sqrt(192.0), 1e-15);
  EXPECT_EQ(lite.shape.entry_values(), 576);

  const NamedShape& minicpm3 = named_shape("minicpm3");
  EXPECT_EQ(minicpm3.shape, AttentionShape::mla(40, 64, 32, 256, 64));
  EXPECT_DOUBLE_EQ(minicpm3.scale, 1 / std::sqrt(96.0));
  EXPECT_EQ(minicpm3.shape.entry_values(), 288);

  const NamedShape& qwen = named_shape("qwen-7b");
  EXPECT_EQ(qwen.shape, AttentionShape::gqa(28, 4, 128, 128));
  EXPECT_DOUBLE_EQ(qwen.scale, 1 / std::sqrt(128.0));
  EXPECT_EQ(qwen.shape.entry_values(), 1024);
  EXPECT_EQ(qwen.shape.heads_per_kv(), 7);

  const NamedShape& smollm2 = named_shape("smollm2");
  EXPECT_EQ(smollm2.shape, AttentionShape::gqa(9, 3, 64, 64));
  EXPECT_DOUBLE_EQ(smollm2.scale, 0.125);

  for (const NamedShape& named : named_shapes()) EXPECT_NO_THROW(named.shape.validate());
}

TEST(Shapes, AnUnknownNameListsTheNames) {
  expect_error([] { named_shape("gpt"); },
               {"\"gpt\"", "deepseek-v2-lite, minicpm3, qwen-7b, smollm2"});
}

TEST(Shapes, WidthsOutOfRangeAreErrors) {
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-1}, (std::int64_t{1} << 20) + 1, INT64_MAX, INT64_MIN}) {
    expect_error([&] { AttentionShape::mla(bad, 1, 1, 1, 1).validate(); }, {"query heads"});
    expect_error([&] { AttentionShape::mla(1, bad, 1, 1, 1).validate(); }, {"non-RoPE key width"});
    expect_error([&] { AttentionShape::mla(1, 1, bad, 1, 1).validate(); }, {"RoPE key width"});
    expect_error([&] { AttentionShape::mla(1, 1, 1, bad, 1).validate(); }, {"latent width"});
    expect_error([&] { AttentionShape::mla(1, 1, 1, 1, bad).validate(); }, {"value width"});
    expect_error([&] { AttentionShape::gqa(bad, 1, 1, 1).validate(); }, {"query heads"});
    expect_error([&] { AttentionShape::gqa(1, bad, 1, 1).validate(); }, {"KV heads"});
    expect_error([&] { AttentionShape::gqa(1, 1, bad, 1).validate(); }, {"key width"});
    expect_error([&] { AttentionShape::gqa(1, 1, 1, bad).validate(); }, {"value width"});
  }
  EXPECT_NO_THROW(AttentionShape::mla(1, 1, 1, 1, 1).validate());
  EXPECT_NO_THROW(AttentionShape::gqa(1 << 20, 1 << 20, 1 << 20, 1 << 20).validate());
}

TEST(Shapes, QueryHeadsMustBeAMultipleOfKvHeads) {
  expect_error([] { AttentionShape::gqa(9, 2, 8, 8).validate(); },
               {"9 query heads are not a multiple of 2 KV heads"});
  expect_error([] { AttentionShape::gqa(2, 4, 8, 8).validate(); }, {"multiple"});
}

TEST(Shapes, FieldsOfTheOtherFormMustStayUnused) {
  AttentionShape shape = AttentionShape::mla(4, 2, 2, 2, 2);
  shape.kv_heads = 2;
  expect_error([&] { shape.validate(); }, {"KV heads must be 1"});
  shape = AttentionShape::gqa(4, 2, 2, 2);
  shape.d_latent = 3;
  expect_error([&] { shape.validate(); }, {"latent width must be 0"});
  shape = AttentionShape::gqa(4, 2, 2, 2);
  shape.d_nope = 3;
  expect_error([&] { shape.validate(); }, {"non-RoPE key width must be 0"});
}

}  // namespace
}  // namespace lca
