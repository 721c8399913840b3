/// Model, tokenizer, chat and settings.

#include "engine_types.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace lca::python {
namespace {

template <std::size_t Count>
std::size_t choice(const char* what, const std::array<const char*, Count>& names,
                   const std::string& text) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string list;
  for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  throw Error(ErrorKind::bad_input,
              std::string(what) + " must be one of " + list + ", not \"" + text + "\"");
}

constexpr std::array<const char*, 3> kPrecisions = {"auto", "f32", "bf16"};
constexpr std::array<const char*, 3> kPackings = {"keep", "q8_0", "q4_0"};
constexpr std::array<const char*, 3> kGroups = {"bf16", "fp8", "int8"};
constexpr std::array<const char*, 2> kCaches = {"bf16", "int8"};

std::shared_ptr<Model> model_load(const std::string& path, const std::string& device,
                                  const std::string& adapter, int threads,
                                  const std::string& precision, const std::string& weights,
                                  const std::string& groups, const std::string& cache,
                                  const nb::object& progress) {
  ModelOptions options;
  options.path = path;
  options.device = device;
  options.adapter = adapter;
  options.threads = threads;
  options.precision = static_cast<Precision>(choice("precision", kPrecisions, precision));
  options.weights = static_cast<WeightPacking>(choice("weights", kPackings, weights));
  options.groups = static_cast<GroupStorage>(choice("groups", kGroups, groups));
  options.cache = static_cast<CacheStorage>(choice("cache", kCaches, cache));
  const PyCallback report(progress);
  auto model = run_interruptible([&](const std::stop_token& stop) {
    options.progress = [&](double share) {
      if (stop.stop_requested()) throw Error(ErrorKind::cancelled, "loading was stopped");
      if (report) report(share);
    };
    return Model::load(options);
  });
  return std::const_pointer_cast<Model>(model);  // the binding has no const; nothing writes
}

nb::dict model_info(const Model& model) {
  const ModelInfo& info = model.info();
  nb::dict facts;
  facts["path"] = info.path;
  facts["format"] = info.format;
  facts["architecture"] = info.architecture;
  facts["layers"] = info.layers;
  facts["hidden"] = info.hidden;
  facts["vocabulary"] = info.vocabulary;
  facts["context"] = info.context;
  facts["parameters"] = info.parameters;
  facts["weight_bytes"] = info.weight_bytes;
  facts["adapter"] = info.adapter;
  facts["adapter_bytes"] = info.adapter_bytes;
  facts["precision"] = kPrecisions[static_cast<std::size_t>(info.precision)];
  facts["weights"] = kPackings[static_cast<std::size_t>(info.weights)];
  facts["cache"] = kCaches[static_cast<std::size_t>(info.cache)];
  facts["trained"] = info.trained;
  facts["device"] = info.device;
  return facts;
}

std::vector<ChatMessage> messages_read(
    const std::vector<std::pair<std::string, std::string>>& messages) {
  static constexpr std::array<const char*, 3> kRoles = {"system", "user", "assistant"};
  std::vector<ChatMessage> read;
  for (const auto& [role, text] : messages) {
    read.push_back(
        {static_cast<ChatMessage::Role>(choice("the role of a message", kRoles, role)), text});
  }
  return read;
}

std::string value_text(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) {
    throw Error(ErrorKind::bad_input, "a setting is a number or a name, not True or False");
  }
  return nb::cast<std::string>(nb::str(value));
}

}  // namespace

nb::list settings_list(const std::vector<Settings>& settings) {
  nb::list list;
  for (const Settings& layer : settings) {
    nb::dict fields;
    for (const SettingField& field : setting_fields()) {
      const nb::str name(field.name.data(), field.name.size());
      const std::int64_t value = field.get(layer);
      if (field.is_integer) {
        fields[name] = value;
      } else {
        const std::string_view text = field.choices[static_cast<std::size_t>(value)];
        fields[name] = nb::str(text.data(), text.size());
      }
    }
    list.append(fields);
  }
  return list;
}

std::vector<Settings> settings_change(std::vector<Settings> base, const std::string& preset,
                                      const nb::dict& changes) {
  if (!preset.empty()) std::fill(base.begin(), base.end(), settings_preset(preset));
  for (const auto& [key, value] : changes) {
    const auto name = nb::cast<std::string>(key);
    if (!nb::isinstance<nb::list>(value) && !nb::isinstance<nb::tuple>(value)) {
      for (Settings& layer : base) settings_set(layer, name, value_text(value));
      continue;
    }
    if (nb::len(value) != base.size()) {
      throw Error(ErrorKind::bad_input, name + " has " + std::to_string(nb::len(value)) +
                                            " values; the model has " +
                                            std::to_string(base.size()) + " layers");
    }
    for (std::size_t i = 0; i < base.size(); ++i) settings_set(base[i], name, value_text(value[i]));
  }
  for (const Settings& layer : base) layer.validate();
  return base;
}

void model_bind(nb::module_& module) {
  module.def(
      "settings_preset",
      [](const std::string& name) {
        return nb::cast<nb::dict>(settings_list({settings_preset(name)})[0]);
      },
      nb::arg("name"), "The settings of preset paper, training or training-free.");
  module.def(
      "settings_check",
      [](const nb::dict& fields) { settings_change(std::vector<Settings>(1), "", fields); },
      nb::arg("fields"), "Raises ValueError for a field that is unknown or out of range.");
  module.def("setting_names", [] {
    std::vector<std::string> names;
    for (const SettingField& field : setting_fields()) names.emplace_back(field.name);
    return names;
  });
  nb::class_<Context>(module, "Context")
      .def(nb::init<int>(), nb::arg("threads") = 0)
      .def_prop_ro("threads", &Context::threads);
  nb::class_<Model>(module, "Model")
      .def_prop_ro("info", &model_info)
      .def_prop_ro("settings", [](const Model& model) { return settings_list(model.settings()); })
      .def_prop_ro("fingerprint", &Model::fingerprint)
      .def_prop_ro("end_tokens", &Model::end_tokens)
      .def(
          "encode",
          [](const Model& model, const std::string& text, bool add_special, bool parse_special) {
            return model.tokenizer().encode(text, {add_special, parse_special});
          },
          nb::arg("text"), nb::arg("add_special") = false, nb::arg("parse_special") = true)
      .def(
          "decode",
          [](const Model& model, const std::vector<std::int32_t>& ids, bool with_special) {
            return model.tokenizer().decode(ids, with_special);
          },
          nb::arg("ids"), nb::arg("with_special") = false)
      .def(
          "token_text",
          [](const Model& model, std::int32_t id) {
            const std::string_view bytes = model.tokenizer().bytes(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("id"))
      .def(
          "chat_prompt",
          [](const Model& model, const nb::list& messages) {
            std::vector<std::pair<std::string, std::string>> pairs;
            for (const nb::handle message : messages) {
              pairs.emplace_back(nb::cast<std::string>(message[0]),
                                 nb::cast<std::string>(message[1]));
            }
            return model.chat().prompt(messages_read(pairs));
          },
          nb::arg("messages"), "Ids of [(role, text), …] up to where the assistant replies.")
      .def("chat_end_tokens", [](const Model& model) { return model.chat().end_tokens(); })
      .def("chat_lead", [](const Model& model) { return std::string(model.chat().reply_lead()); });
  module.def("model_load", &model_load, nb::arg("path"), nb::arg("device"), nb::arg("adapter"),
             nb::arg("threads"), nb::arg("precision"), nb::arg("weights"), nb::arg("groups"),
             nb::arg("cache"), nb::arg("progress").none());
}

}  // namespace lca::python
