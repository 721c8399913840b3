#include "plan.h"

#include <unistd.h>

#include <mutex>
#include <unordered_map>

namespace lca::python {
namespace {

/// Contexts that no call is using. Every call takes one, so that calls of several threads can run
/// at once.
class ContextPool {
 public:
  static ContextPool& instance() {
    static auto* pool = new ContextPool;  // never destroyed: threads may outlive static objects
    return *pool;
  }

  std::unique_ptr<Context> take() {
    const std::lock_guard lock(mutex_);
    if (process_ != ::getpid()) {  // after fork the threads are gone; their contexts are useless
      for (auto& context : idle_) (void)context.release();
      idle_.clear();
      process_ = ::getpid();
    }
    if (idle_.empty()) return std::make_unique<Context>(threads_);
    std::unique_ptr<Context> context = std::move(idle_.back());
    idle_.pop_back();
    return context;
  }

  void give(std::unique_ptr<Context> context) {
    const std::lock_guard lock(mutex_);
    if (threads_ == 0 || context->threads() == threads_) idle_.push_back(std::move(context));
  }

  void set_threads(int threads) {
    const std::lock_guard lock(mutex_);
    threads_ = threads;
    idle_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
  int threads_ = 0;
  pid_t process_ = ::getpid();
};

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorKind::bad_input, text); }

/// "group=16 window=1024 …"
Settings settings_parse(const std::string& text) {
  Settings settings;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) fail("settings are written name=value, not \"" + word + "\"");
    settings_set(settings, word.substr(0, equals), word.substr(equals + 1));
    at = end + 1;
  }
  return settings;
}

/// All of a spec as bytes.
std::string plan_key(const PlanSpec& spec) {
  std::string key;
  key.reserve(512);
  const auto put = [&key](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto put_all = [&](const auto& values) {
    put(values.size());
    key.append(reinterpret_cast<const char*>(values.data()),
               values.size() * sizeof(*values.data()));
  };
  put(spec.mla);
  put_all(spec.dims);
  put_all(spec.settings);
  put(spec.scale);
  put_all(spec.frequencies);
  put_all(spec.rope_layout);
  put(spec.batch);
  put(spec.tokens);
  put(spec.starts.has_value());
  if (spec.starts) put_all(*spec.starts);
  put(spec.backend);
  put(spec.device);
  put(spec.portable);
  return key;
}

}  // namespace

ContextLease::ContextLease() : context_(ContextPool::instance().take()) {}
ContextLease::~ContextLease() { ContextPool::instance().give(std::move(context_)); }

void contexts_set_threads(int threads) { ContextPool::instance().set_threads(threads); }

Backend backend_parse(const std::string& name) {
  if (name == "reference") return Backend::reference;
  if (name == "cpu") return Backend::cpu;
  if (name == "cuda") return Backend::cuda;
  fail("backend must be auto, reference, cpu or cuda, not \"" + name + "\"");
}

Plan::Plan(const PlanSpec& spec)
    : batch(spec.batch), backend(spec.backend), device(spec.device), portable(spec.portable) {
  LayerSpec& layer = entry.layer;
  const auto& dims = spec.dims;
  layer.shape = {
      spec.mla ? Form::mla : Form::gqa, dims[0], dims[1], dims[2], dims[3], dims[4], dims[5]};
  layer.settings = settings_parse(spec.settings);
  layer.scale = spec.scale;
  if (spec.rope_layout != "half" && spec.rope_layout != "adjacent") {
    fail("rope_layout must be half or adjacent, not \"" + spec.rope_layout + "\"");
  }
  layer.rotation.layout = spec.rope_layout == "half" ? RopeLayout::halves : RopeLayout::adjacent;
  layer.rotation.frequencies = spec.frequencies;
  entry.starts = spec.starts ? *spec.starts : std::vector<std::int64_t>{0, spec.tokens};
  if (spec.starts && batch != 1) fail("cu_seqlens packs documents into a batch of 1");
  if (spec.starts && (spec.starts->empty() || spec.starts->back() != spec.tokens)) {
    fail("cu_seqlens must end with the number of tokens, " + std::to_string(spec.tokens));
  }
  entry.validate();
  packed = entry;
  if (batch > 1) {
    packed.starts.clear();
    for (std::int64_t i = 0; i <= batch; ++i) packed.starts.push_back(i * spec.tokens);
  }
}

OperatorPlace Plan::place() const {
  OperatorPlace place;
  place.backend = backend;
  place.device = device;
  place.portable = portable;
  return place;
}

MaybeView Plan::view(nb::handle tensor) const {
  MaybeView view = view_of(tensor);
  const bool on_gpu = backend == Backend::cuda;
  if (view && (view->on_gpu != on_gpu || (on_gpu && view->device != device))) {
    const auto name = [](bool gpu, int index) {
      return gpu ? "cuda:" + std::to_string(index) : std::string("cpu");
    };
    fail("tensors are on " + name(on_gpu, device) + " and on " + name(view->on_gpu, view->device) +
         "; they must be on one device");
  }
  return view;
}

std::size_t Plan::workspace_bytes(OperatorPart part) const {
  auto& known = bytes_[static_cast<std::size_t>(part)];
  std::size_t bytes = known.load(std::memory_order_relaxed);
  if (bytes > 0) return bytes;
  constexpr std::size_t kLeast = 256;  // memory of no bytes would have no address
  bytes = std::max(kLeast, operator_workspace_bytes(entry, part, place()));
  if (batch > 1 && packs({})) {
    bytes = std::max(bytes, operator_workspace_bytes(packed, part, place()));
  }
  known.store(bytes, std::memory_order_relaxed);
  return bytes;
}

std::shared_ptr<const Plan> plan_find(const PlanSpec& spec) {
  constexpr std::size_t kMost = 4096;  // lengths of packed documents may never repeat
  static std::mutex mutex;
  static auto& plans = *new std::unordered_map<std::string, std::shared_ptr<const Plan>>;
  const std::string key = plan_key(spec);
  const std::lock_guard lock(mutex);
  if (const auto found = plans.find(key); found != plans.end()) return found->second;
  auto plan = std::make_shared<const Plan>(spec);
  if (plans.size() >= kMost) plans.clear();
  plans.emplace(key, plan);
  return plan;
}

}  // namespace lca::python
