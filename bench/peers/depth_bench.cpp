// How fast llama.cpp decodes deep in a context, without the hours a prefill of that depth takes: a
// short prompt is read, its part of the KV cache is repeated until the cache is as long as asked
// for, and tokens are decoded after it. Speed does not depend on the values.
//
//   depth_bench MODEL.gguf FLASH(0|1) THREADS TOKENS REPEATS DEPTH...
//
// prints one line of JSON for each depth. It is no part of our build; with a llama.cpp built in
// $LLAMA/build (shared libraries, the default):
//
//   g++ -O2 -std=c++17 -I $LLAMA/include -I $LLAMA/ggml/include bench/peers/depth_bench.cpp
//       -o depth_bench -L $LLAMA/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$LLAMA/build/bin
//
// Written for the state format of llama.cpp b10586; another one ends it with an error, never with
// wrong numbers: llama.cpp checks what is put back.

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr int kRead = 512;  // tokens that are really read

void require(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}

/// Takes numbers from one state and puts them into another.
class Copier {
 public:
  Copier(const Bytes& from, Bytes& to) : from_(from), to_(to) {}

  template <typename T>
  T read() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <typename T>
  void write(T value) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    to_.insert(to_.end(), bytes, bytes + sizeof value);
  }
  template <typename T>
  T copy() {
    const T value = read<T>();
    write(value);
    return value;
  }
  /// Repeats a block of `count` equal items until there are `wanted`.
  void repeat(std::size_t item, std::size_t count, std::size_t wanted) {
    const std::uint8_t* block = take(item * count);
    for (std::size_t done = 0; done < wanted; done += count) {
      to_.insert(to_.end(), block, block + item * std::min(count, wanted - done));
    }
  }
  bool ended() const { return at_ == from_.size(); }

 private:
  const std::uint8_t* take(std::size_t bytes) {
    require(bytes <= from_.size() - at_, "the state is shorter than it says");
    at_ += bytes;
    return from_.data() + at_ - bytes;
  }
  const Bytes& from_;
  Bytes& to_;
  std::size_t at_ = 0;
};

/// The state of a sequence made `depth` tokens long. It holds: a mark and the sequence; streams;
/// cells, each with its position and sequences; then for every layer the keys, a row per cell, and
/// for every layer that has them the values, in rows or transposed.
Bytes state_deepened(const Bytes& state, std::uint32_t depth) {
  Bytes deep;
  Copier copier(state, deep);
  copier.copy<std::uint32_t>();
  const auto sequence = copier.copy<std::int32_t>();
  require(copier.copy<std::uint32_t>() == 1, "the state has several streams");
  const auto cells = copier.read<std::uint32_t>();
  require(cells == kRead, "the state holds other cells than were read");
  copier.write(depth);
  for (std::uint32_t i = 0; i < cells; ++i) {
    copier.read<std::int32_t>();
    require(copier.read<std::uint32_t>() == 1, "a cell belongs to several sequences");
    require(copier.read<std::int32_t>() == sequence, "a cell belongs to another sequence");
  }
  for (std::uint32_t i = 0; i < depth; ++i) {
    copier.write(static_cast<std::int32_t>(i));
    copier.write(std::uint32_t{1});
    copier.write(sequence);
  }
  const bool transposed = copier.copy<std::uint32_t>() != 0;
  const auto layers = copier.copy<std::uint32_t>();
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    copier.copy<std::int32_t>();  // its type
    copier.repeat(copier.copy<std::uint64_t>(), cells, depth);
  }
  while (!copier.ended()) {
    copier.copy<std::int32_t>();
    if (!transposed) {
      copier.repeat(copier.copy<std::uint64_t>(), cells, depth);
      continue;
    }
    const auto element = copier.copy<std::uint32_t>();
    const auto width = copier.copy<std::uint32_t>();
    for (std::uint32_t i = 0; i < width; ++i) copier.repeat(element, cells, depth);
  }
  return deep;
}

/// A model and what is asked of it.
struct Bench {
  llama_model* model;
  bool flash;
  int threads, tokens, repeats;
  std::mt19937 random{1};

  llama_token token() {
    const auto vocabulary =
        static_cast<unsigned>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    return static_cast<llama_token>(random() % vocabulary);
  }

  void decode(llama_context* context, std::vector<llama_token> tokens_now) {
    const auto count = static_cast<std::int32_t>(tokens_now.size());
    require(llama_decode(context, llama_batch_get_one(tokens_now.data(), count)) == 0,
            "decoding failed");
    llama_synchronize(context);
  }

  void measure(std::uint32_t depth) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = std::max<std::uint32_t>(depth, kRead) + static_cast<std::uint32_t>(tokens) + 1;
    params.n_batch = 2048;
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(
        llama_init_from_model(model, params), llama_free);
    require(context != nullptr, "no context of that depth");

    Bytes deep;
    if (depth > 0) {
      std::vector<llama_token> prompt(kRead);
      for (llama_token& id : prompt) id = token();
      decode(context.get(), prompt);
      Bytes state(llama_state_seq_get_size(context.get(), 0));
      require(
          llama_state_seq_get_data(context.get(), state.data(), state.size(), 0) == state.size(),
          "the state cannot be read");
      deep = state_deepened(state, depth);
    }
    double best = 0;
    double sum = 0;
    for (int run = 0; run < repeats; ++run) {
      llama_memory_clear(llama_get_memory(context.get()), false);
      require(
          deep.empty() || llama_state_seq_set_data(context.get(), deep.data(), deep.size(), 0) != 0,
          "llama.cpp does not take the deepened state: its format has changed");
      decode(context.get(), {token()});  // warms up
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < tokens; ++i) decode(context.get(), {token()});
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      sum += seconds;
      best = run == 0 ? seconds : std::min(best, seconds);
    }
    std::printf(
        "{\"depth\": %u, \"flash\": %d, \"tokens_per_s\": %.3f, \"tokens_per_s_mean\": %.3f}\n",
        depth, flash ? 1 : 0, tokens / best, tokens * repeats / sum);
    std::fflush(stdout);
  }
};

int run(int count, char** words) {
  if (count < 7) {
    std::fprintf(stderr,
                 "usage: depth_bench MODEL.gguf FLASH(0|1) THREADS TOKENS REPEATS DEPTH...\n");
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(words[1], llama_model_default_params()), llama_model_free);
  require(model != nullptr, "the model cannot be loaded");
  Bench bench{model.get(), std::atoi(words[2]) != 0, std::max(1, std::atoi(words[3])),
              std::max(1, std::atoi(words[4])), std::max(1, std::atoi(words[5]))};
  for (int i = 6; i < count; ++i) bench.measure(static_cast<std::uint32_t>(std::atoi(words[i])));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "depth_bench: %s\n", error.what());
    return 1;
  }
}
