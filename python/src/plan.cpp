#include "plan.h"

#include <unistd.h>

#include <mutex>

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

Backend backend_parse(const std::string& name) {
  if (name == "reference") return Backend::reference;
  if (name == "cpu") return Backend::cpu;
  if (name == "cuda") return Backend::cuda;
  fail("backend must be auto, reference, cpu or cuda, not \"" + name + "\"");
}

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

}  // namespace

ContextLease::ContextLease() : context_(ContextPool::instance().take()) {}
ContextLease::~ContextLease() { ContextPool::instance().give(std::move(context_)); }

void contexts_set_threads(int threads) { ContextPool::instance().set_threads(threads); }

Plan plan_make(bool mla, const std::array<std::int64_t, 6>& dims, const std::string& settings,
               double scale, std::vector<double> frequencies, const std::string& rope_layout,
               std::int64_t batch, std::int64_t tokens,
               const std::optional<std::vector<std::int64_t>>& starts, const std::string& backend,
               int device, bool portable) {
  Plan plan;
  LayerSpec& layer = plan.entry.layer;
  layer.shape = {mla ? Form::mla : Form::gqa, dims[0], dims[1], dims[2], dims[3], dims[4], dims[5]};
  layer.settings = settings_parse(settings);
  layer.scale = scale;
  if (rope_layout != "half" && rope_layout != "adjacent") {
    fail("rope_layout must be half or adjacent, not \"" + rope_layout + "\"");
  }
  layer.rotation.layout = rope_layout == "half" ? RopeLayout::halves : RopeLayout::adjacent;
  layer.rotation.frequencies = std::move(frequencies);
  plan.entry.starts = starts ? *starts : std::vector<std::int64_t>{0, tokens};
  if (starts && batch != 1) fail("cu_seqlens packs documents into a batch of 1");
  if (starts && (starts->empty() || starts->back() != tokens)) {
    fail("cu_seqlens must end with the number of tokens, " + std::to_string(tokens));
  }
  plan.entry.validate();
  plan.packed = plan.entry;
  plan.batch = batch;
  if (batch > 1) {
    plan.packed.starts.clear();
    for (std::int64_t i = 0; i <= batch; ++i) plan.packed.starts.push_back(i * tokens);
  }
  plan.backend = backend_parse(backend);
  plan.device = device;
  plan.portable = portable;
  return plan;
}

bool plan_packs(const Plan& plan, const std::vector<MaybeView>& views) {
  return std::all_of(views.begin(), views.end(), [&plan](const MaybeView& view) {
    const BatchedView batched("a tensor", view, plan.batch);
    return plan.packs({&batched});
  });
}

std::size_t workspace_bytes(const Plan& plan, const std::string& part) {
  static constexpr std::array<const char*, 4> kParts = {"condense", "condense_backward", "attend",
                                                        "attend_backward"};
  const auto found = std::find(kParts.begin(), kParts.end(), part);
  if (found == kParts.end()) fail("there is no part \"" + part + "\"");
  const auto which = static_cast<OperatorPart>(found - kParts.begin());
  const OperatorPlace place = plan.place(0, 0);
  std::size_t bytes = operator_workspace_bytes(plan.entry, which, place);
  if (plan.batch > 1 && plan.packs({})) {
    bytes = std::max(bytes, operator_workspace_bytes(plan.packed, which, place));
  }
  return bytes;
}

}  // namespace lca::python
