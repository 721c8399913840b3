#pragma once
/// Hosts of a tiny model whose 96 tokens can spell a conversation, and what became of their jobs.

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/byte_tokenizer.h"
#include "engine/saved_session.h"
#include "server/host/host.h"

namespace lca::test {

/// Tokens below 96: two marks of a conversation, letters, digits, and pairs of letters, so that a
/// text has more than one spelling in tokens. The other bytes come after those.
inline Tokenizer chat_tokenizer() {
  const std::vector<std::string> bytes = byte_spellings();
  const std::vector<std::string> pairs = {"th", "en", "ab", "ou", "xy", "AB", "us", "er"};
  std::vector<std::string> spellings = {"<none>", "<|im_start|>", "<|im_end|>"};
  std::string first = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?:;-()";
  for (const char letter : first) {
    spellings.push_back(bytes[static_cast<unsigned char>(letter)]);
  }
  spellings.insert(spellings.end(), pairs.begin(), pairs.end());
  for (const std::string& spelling : bytes) {
    if (std::ranges::find(spellings, spelling) == spellings.end()) spellings.push_back(spelling);
  }
  GgufTokenizer tables;
  tables.model = "gpt2";
  tables.pre = "smollm";
  for (std::size_t id = 0; id < spellings.size(); ++id) {
    tables.tokens.emplace_back(spellings[id]);
    tables.types.push_back(id < 3 ? 3 : 1);
  }
  tables.end = 2;
  std::vector<std::string> merges;
  for (const std::string& pair : pairs) merges.push_back({pair[0], ' ', pair[1]});
  for (const std::string& merge : merges) tables.merges.emplace_back(merge);
  return tokenizer_from_tables(tables, "chat tokenizer");
}

/// The events of a job.
struct Events {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<server::JobEvent> all;
  int choices = 1;
  bool is_over = false;

  void add(server::JobEvent event) {
    const std::lock_guard guard(mutex);
    EXPECT_FALSE(is_over) << "an event after the last";
    using Kind = server::JobEvent::Kind;
    if (event.kind == Kind::done) --choices;
    is_over = event.kind == Kind::failed || choices == 0;
    all.push_back(std::move(event));
    changed.notify_all();
  }
  bool wait(double seconds = 20) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return is_over; });
  }
  /// Waits for an event of a kind.
  bool wait_for(server::JobEvent::Kind kind) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] {
      return is_over || std::ranges::find(all, kind, &server::JobEvent::kind) != all.end();
    });
  }
  std::string text(int choice = 0) const {
    std::string made;
    for (const server::JobEvent& event : all) {
      if (event.choice == choice) made += event.text;
    }
    return made;
  }
  const server::JobEvent& last() const { return all.back(); }
  int status() const { return last().error ? last().error->status : 200; }
};

/// A host, and jobs on it.
struct HostBench {
  explicit HostBench(const server::HostOptions& wanted = usual())
      : model(shared_model()), host(model, context, wanted) {}

  static std::shared_ptr<const Model> shared_model() {
    static const std::shared_ptr<const Model> made = GoldenModel("llama").load(Precision::f32);
    return made;
  }
  static server::HostOptions usual() {
    static const Tokenizer tokenizer = chat_tokenizer();
    static const ChatTemplate chat(tokenizer, ChatFormat::chatml);
    server::HostOptions options;
    options.tokenizer = tokenizer;
    options.chat = chat;
    options.context = 4096;
    options.cut_distance = 32;
    options.mark_distance = 128;
    options.engine.memory_bytes = std::size_t{256} << 20;
    options.engine.most_sessions = 16;
    options.session.settings = {small_settings()};
    options.session.chunk = 64;
    options.progress_seconds = 0;
    return options;
  }

  static server::Job chat(const std::vector<std::pair<std::string, std::string>>& messages,
                          std::int64_t max_tokens = 12, std::uint64_t seed = 5) {
    server::Job job;
    std::vector<server::Message> list;
    for (const auto& [role, text] : messages) list.push_back({role, text});
    job.prompt = std::move(list);
    job.generate.max_tokens = max_tokens;
    job.generate.sampling.temperature = 1;
    job.generate.sampling.seed = seed;
    job.seeded = true;
    job.ignore_end = true;
    return job;
  }
  static server::Job ids(std::int64_t count, std::uint32_t seed, std::int64_t max_tokens = 12) {
    server::Job job = chat({}, max_tokens, seed);
    job.prompt = some_tokens(count, 96, seed);
    return job;
  }
  std::shared_ptr<Events> submit(server::Job job) {
    auto events = std::make_shared<Events>();
    events->choices = job.n;
    last_id = host.submit(std::move(job),
                          [events](server::JobEvent event) { events->add(std::move(event)); });
    return events;
  }
  std::shared_ptr<Events> run(server::Job job) {
    auto events = submit(std::move(job));
    EXPECT_TRUE(events->wait());
    return events;
  }

  std::shared_ptr<const Model> model;
  Context context{2};
  server::EngineHost host;
  server::JobId last_id = 0;
};

inline std::string long_text(std::size_t length, unsigned seed = 1) {
  std::string text;
  while (text.size() < length) {
    seed = seed * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (seed >> 16) % 26);
    if (seed % 5 == 0) text += ' ';
  }
  return text;
}

using Talk = std::vector<std::pair<std::string, std::string>>;

/// Replies without the marks of a conversation, and sessions in a folder.
inline server::HostOptions with_sessions(const ScratchFolder& folder) {
  server::HostOptions options = HostBench::usual();
  options.sessions = (folder / "sessions").string();
  options.hooks.adjust = [](const server::Job&, int, std::int64_t) {
    return [](std::span<const std::int32_t>, std::span<float> logits) {
      for (std::size_t id = 0; id < 3; ++id) logits[id] = -std::numeric_limits<float>::infinity();
    };
  };
  return options;
}

inline server::Job named(const Talk& talk, const std::string& name, std::uint64_t seed = 5) {
  server::Job job = HostBench::chat(talk, 12, seed);
  job.session = name;
  return job;
}

/// A place in a job where it is held until the test lets it go.
class HostGate {
 public:
  /// Called by a thread of the host: waits until it is let through.
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || arrived_ <= let_; });
  }
  /// Waits until somebody stands in front of it.
  bool wait_arrival(int count = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return arrived_ >= count; });
  }
  /// Lets one through.
  void let() {
    const std::lock_guard guard(mutex_);
    ++let_;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard guard(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int let_ = 0;
  bool open_ = false;
};

}  // namespace lca::test
