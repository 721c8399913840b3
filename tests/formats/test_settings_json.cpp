#include "byte_files.h"
#include "formats/settings_json.h"

#include <limits>

namespace lca {
namespace {

using test::expect_error;

SettingsObject parse(std::string_view text, SettingsScope scope = SettingsScope::op_file) {
  return settings_from_json(text, "x: lca", scope);
}

void expect_bad(const std::string& text, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "x: lca: ");
  expect_error([&] { parse(text); }, parts);
}

TEST(SettingsJson, AnEmptyObjectIsThePresetTraining) {
  EXPECT_EQ(parse("{}"), SettingsObject{});
  EXPECT_EQ(parse(" { } \n").settings, settings_preset("training"));
}

TEST(SettingsJson, ReadsEveryField) {
  const SettingsObject object = parse(R"({"method":"window","group":3,"window":7,"sink":0,
      "summary_queries":5,"summary":"prompt","head_reduce":"sum","semantic_pool":"max",
      "positional_pool":"mean","mass":"score","scale":0.0722,"prefill":[4,1,2]})");
  EXPECT_EQ(object.settings.method, MethodKind::window);
  EXPECT_EQ(object.settings.group, 3);
  EXPECT_EQ(object.settings.window, 7);
  EXPECT_EQ(object.settings.sink, 0);
  EXPECT_EQ(object.settings.summary_queries, 5);
  EXPECT_EQ(object.settings.summary, Summary::prompt);
  EXPECT_EQ(object.settings.head_reduce, HeadReduce::sum);
  EXPECT_EQ(object.settings.semantic_pool, Pool::max);
  EXPECT_EQ(object.settings.positional_pool, Pool::mean);
  EXPECT_EQ(object.settings.mass, Mass::score);
  EXPECT_EQ(object.scale, 0.0722);
  EXPECT_EQ(object.prefill, (std::vector<std::int64_t>{4, 1, 2}));
}

TEST(SettingsJson, MissingFieldsTakeTheirDefaults) {
  SettingsObject expected;
  expected.settings.group = 8;
  EXPECT_EQ(parse(R"({"group":8})"), expected);
}

TEST(SettingsJson, IntegersMustBeIntegersInRange) {
  for (const char* name : {"group", "window", "summary_queries", "sink"}) {
    for (const char* value :
         {"1.0", "1.5", "1e3", "true", "false", "null", "\"1\"", "2147483648", "-1",
          "9223372036854775808", "18446744073709551616", "1e999", "-9223372036854775809"}) {
      expect_bad("{\"" + std::string(name) + "\":" + value + "}",
                 {"field \"" + std::string(name) + "\" must be an integer from ", value});
    }
    expect_bad("{\"" + std::string(name) + "\":[1]}", {name, "not a list"});
    expect_bad("{\"" + std::string(name) + "\":{}}", {name, "not an object"});
    EXPECT_NO_THROW(parse("{\"" + std::string(name) + "\":2147483647}"));
  }
  for (const char* name : {"group", "window", "summary_queries"}) {
    expect_bad("{\"" + std::string(name) + "\":0}", {name, "from 1 to 2147483647, not 0"});
  }
}

TEST(SettingsJson, ChoicesMustBeKnownNames) {
  for (const SettingField& field : setting_fields()) {
    if (field.is_integer) continue;
    const std::string name(field.name);
    for (const char* value : {"\"\"", "\"best\"", "0", "null", "true", "1.5"}) {
      expect_bad("{\"" + name + "\":" + value + "}",
                 {"field \"" + name + "\" must be one of ", std::string(field.choices[0]), value});
    }
    expect_bad("{\"" + name + "\":[\"" + std::string(field.choices[0]) + "\"]}", {name, "a list"});
  }
}

TEST(SettingsJson, TheScaleMustBeFiniteAndPositive) {
  EXPECT_EQ(parse(R"({"scale":1})").scale, 1.0);
  EXPECT_EQ(parse(R"({"scale":1e-300})").scale, 1e-300);
  for (const char* value : {"0", "0.0", "-0.0", "-1", "1e999", "-1e999", "1e-999", "null", "true",
                            "\"1\"", "[1]", "{}"}) {
    expect_bad("{\"scale\":" + std::string(value) + "}",
               {"field \"scale\" must be a finite number above 0"});
  }
  for (const char* value : {"NaN", "Infinity", "-Infinity", "nan", ".5", "1.", "+1"}) {
    expect_bad("{\"scale\":" + std::string(value) + "}", {"bad JSON"});
  }
}

