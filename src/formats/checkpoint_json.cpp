#include "formats/checkpoint_json.h"

#include "core/error.h"
#include "formats/json_text.h"

#include <utility>

namespace lca {
namespace {

/// Follows one key of the outermost object, with everything below it.
class KeyReader : public JsonReader {
 public:
  KeyReader(std::string_view where, std::string_view wanted) : where_(where), wanted_(wanted) {}

  void object_begin() override { enter("an object"); }
  void object_end() override { leave(); }
  void list_begin() override { enter("a list"); }
  void list_end() override { leave(); }
  void key(std::string& name) override {
    if (depth_ == 1) {
      inside_ = name == wanted_;
      if (inside_ && std::exchange(seen_, true)) fail("there twice");
    } else if (inside_) {
      inner_key(name);
    }
  }
  void scalar(JsonScalar& value) override {
    if (depth_ == 0) fail_input("{}: is {}, not an object", where_, value.describe());
    if (inside_) wanted_scalar(value);
  }

 protected:
  /// A list or an object begins below the key; `depth()` is 2 for the first.
  virtual void wanted_begin(std::string_view what) { fail(what); }
  virtual void wanted_end() {}
  virtual void inner_key(std::string& /*name*/) {}
  virtual void wanted_scalar(JsonScalar& value) = 0;

  int depth() const { return depth_; }
  [[noreturn]] void fail(std::string_view what) const {
    fail_input("{}: {} cannot be {}", where_, wanted_, what);
  }

 private:
  void enter(std::string_view what) {
    if (depth_ == 0 && what != "an object") fail_input("{}: is {}, not an object", where_, what);
    ++depth_;
    if (inside_) wanted_begin(what);
  }
  void leave() {
    if (inside_) wanted_end();
    --depth_;
  }

  std::string_view where_, wanted_;
  int depth_ = 0;
  bool inside_ = false;
  bool seen_ = false;
};

class EndTokenReader : public KeyReader {
 public:
  explicit EndTokenReader(std::string_view where) : KeyReader(where, "eos_token_id") {}
  std::vector<std::int32_t> ids;

 protected:
  void wanted_begin(std::string_view what) override {
    if (depth() != 2 || what != "a list") fail(what);
  }
  void wanted_scalar(JsonScalar& value) override {
    if (value.kind == JsonScalar::Kind::null && depth() == 1) return;
    if (value.kind != JsonScalar::Kind::integer || value.integer < 0 ||
        !std::in_range<std::int32_t>(value.integer)) {
      fail(value.describe());
    }
    ids.push_back(static_cast<std::int32_t>(value.integer));
  }
};

/// A text, or [{"name": "default", "template": "…"}, …].
class TemplateReader : public KeyReader {
 public:
  explicit TemplateReader(std::string_view where) : KeyReader(where, "chat_template") {}
  std::string found;

 protected:
  void wanted_begin(std::string_view what) override {
    if (depth() == 2 && what == "a list") return;
    if (depth() != 3 || what != "an object") fail(what);
    name_.clear();
    text_.clear();
  }
  void wanted_end() override {
    if (depth() == 3 && name_ == "default") found = std::move(text_);
  }
  void inner_key(std::string& name) override { field_ = std::move(name); }
  void wanted_scalar(JsonScalar& value) override {
    if (depth() == 1) {
      if (value.kind == JsonScalar::Kind::null) return;
      if (value.kind != JsonScalar::Kind::text) fail(value.describe());
      found = std::move(value.text);
      return;
    }
    if (depth() != 3 || value.kind != JsonScalar::Kind::text) fail(value.describe());
    if (field_ == "name") {
      name_ = std::move(value.text);
    } else if (field_ == "template") {
      text_ = std::move(value.text);
    }
  }

 private:
  std::string field_, name_, text_;
};

}  // namespace

std::vector<std::int32_t> end_tokens_from_json(std::string_view text, std::string_view where) {
  EndTokenReader reader(where);
  json_read(text, where, reader);
  return std::move(reader.ids);
}

std::string chat_template_from_json(std::string_view text, std::string_view where) {
  TemplateReader reader(where);
  json_read(text, where, reader);
  return std::move(reader.found);
}

}  // namespace lca
