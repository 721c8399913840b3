// The adapter that comes with a model's name: which commands use it, and how to leave it out. A
// tiny model and its adapter stand in for the real ones.

#include "apps/program.h"
#include "apps/tiny_model.h"
#include "formats/byte_files.h"
#include "support/variable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace lca::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr const char* kNote = "lca: note: with the adapter ";

class NamedAdapter : public testing::Test {
 protected:
  NamedAdapter()
      : home_("LCA_HOME", folder_.path().c_str()), models_("LCA_MODELS", folder_.path().c_str()) {
    const fs::path golden = fs::path(LCA_SOURCE_DIR) / "tests/golden/models";
    fs::copy_file(golden / "gguf_llama_q4_1/model.gguf",
                  folder_ / "SmolLM2-135M-Instruct.Q4_1.gguf");
    adapter_install(folder_ / "smollm2-lca");
  }

  static void adapter_install(const fs::path& to) {
    const fs::path from = fs::path(LCA_SOURCE_DIR) / "tests/golden/models/adapter_gguf_q4_1";
    fs::create_directories(to);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      fs::copy_file(from / file, to / file);
    }
    write_file(to / "lca.json", R"({"group": 4, "window": 8})");
  }

  std::string adapter() const { return fs::canonical(folder_ / "smollm2-lca").string(); }
  std::string file() const { return (folder_ / "SmolLM2-135M-Instruct.Q4_1.gguf").string(); }

  Finished done(const Words& words) const {
    Finished finished = program_run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished;
  }
  json printed(const Words& words) const { return json::parse(done(words).out); }
  /// The logits that a model writes, as bytes.
  std::string logits(Words words) const {
    const std::string out = (folder_ / "logits").string();
    words.insert(words.begin(), "logits");
    words.insert(words.end(),
                 {"--tokens", "5,17,80,3,44,21,9,60,33,2,71,14,8,50,36,27", "--out", out});
    done(words);
    return read_file(out);
  }

  ScratchFolder folder_;
  Variable home_, models_;
};

TEST_F(NamedAdapter, IsUsedWithTheNameAndMethodLca) {
  const std::string with = logits({"smollm2"});
  EXPECT_EQ(with, logits({file(), "--adapter", adapter()}));
  EXPECT_EQ(with, logits({"smollm2", "--method", "lca"}));
  const std::string bare = logits({"smollm2", "--adapter", "none"});
  EXPECT_NE(with, bare);
  EXPECT_EQ(bare, logits({file()}));
  EXPECT_EQ(logits({"smollm2", "--method", "dense"}), logits({file(), "--method", "dense"}));
  EXPECT_EQ(logits({"smollm2", "--method", "dense", "--adapter", adapter()}),
            logits({file(), "--method", "dense", "--adapter", adapter()}));
}

TEST_F(NamedAdapter, CommandsSayThatItIsOn) {
  const auto note = [&](Words words) {
    words.insert(words.end(), {"--raw", "-p", "ab", "-n", "2"});
    words.insert(words.begin(), "run");
    return done(words).err;
  };
  EXPECT_THAT(note({"smollm2"}), HasSubstr(kNote + adapter()));
  EXPECT_THAT(note({"smollm2", "--adapter", "none"}), Not(HasSubstr(kNote)));
  EXPECT_THAT(note({"smollm2", "--method", "dense"}), Not(HasSubstr(kNote)));
  EXPECT_THAT(note({file()}), Not(HasSubstr(kNote)));

  const Words reply = {"run", "smollm2", "--raw", "-p", "ab", "-n", "2", "--json"};
  EXPECT_EQ(printed(reply)["adapter"], adapter());
  EXPECT_EQ(printed(reply)["settings"]["group"], 4);
  Words dense = reply;
  dense.insert(dense.end(), {"--method", "dense"});
  EXPECT_TRUE(printed(dense)["adapter"].is_null());

  const json measured = printed({"bench", "model", "smollm2", "--prompt", "8", "--depths", "none",
                                 "--repeat", "1", "--json"});
  EXPECT_EQ(measured["adapter"], adapter());
  const json facts = printed({"inspect", "smollm2", "--json"});
  EXPECT_EQ(facts["adapter"], adapter());
  EXPECT_EQ(facts["settings"]["window"], 8);
  EXPECT_THAT(done({"inspect", "smollm2"}).out, HasSubstr(adapter()));
  EXPECT_TRUE(printed({"inspect", "smollm2", "--adapter", "none", "--json"})["adapter"].is_null());
}