TEST(SettingsJson, PrefillMustBeANonEmptyListOfIntegersFromOne) {
  for (const char* value :
       {"[0]", "[-1]", "[1,0]", "[1.0]", "[true]", "[null]", "[\"1\"]", "[]", "[[1]]", "[1,[2]]",
        "[{}]", "5", "null", "\"1\"", "{}", "[1e999]", "[9223372036854775808]"}) {
    expect_bad("{\"prefill\":" + std::string(value) + "}",
               {"field \"prefill\" must be a list of integers from 1"});
  }
  EXPECT_EQ(parse(R"({"prefill":[9223372036854775807]})").prefill.size(), 1u);  // n is not known
}

TEST(SettingsJson, UnknownAndRepeatedFieldsAreNamed) {
  expect_bad(R"({"grop":1})", {"unknown field \"grop\""});
  expect_bad(R"({"Group":1})", {"unknown field \"Group\""});
  expect_bad(R"({"":1})", {"unknown field \"\""});
  expect_bad("{\"" + std::string(100000, 'x') + "\":1}", {"unknown field \"xxx", "…"});
  expect_bad(R"({"\u001b\n":1})", {"unknown field \"\\x1b\\x0a\""});
  expect_bad(R"({"group":1,"group":1})", {"field \"group\" appears twice"});
  expect_bad(R"({"scale":1,"scale":1})", {"field \"scale\" appears twice"});
  expect_bad(R"({"prefill":[1],"prefill":[1]})", {"field \"prefill\" appears twice"});
}

TEST(SettingsJson, ScaleAndPrefillBelongToOperatorFilesOnly) {
  for (const char* text : {R"({"scale":1})", R"({"prefill":[1]})"}) {
    expect_error([&] { parse(text, SettingsScope::layer); }, {"x: lca: unknown field"});
  }
  EXPECT_EQ(parse(R"({"sink":4})", SettingsScope::layer).settings.sink, 4);
}

TEST(SettingsJson, TextThatIsNotAnObjectIsAnError) {
  for (const char* text : {"", "{", "}", "{\"group\"}", "{\"group\":}", "{\"group\":1,}", "{}{}",
                           "{\"group\":1 \"sink\":2}", "\xef\xbb\xbf{}", "// no\n{}", "\xff"}) {
    expect_bad(text, {"bad JSON"});
  }
  for (const char* text : {"null", "1", "true", "\"{}\"", "[]", "[{}]"}) {
    expect_bad(text, {"must be an object, not"});
  }
  expect_bad(std::string("{}\0x", 4), {"a zero byte"});
}

TEST(SettingsJson, DepthBombsAreErrorsAndNoStackOverflows) {
  expect_bad(std::string(5'000'000, '['), {"must be an object, not a list"});
  expect_bad("{\"prefill\":" + std::string(5'000'000, '['), {"prefill", "a list"});
  expect_bad("{\"scale\":" + std::string(5'000'000, '['), {"scale", "a list"});
}

TEST(SettingsJson, WritesWhatItReads) {
  SettingsObject object;
  EXPECT_EQ(settings_to_json(object),
            R"({"method":"lca","group":16,"window":1024,"sink":0,"summary_queries":16,)"
            R"("summary":"streaming","head_reduce":"mean","semantic_pool":"weighted",)"
            R"("positional_pool":"select","mass":"none","positions":"token"})");
  for (const double scale : {1.0, 0.0722, 0.1147213867929261, 1e-300, 5e-324, 1.7e308, 3e20}) {
    object.scale = scale;
    object.prefill.push_back(17);
    EXPECT_EQ(parse(settings_to_json(object)), object);
  }
  for (const SettingField& field : setting_fields()) {
    SettingsObject changed;
    field.set(changed.settings, 2);
    if (!field.is_integer && field.choices.size() < 3) field.set(changed.settings, 1);
    EXPECT_EQ(parse(settings_to_json(changed), SettingsScope::layer), changed);
  }
}

std::vector<Settings> parse_layers(std::string_view text, std::int64_t layers) {
  return settings_layers_from_json(text, "x: lca", layers);
}

void expect_bad_layers(const std::string& text, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "x: lca: ");
  expect_error([&] { parse_layers(text, 3); }, parts);
}

TEST(SettingsLayers, OneValueIsForAllLayers) {
  EXPECT_EQ(parse_layers("{}", 3), std::vector<Settings>(3));
  Settings expected;
  expected.group = 8;
  expected.mass = Mass::count;
  EXPECT_EQ(parse_layers(R"({"group":8,"mass":"count"})", 2), std::vector<Settings>(2, expected));
}

