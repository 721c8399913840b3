#include "model_flags.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/model_home.h"
#include "formats/adapter.h"
#include "models/precision.h"
#include "terminal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>

namespace lca::cli {
namespace {

constexpr double kHottest = 100;  // higher temperatures are taken for typing errors
constexpr std::int64_t kLongestChunk = std::int64_t{1} << 20;

std::string standard_input_read() {
  std::string text;
  std::array<char, 65536> block;
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      fail_input("standard input cannot be read: {}", std::generic_category().message(errno));
    }
  }
}

}  // namespace

void ModelArgument::add(CLI::App& app, Need need) {
  CLI::Option* option =
      app.add_option("MODEL", text_, "a Hugging Face folder, a .gguf file, or smollm2");
  option->type_name("PATH|NAME");
  if (need == Need::required) option->required();
}

void ModelArgument::add_flag(CLI::App& app, const std::string& fallback) {
  text_ = fallback;
  app.add_option(
         "--model", text_,
         fmt::format("a Hugging Face folder, a .gguf file, or a name (default {})", fallback))
      ->type_name("PATH|NAME")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::filesystem::path ModelArgument::path() const {
  if (text_.empty()) fail_input("MODEL is empty; it takes a folder, a .gguf file, or smollm2");
  return model_resolve(text_);
}

void WeightsFlag::add(CLI::App& app) {
  flag_.add(app, "--weights", "keep|q8_0|q4_0",
            "pack F32, F16 and BF16 weights into 8 or 4 bits while loading", "keep");
}

WeightPacking WeightsFlag::read() const {
  static constexpr std::string_view kNames[] = {"keep", "q8_0", "q4_0"};
  return static_cast<WeightPacking>(choice_parse("--weights", flag_.text, kNames));
}

void CacheFlag::add(CLI::App& app) {
  flag_.add(app, "--cache", "bf16|int8",
            "cpu: store the cache in 8 bits, all but the sink; bf16: in the type of --precision",
            "bf16");
}

CacheStorage CacheFlag::read() const {
  static constexpr std::string_view kNames[] = {"bf16", "int8"};
  return static_cast<CacheStorage>(choice_parse("--cache", flag_.text, kNames));
}

void ModelFlags::add(CLI::App& app, const std::string& precision) {
  model_.add(app);
  add_common(app, precision, KnobFlags::MethodFlag::yes);
}

void ModelFlags::add_for_measuring(CLI::App& app) {
  model_.add(app, ModelArgument::Need::optional);
  random_.add(app, "--random", shape_names(),
              "instead of MODEL: random weights of that shape, made on the GPU");
  skew_.add(app, "--skew", "X",
            "with --random: the first expert is chosen X times as often as the mean", "1");
  add_common(app, "auto", KnobFlags::MethodFlag::yes);
}

void ModelFlags::add_for_comparison(CLI::App& app, const std::string& model) {
  model_.add_flag(app, model);
  add_common(app, "auto", KnobFlags::MethodFlag::no);
}

void ModelFlags::add_common(CLI::App& app, const std::string& precision,
                            KnobFlags::MethodFlag method_flag) {
  adapter_.add(app, "a PEFT LoRA folder to apply");
  precision_.add(app, "--precision", "auto|f32|bf16",
                 "type of matrix products and of the cache; auto: bf16", precision);
  weights_.add(app);
  chunk_.add(app, "--chunk", "N", "tokens of a prompt per chunk; tuned unless given");
  where_.add(app, "auto");
  groups_.add(app, "--groups", "bf16|fp8|int8", "cuda: how representatives are stored", "bf16");
  cache_.add(app);
  common_.add(app);
  knobs_.add(app, method_flag, KnobFlags::ScaleFlag::no);
}

void ModelFlags::check() const {
  precision();
  weights_.read();
  chunk();
  threads();
  adapter_.check();
  knobs_.apply(Settings{});
  where_.apply();
  groups();
  cache_.read();
  if (!random_.given()) {
    if (skew_.given()) fail_input("--skew is for random weights; add --random, or leave it out");
    return;
  }
  skew();
  if (model_.given()) fail_input("give either MODEL or --random, not both");
  if (!adapter_.folder("", {}).empty()) fail_input("--random takes no --adapter");
  named_shape(random_.text);
}

GroupStorage ModelFlags::groups() const {
  static constexpr std::string_view kNames[] = {"bf16", "fp8", "int8"};
  return static_cast<GroupStorage>(choice_parse("--groups", groups_.text, kNames));
}

double ModelFlags::skew() const { return number_parse("--skew", skew_.text, 0.01, 1000); }

Precision ModelFlags::precision() const {
  return static_cast<Precision>(choice_parse("--precision", precision_.text, kPrecisionNames));
}

std::int64_t ModelFlags::chunk() const {
  return chunk_.given() ? count_parse("--chunk", chunk_.text, 1, kLongestChunk) : 0;
}

std::shared_ptr<const Model> ModelFlags::load(std::span<const Settings> saved) const {
  const Settings asked = knobs_.apply(Settings{});
  if (saved.empty()) saved = {&asked, 1};
  return load_with(adapter_.folder_shown(model_.text(), saved));
}

std::shared_ptr<const Model> ModelFlags::load_base() const { return load_with(""); }

std::shared_ptr<const Model> ModelFlags::load_with(const std::string& adapter) const {
  ModelOptions options;
  if (random_.given()) {
    options.random = random_.text;
    options.random_skew = skew();
  } else {
    options.path = path().string();
  }
  options.groups = groups();
  options.cache = cache_.read();
  options.adapter = adapter;
  options.precision = precision();
  options.weights = weights_.read();
  options.device = where_.device.text;
  options.threads = threads();
  Progress progress(1);
  progress.step("loading the model", 0);
  options.progress = [&progress](double share) { progress.reached(share, "loading the model"); };
  return Model::load(options);
}

SessionOptions ModelFlags::session_options(const Model& model) const {
  return {knobs_.apply(model.settings()), chunk()};
}

void AdapterFlag::add(CLI::App& app, const std::string& help) {
  flag_.add(app, "--adapter", "DIR|none",
            help + "; unless given the one that comes with a name, with method lca");
}

void AdapterFlag::check() const {
  if (given() && flag_.text.empty()) fail_input("--adapter is empty; it takes a folder, or none");
}

std::string AdapterFlag::folder(std::string_view model, std::span<const Settings> layers) const {
  check();
  if (given()) return flag_.text == "none" ? "" : flag_.text;
  const bool trained_so = std::ranges::all_of(
      layers, [](const Settings& settings) { return settings.method == MethodKind::lca; });
  return trained_so ? model_adapter(model).string() : "";
}

std::string AdapterFlag::folder_shown(std::string_view model,
                                      std::span<const Settings> layers) const {
  const std::string found = folder(model, layers);
  if (!found.empty() && !given()) {
    print_note(fmt::format("lca: note: with the adapter {}; --adapter none is {} without it",
                           path_printable(found), model));
  }
  return found;
}

std::vector<Settings> settings_of(const Checkpoint& checkpoint, const std::string& folder) {
  const ModelConfig& config = checkpoint.config();
  if (!folder.empty()) {
    const Adapter adapter = Adapter::open(folder, config.layers);
    if (!adapter.settings().empty()) return adapter.settings();
  }
  if (!config.lca.empty()) return config.lca;
  return std::vector<Settings>(static_cast<std::size_t>(config.layers),
                               settings_preset("training-free"));
}

void ReplyFlags::add(CLI::App& app, const std::string& tokens) {
  const std::string group = "Reply";
  const auto add = [&](TextFlag& flag, const char* name, const char* value, const char* help,
                       const std::string& fallback) {
    flag.add(app, name, value, help, fallback);
    flag.option->group(group);
  };
  add(tokens_, "-n,--tokens", "N", "maximum number of new tokens", tokens);
  add(temperature_, "--temperature", "X", "0 takes the likeliest token; higher is more varied",
      "0");
  add(top_k_, "--top-k", "N", "sample among the N likeliest; 0: all", "0");
  add(top_p_, "--top-p", "X", "sample among the likeliest whose probabilities add up to X", "1");
  add(min_p_, "--min-p", "X", "drop tokens below X times the probability of the likeliest", "0");
  add(penalty_, "--repetition-penalty", "X", "above 1: recent tokens become less likely", "1");
  add(seed_, "--seed", "N", "the same seed gives the same text", "0");
  app.add_option("--stop", stops_, "end the reply before this text; may be repeated")
      ->type_name("TEXT")
      ->type_size(1)
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--ignore-eos", ignore_end_, "continue after the model's end token")->group(group);
}

GenerateOptions ReplyFlags::read(std::vector<std::int32_t> end_tokens) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  GenerateOptions options;
  options.max_tokens = count_parse("-n", tokens_.text, 1);
  options.sampling.temperature = number_parse("--temperature", temperature_.text, 0, kHottest);
  options.sampling.top_k = count_parse("--top-k", top_k_.text, 0, kMost);
  options.sampling.top_p = number_parse("--top-p", top_p_.text, 0, 1);
  options.sampling.min_p = number_parse("--min-p", min_p_.text, 0, 1);
  options.sampling.repetition_penalty =
      number_parse("--repetition-penalty", penalty_.text, 0.01, kHottest);
  options.sampling.seed = static_cast<std::uint64_t>(
      count_parse("--seed", seed_.text, 0, std::numeric_limits<std::int64_t>::max() - 1));
  options.sampling.validate();
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail_input("--stop is empty; it takes a text that ends the reply");
  }
  options.stops = stops_;
  if (!ignore_end_) options.end_tokens = std::move(end_tokens);
  return options;
}

std::string text_read(std::string_view flag, const std::string& path) {
  if (path.empty()) {
    fail_input("{} is empty; it takes the path of a text, or - for standard input", flag);
  }
  if (path == "-") return standard_input_read();
  const MappedFile file(path);
  std::string text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  file.require_intact();
  return text;
}

}  // namespace lca::cli