TEST_F(NamedAdapter, IsCountedInAPlan) {
  const json with = printed({"plan", "smollm2", "--length", "1K", "--json"});
  EXPECT_EQ(with["adapter"], adapter());
  EXPECT_EQ(with["settings"]["group"], 4);
  const std::int64_t bytes = with["lca"]["adapter_bytes"];
  EXPECT_EQ(bytes, printed({"inspect", "smollm2", "--json"})["adapter_bytes"]);
  EXPECT_GT(bytes, 0);
  const json bare = printed({"plan", "smollm2", "--length", "1K", "--adapter", "none", "--group",
                             "4", "--window", "8", "--sink", "0", "--json"});
  EXPECT_EQ(bare["lca"]["adapter_bytes"], 0);
  EXPECT_EQ(with["lca"]["total_bytes"].get<std::int64_t>() - bytes,
            with["lca"]["weights_bytes"].get<std::int64_t>() +
                with["lca"]["cache_bytes"].get<std::int64_t>() +
                with["lca"]["workspace_bytes"].get<std::int64_t>());
  EXPECT_THAT(done({"plan", "smollm2", "--length", "1K"}).out, HasSubstr("adapter beside them"));
}

TEST_F(NamedAdapter, ASessionIsContinuedAsItBegan) {
  const std::string dense = (folder_ / "dense.session").string();
  const std::string condensed = (folder_ / "lca.session").string();
  const auto talk = [&](const std::string& session, const Words& more) {
    Words words = {"run", "smollm2", "--raw", "-p", "ab", "-n", "2", "--session", session};
    words.insert(words.end(), more.begin(), more.end());
    return program_run(words);
  };
  EXPECT_EQ(talk(dense, {"--method", "dense"}).code, 0);
  EXPECT_EQ(talk(condensed, {}).code, 0);
  const Finished again = talk(dense, {});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr(kNote)));
  EXPECT_THAT(talk(condensed, {}).err, HasSubstr(kNote));
  EXPECT_TRUE(talk(condensed, {"--adapter", "none"}).code != 0);
  for (const std::string& session : {dense, condensed}) {
    const std::string fork = session + ".fork";
    done({"session", "fork", session, fork, "--length", "3", "--model", "smollm2"});
  }
}

TEST_F(NamedAdapter, WithoutItEverythingIsAsBefore) {
  fs::remove_all(folder_ / "smollm2-lca");
  EXPECT_EQ(logits({"smollm2"}), logits({file()}));
  EXPECT_THAT(done({"run", "smollm2", "--raw", "-p", "ab", "-n", "2"}).err, Not(HasSubstr(kNote)));
  EXPECT_TRUE(printed({"inspect", "smollm2", "--json"})["adapter"].is_null());
}

TEST_F(NamedAdapter, ADamagedOneIsOneLine) {
  write_file(folder_ / "smollm2-lca/adapter_model.safetensors", "short");
  const Words words = {"run", "smollm2", "--raw", "-p", "ab", "-n", "2"};
  const Finished finished = program_run(words);
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.err, HasSubstr("smollm2-lca/adapter_model.safetensors"));
}

// As in an installation: bin/lca and share/lca/models.
TEST_F(NamedAdapter, IsFoundBesideTheProgram) {
  const Variable unset("LCA_MODELS", nullptr);
  fs::create_directories(folder_ / "prefix/bin");
  fs::copy_file(LCA_PROGRAM, folder_ / "prefix/bin/lca");
  adapter_install(folder_ / "prefix/share/lca/models/smollm2-lca");
  const std::string out = (folder_ / "facts.json").string();
  const std::string command =
      (folder_ / "prefix/bin/lca").string() + " inspect smollm2 --json > " + out;
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(json::parse(read_file(out))["adapter"],
            fs::canonical(folder_ / "prefix/share/lca/models/smollm2-lca").string());
}

TEST(DemoWithAnAdapter, ComparesItWithTheBareModel) {
  TinyModel model;
  model.write();
  const ScratchFolder adapter;
  const std::string stem = "base_model.model.model.layers.0.self_attn.o_proj";
  const std::int64_t hidden = TinyModel::kHidden;
  write_file(adapter / "adapter_model.safetensors",
             FileBuilder()
                 .add(stem + ".lora_A.weight", "F32", {1, hidden}, TinyModel::noise(hidden, 1, 1))
                 .add(stem + ".lora_B.weight", "F32", {hidden, 1}, TinyModel::noise(hidden, 2, 1))
                 .bytes());
  write_file(adapter / "adapter_config.json", R"({"peft_type":"LORA","r":1,"lora_alpha":4})");
  write_file(adapter / "document", "A lighthouse stood on a rock.");
  const auto demo = [&](const std::string& folder) {
    const Finished finished =
        program_run({"demo", "--model", model.path(), "--document", (adapter / "document").string(),
                     "-n", "6", "--adapter", folder});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  const auto dense_answer = [](const std::string& out) {
    const std::size_t begin = out.find('\n', out.find("Dense"));
    return out.substr(begin, out.find("\n\n", begin) - begin);
  };
  const std::string with = demo(adapter.path().string()), without = demo("none");
  EXPECT_THAT(with, HasSubstr("Dense, without the adapter, answers:"));
  EXPECT_THAT(without, HasSubstr("Dense answers:"));
  EXPECT_EQ(dense_answer(with), dense_answer(without));
}

}  // namespace
}  // namespace lca::test