TEST(SettingsLayers, AnyFieldMayBeAListWithOneValueForEach) {
  for (const SettingField& field : setting_fields()) {
    std::string list;
    for (const int value : {1, 0, 1}) {
      if (!list.empty()) list += ",";
      const auto index = static_cast<std::size_t>(value);
      list += field.is_integer ? std::to_string(value + 1)
                               : "\"" + std::string(field.choices[index]) + "\"";
    }
    const std::vector<Settings> layers =
        parse_layers("{\"" + std::string(field.name) + "\":[" + list + "]}", 3);
    std::vector<Settings> expected(3);
    for (const std::size_t i : {0u, 1u, 2u}) {
      field.set(expected[i], (i != 1 ? 1 : 0) + (field.is_integer ? 1 : 0));
    }
    EXPECT_EQ(layers, expected) << field.name;
  }
}

TEST(SettingsLayers, ListsOfAnotherLengthNameBothNumbers) {
  expect_bad_layers(R"({"group":[1,2]})", {"field \"group\" has 2 values", "3 layers"});
  expect_bad_layers(R"({"group":[1,2,3,4]})", {"has 4 values", "3 layers"});
  expect_bad_layers(R"({"mass":[]})", {"has 0 values"});
}

TEST(SettingsLayers, WrongValuesAndFieldsAreNamed) {
  expect_bad_layers(R"({"group":[1,0,1]})", {"field \"group\" must be an integer from 1", "0"});
  expect_bad_layers(R"({"group":"8"})", {"group", "\"8\""});
  expect_bad_layers(R"({"group":[1,[2],3]})", {"group", "one with a list"});
  expect_bad_layers(R"({"group":{}})", {"group", "an object"});
  expect_bad_layers(R"({"mass":["none","best","none"]})", {"mass", "one of none", "best"});
  expect_bad_layers(R"({"grop":[1,2,3]})", {"unknown field \"grop\""});
  expect_bad_layers(R"({"scale":1})", {"unknown field \"scale\""});
  expect_bad_layers(R"({"group":1,"group":[1,1,1]})", {"appears twice"});
  expect_bad_layers("[]", {"must be an object, not a list"});
  expect_bad_layers("3", {"must be an object, not 3"});
  expect_bad_layers("{", {"bad JSON"});
  expect_error([] { parse_layers("{}", 0); }, {"layers must be from 1"});
  expect_error([] { parse_layers("{}", std::int64_t{1} << 40); }, {"layers must be from 1"});
}

TEST(SettingOverrides, ReplaceWhatTheyName) {
  SettingsObject object = parse(R"({"group":4,"mass":"count","scale":2,"prefill":[1,2]})");
  const std::vector<SettingOverride> changes = {
      {"group", "8"}, {"semantic_pool", "mean"}, {"scale", "0.5"}, {"prefill", "3,4,5"}};
  settings_override(object, changes);
  EXPECT_EQ(object.settings.group, 8);
  EXPECT_EQ(object.settings.semantic_pool, Pool::mean);
  EXPECT_EQ(object.settings.mass, Mass::count);
  EXPECT_EQ(object.scale, 0.5);
  EXPECT_EQ(object.prefill, (std::vector<std::int64_t>{3, 4, 5}));
}

TEST(SettingOverrides, APresetReplacesTheFileAndSingleSettingsReplaceThePreset) {
  SettingsObject object = parse(R"({"group":4,"mass":"count","scale":2})");
  const std::vector<SettingOverride> changes = {{"sink", "7"}, {"preset", "training-free"}};
  settings_override(object, changes);
  Settings expected = settings_preset("training-free");
  expected.sink = 7;
  EXPECT_EQ(object.settings, expected);
  EXPECT_EQ(object.scale, 2.0);
}

TEST(SettingOverrides, WrongOnesAreNamed) {
  const auto expect_bad_override = [](const std::string& name, const std::string& text) {
    SettingsObject object;
    const std::vector<SettingOverride> changes = {{name, text}};
    expect_error([&] { settings_override(object, changes); }, {name, text});
  };
  expect_bad_override("group", "0");
  expect_bad_override("preset", "best");
  expect_bad_override("colour", "");
  for (const char* text : {"", "0", "-1", "nan", "inf", "1x", "1e999", "1e-999", " 1"}) {
    expect_bad_override("scale", text);
  }
  for (const char* text : {"", ",", "1,", ",1", "1,,2", "0", "-1", "1.5", "1 ,2", "x"}) {
    SettingsObject object;
    const std::vector<SettingOverride> changes = {{"prefill", text}};
    expect_error([&] { settings_override(object, changes); }, {"prefill must be a list"});
  }
}

}  // namespace
}  // namespace lca
