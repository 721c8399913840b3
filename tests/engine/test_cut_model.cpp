// A model whose file is cut short, deleted or replaced while sessions use it.

#include <lca/session.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "formats/byte_files.h"
#include "support/golden_model.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

/// A copy of a golden model that may be broken.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name) : golden_(name) {
    fs::copy(golden_.path(), path(), fs::copy_options::recursive);
  }
  fs::path path() const { return folder_ / golden_.path().filename().string(); }
  /// The file with the weights.
  fs::path weights() const {
    return fs::is_directory(path()) ? path() / "model.safetensors" : path();
  }
  void cut() const { fs::resize_file(weights(), fs::file_size(weights()) / 2); }
  std::shared_ptr<const Model> load(std::function<void(double)> progress = {}) const {
    ModelOptions options;
    options.path = path().string();
    options.precision = Precision::f32;
    options.progress = std::move(progress);
    return Model::load(options);
  }

 private:
  ScratchFolder folder_;
  GoldenModel golden_;
};

const std::vector<std::int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};

void expect_cut(const std::function<void()>& work) {
  expect_error(work, {"was cut short by another program"}, ErrorKind::io);
}

class ThreadsCutModel : public testing::TestWithParam<const char*> {};

TEST_P(ThreadsCutModel, DecodingSaysSoAndHandsNothingOut) {
  const ModelCopy copy(GetParam());
  const auto model = copy.load();
  Context context(2);
  Session session(model, context);
  Session fresh(model, context);
  session.prefill(kPrompt);
  session.decode(1);
  const std::vector<float> before(session.logits().begin(), session.logits().end());
  copy.cut();
  for (int again = 0; again < 2; ++again) {
    expect_cut([&] { session.decode(2); });
    EXPECT_EQ(session.length(), static_cast<std::int64_t>(kPrompt.size()) + 1);
    EXPECT_EQ(before, std::vector<float>(session.logits().begin(), session.logits().end()));
  }
  expect_cut([&] { fresh.prefill(kPrompt); });
  EXPECT_TRUE(fresh.logits().empty());
}

TEST_P(ThreadsCutModel, APromptStopsAndItsLogitsAreNotHandedOut) {
  for (const Summary summary : {Summary::streaming, Summary::prompt}) {
    const ModelCopy copy(GetParam());
    const auto model = copy.load();
    Context context(2);
    SessionOptions options;
    options.chunk = 3;
    options.settings = {Settings{}};
    options.settings[0].summary = summary;
    Session session(model, context, options);
    bool is_cut = false;
    bool handed_out = false;
    expect_cut([&] {
      session.prefill(
          kPrompt,
          [&](PrefillProgress progress) {
            if (progress.done > 0 && !is_cut) copy.cut();
            is_cut = is_cut || progress.done > 0;
            return true;
          },
          [&](std::int64_t, std::int64_t, const float*) { handed_out = handed_out || is_cut; });
    });
    EXPECT_FALSE(handed_out);
    // Streaming: at the last whole chunk, with the logits that were handed out.
    EXPECT_EQ(session.length(), summary == Summary::streaming ? 3 : 0);
    EXPECT_EQ(session.logits().empty(), summary == Summary::prompt);
  }
}

TEST_P(ThreadsCutModel, ABatchOfSessionsStops) {
  const ModelCopy copy(GetParam());
  const auto model = copy.load();
  Context context(2);
  Session one(model, context);
  Session two(model, context);
  one.prefill(kPrompt);
  two.prefill(kPrompt);
  copy.cut();
  const std::vector<Session*> sessions = {&one, &two};
  const std::vector<std::int32_t> tokens = {3, 4};
  expect_cut([&] { sessions_decode(sessions, tokens); });
  for (const Session* session : sessions) {
    EXPECT_EQ(session->length(), static_cast<std::int64_t>(kPrompt.size()));
    EXPECT_FALSE(session->logits().empty());
  }
}

TEST_P(ThreadsCutModel, LoadingSaysSo) {
  const ModelCopy copy(GetParam());
  expect_cut([&] { copy.load([&](double) { copy.cut(); }); });
}

TEST_P(ThreadsCutModel, DeletedOrReplacedFilesGoOn) {
  const ModelCopy copy(GetParam());
  const auto model = copy.load();
  Context context(2);
  Session session(model, context);
  session.prefill(kPrompt);
  fs::remove_all(copy.path());
  session.decode(3);
  const std::vector<float> after(session.logits().begin(), session.logits().end());
  Session whole(GoldenModel(GetParam()).load(), context);
  whole.prefill(kPrompt);
  whole.decode(3);
  EXPECT_EQ(after, std::vector<float>(whole.logits().begin(), whole.logits().end()));
}

INSTANTIATE_TEST_SUITE_P(Models, ThreadsCutModel,
                         testing::Values("llama", "gguf_llama_q4_1", "deepseek_v2"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace lca::test
