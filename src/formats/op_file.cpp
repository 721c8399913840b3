#include "formats/op_file.h"

#include "attention/layout.h"
#include "core/bf16.h"
#include "core/error.h"
#include "core/text.h"
#include "formats/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace lca {
namespace {

constexpr std::string_view kDocuments = "cu_seqlens";
constexpr std::string_view kFrequencies = "rope_frequencies";
constexpr std::string_view kSettingsKey = "lca";
constexpr std::string_view kOutGrad = "grad_out";

/// A tensor of the file and the names of its dimensions.
struct Role {
  std::string_view name;
  std::vector<std::string_view> dims;
};

const std::vector<Role>& mla_roles() {
  static const std::vector<Role> roles = {
      {"q_nope", {"B", "n", "H", "d_n"}}, {"q_rope", {"B", "n", "H", "d_r"}},
      {"c", {"B", "n", "d_c"}},           {"k_rope", {"B", "n", "d_r"}},
      {"w_uk", {"H", "d_n", "d_c"}},      {"w_uv", {"H", "d_v", "d_c"}},
  };
  return roles;
}

const std::vector<Role>& gqa_roles() {
  static const std::vector<Role> roles = {
      {"q", {"B", "n", "H", "d"}},
      {"k", {"B", "n", "KV", "d"}},
      {"v", {"B", "n", "KV", "d_v"}},
  };
  return roles;
}

const Role& out_grad_role() {
  static const Role role{kOutGrad, {"B", "n", "H", "d_v"}};
  return role;
}

bool has_role(const std::vector<Role>& roles, std::string_view name) {
  return std::ranges::find(roles, name, &Role::name) != roles.end();
}

std::vector<std::string_view> role_names(const std::vector<Role>& roles) {
  std::vector<std::string_view> names;
  names.reserve(roles.size());
  for (const Role& role : roles) names.push_back(role.name);
  return names;
}

/// Tensors are at least one value wide, so bytes and values both fit a std::size_t.
std::size_t value_count(const TensorInfo& tensor) {
  return tensor.bytes.size() / tensor_type_bytes(tensor.dtype);
}

/// Copies a tensor of the file to aligned memory, widening where asked: both are exact.
OpTensor tensor_convert(const TensorInfo& tensor, DType dtype) {
  const std::size_t count = value_count(tensor);
  OpTensor result(dtype, count);
  if (dtype == DType::bf16 || tensor.dtype == TensorType::f32) {
    std::memcpy(result.bytes(), tensor.bytes.data(), tensor.bytes.size());
    return result;
  }
  for (std::size_t i = 0; i < count; ++i) {  // bytes of the file have no alignment
    bf16_bits bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + i * sizeof bits, sizeof bits);
    const float value = bf16_to_f32(bits);
    std::memcpy(result.bytes() + i * sizeof value, &value, sizeof value);
  }
  return result;
}

DType own_dtype(const TensorInfo& tensor) {
  return tensor.dtype == TensorType::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace

OpTensor::OpTensor(DType dtype, std::size_t values) : dtype_(dtype) {
  const std::size_t lines = (values * dtype_bytes(dtype) + sizeof(Line) - 1) / sizeof(Line);
  memory_ = std::make_unique_for_overwrite<Line[]>(lines);
}

ConstTensor OpTensor::view(std::int64_t index, std::int64_t d0, std::int64_t d1,
                           std::int64_t d2) const {
  if (memory_ == nullptr) return {};
  const std::size_t offset = static_cast<std::size_t>(index * d0 * d1 * d2) * dtype_bytes(dtype_);
  return {bytes() + offset, dtype_, {d0, d1, d2}};
}

/// Turns a checked safetensors file into an OpInput; one object reads one file.
class OpInputReader {
 public:
  OpInputReader(const Safetensors& file, std::span<const SettingOverride> overrides, OpTask task)
      : file_(file), overrides_(overrides), task_(task) {}

  OpInput read() {
    const std::vector<Role>& roles = form_detect();
    for (const Role& role : roles) bind_dims(role);
    if (task_ == OpTask::backward) bind_dims(out_grad_role());

    OpInput input;
    input.batch = dims_.at("B").size;
    input.length = dims_.at("n").size;
    if (has_role(roles, "c")) {
      input.spec.shape =
          AttentionShape::mla(dim("H"), dim("d_n"), dim("d_r"), dim("d_c"), dim("d_v"));
    } else {
      input.spec.shape = AttentionShape::gqa(dim("H"), dim("KV"), dim("d"), dim("d_v"));
    }
    naming_the_file([&] { input.spec.shape.validate(); });
    read_settings(input);
    read_documents(input);
    read_tensors(input);
    return input;
  }

 private:
  struct Dim {
    std::int64_t size = 0;
    std::string_view by;  // the tensor that had it first
  };

  std::int64_t dim(std::string_view name) const { return dims_.at(name).size; }

  /// Errors of rooms that know no files get the file's name in front.
  template <typename Work>
  void naming_the_file(Work work) const {
    try {
      work();
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", file_.name(), error.what()));
    }
  }

  [[noreturn]] void fail_tensor(std::string_view name, const std::string& what) const {
    fail_input("{}: tensor \"{}\": {}", file_.name(), name, what);
  }

  /// Which form the tensors' names make, all of them there and none besides.
  const std::vector<Role>& form_detect() const {
    const TensorInfo* mla = nullptr;
    const TensorInfo* gqa = nullptr;
    for (const TensorInfo& tensor : file_.tensors()) {
      const bool is_mla = has_role(mla_roles(), tensor.name);
      const bool is_gqa = has_role(gqa_roles(), tensor.name);
      if (is_mla) mla = &tensor;
      if (is_gqa) gqa = &tensor;
      const bool is_extra = tensor.name == kDocuments || tensor.name == kFrequencies ||
                            (tensor.name == kOutGrad && task_ == OpTask::backward);
      if (!is_mla && !is_gqa && !is_extra) {
        fail_input("{}: unknown tensor \"{}\"", file_.name(), text_printable(tensor.name));
      }
    }
    if (mla != nullptr && gqa != nullptr) {
      fail_input("{}: mixes both forms: tensor \"{}\" is of MLA, \"{}\" of GQA", file_.name(),
                 mla->name, gqa->name);
    }
    if (mla == nullptr && gqa == nullptr) {
      fail_input("{}: has no tensors of MLA ({}) and none of GQA ({})", file_.name(),
                 fmt::join(role_names(mla_roles()), ", "),
                 fmt::join(role_names(gqa_roles()), ", "));
    }
    const std::vector<Role>& roles = mla != nullptr ? mla_roles() : gqa_roles();
    for (const Role& role : roles) {
      if (file_.find(role.name) == nullptr) {
        fail_input("{}: tensor \"{}\" of the {} form is missing", file_.name(), role.name,
                   mla != nullptr ? "MLA" : "GQA");
      }
    }
    if (task_ == OpTask::backward && file_.find(kOutGrad) == nullptr) {
      fail_input("{}: tensor \"{}\", the gradient of out, is missing", file_.name(), kOutGrad);
    }
    return roles;
  }

  /// Checks one tensor's dtype and shape against the tensors before it.
  void bind_dims(const Role& role) {
    const TensorInfo& tensor = *file_.find(role.name);
    if (tensor.dtype != TensorType::f32 && tensor.dtype != TensorType::bf16) {
      fail_tensor(role.name,
                  fmt::format("dtype must be F32 or BF16, not {}", tensor_type_name(tensor.dtype)));
    }
    const std::string wanted = fmt::format("[{}]", fmt::join(role.dims, ","));
    const std::string found = fmt::format("[{}]", fmt::join(tensor.shape, ","));
    if (tensor.shape.size() != role.dims.size()) {
      fail_tensor(role.name, fmt::format("shape must be {}, not {}", wanted, found));
    }
    for (std::size_t i = 0; i < role.dims.size(); ++i) {
      const std::int64_t size = tensor.shape[i];
      if (size < 1) {
        fail_tensor(role.name, fmt::format("shape {} is {}, but {} must be at least 1", wanted,
                                           found, role.dims[i]));
      }
      const Dim& known = dims_.try_emplace(role.dims[i], Dim{size, role.name}).first->second;
      if (known.size != size) {
        fail_tensor(role.name, fmt::format("shape {} is {}, but {} is {} in \"{}\"", wanted, found,
                                           role.dims[i], known.size, known.by));
      }
    }
  }

  void read_settings(OpInput& input) const {
    SettingsObject object;
    const auto text = file_.metadata().find(std::string(kSettingsKey));
    if (text != file_.metadata().end()) {
      const std::string where = fmt::format("{}: metadata \"{}\"", file_.name(), kSettingsKey);
      object = settings_from_json(text->second, where, SettingsScope::op_file);
    }
    settings_override(object, overrides_);
    naming_the_file([&] { object.settings.validate(); });
    input.spec.settings = object.settings;
    input.spec.scale = object.scale.value_or(input.spec.shape.default_scale());
    input.prefill = std::move(object.prefill);
    read_rotation(input.spec, object.rope_layout);

    if (task_ == OpTask::backward && !input.prefill.empty()) {
      fail_input("{}: prefill does not go together with gradients, which are those of one prompt",
                 file_.name());
    }
    std::int64_t left = input.length;
    for (const std::int64_t chunk : input.prefill) {
      if (chunk > left) {
        fail_input("{}: prefill sums to more than the {} tokens there are", file_.name(),
                   input.length);
      }
      left -= chunk;
    }
  }

  /// How keys and queries are rotated on: both said with positions `entry`, neither with `token`.
  void read_rotation(LayerSpec& spec, std::optional<RopeLayout> layout) const {
    const TensorInfo* tensor = file_.find(kFrequencies);
    const bool is_entry = spec.settings.positions == Positions::entry;
    if (is_entry && tensor == nullptr) {
      fail_input("{}: tensor \"{}\" is missing: positions entry needs it", file_.name(),
                 kFrequencies);
    }
    if (is_entry && !layout) {
      fail_input("{}: field \"rope_layout\" is missing: positions entry needs it", file_.name());
    }
    if (!is_entry && tensor != nullptr) {
      fail_tensor(kFrequencies, "does not go together with positions token");
    }
    if (!is_entry && layout) {
      fail_input("{}: field \"rope_layout\" does not go together with positions token",
                 file_.name());
    }
    if (!is_entry) return;
    if (tensor->dtype != TensorType::f32) {
      fail_tensor(kFrequencies,
                  fmt::format("dtype must be F32, not {}", tensor_type_name(tensor->dtype)));
    }
    const std::int64_t width = spec.shape.d_positional();
    if (tensor->shape != std::vector<std::int64_t>{width / 2}) {
      fail_tensor(kFrequencies, fmt::format("shape must be [{}/2] = [{}], not [{}]",
                                            spec.shape.form == Form::mla ? "d_r" : "d", width / 2,
                                            fmt::join(tensor->shape, ",")));
    }
    std::vector<float> frequencies(value_count(*tensor));
    if (!frequencies.empty()) {
      std::memcpy(frequencies.data(), tensor->bytes.data(), tensor->bytes.size());
    }
    spec.rotation = {*layout, {frequencies.begin(), frequencies.end()}};
    naming_the_file([&] { spec.validate(); });
  }

  void read_documents(OpInput& input) const {
    const TensorInfo* tensor = file_.find(kDocuments);
    if (tensor == nullptr) {
      if (input.prefill.empty()) input.prefill = {input.length};
      return;
    }
    if (tensor->dtype != TensorType::i32) {
      fail_tensor(kDocuments,
                  fmt::format("dtype must be I32, not {}", tensor_type_name(tensor->dtype)));
    }
    if (tensor->shape.size() != 1 || tensor->shape[0] < 2) {
      fail_tensor(kDocuments, fmt::format("shape must be [D+1] with D from 1, not [{}]",
                                          fmt::join(tensor->shape, ",")));
    }
    if (input.batch != 1) {
      fail_tensor(kDocuments, fmt::format("packed documents need B = 1, not {}", input.batch));
    }
    if (!input.prefill.empty()) fail_tensor(kDocuments, "does not go together with prefill");
    if (input.spec.settings.summary == Summary::prompt) {
      fail_tensor(kDocuments, "does not go together with summary prompt");
    }
    std::vector<std::int32_t> starts(value_count(*tensor));
    std::memcpy(starts.data(), tensor->bytes.data(), tensor->bytes.size());
    if (starts.front() != 0) fail_tensor(kDocuments, "must start with 0");
    if (starts.back() != input.length) {
      fail_tensor(kDocuments,
                  fmt::format("must end with n = {}, not {}", input.length, starts.back()));
    }
    if (std::ranges::adjacent_find(starts, std::ranges::greater_equal{}) != starts.end()) {
      fail_tensor(kDocuments, "must be strictly increasing");
    }
    input.documents.assign(starts.begin(), starts.end());
  }

  OpTensor convert_own(std::string_view name) const {
    const TensorInfo& tensor = *file_.find(name);
    return tensor_convert(tensor, own_dtype(tensor));
  }

  void read_tensors(OpInput& input) const {
    const bool is_mla = input.spec.shape.form == Form::mla;
    input.rope_ = convert_own(is_mla ? "q_rope" : "q");
    if (is_mla) {
      input.nope_ = convert_own("q_nope");
      input.w_uk_ = convert_own("w_uk");
      input.w_uv_ = convert_own("w_uv");
    }
    if (task_ == OpTask::backward) input.out_grad_ = convert_own(kOutGrad);
    // A cache stores one dtype. Narrowing would round, so the narrower of two widens.
    const TensorInfo& semantic = *file_.find(is_mla ? "c" : "v");
    const TensorInfo& positional = *file_.find(is_mla ? "k_rope" : "k");
    const bool is_narrow =
        semantic.dtype == TensorType::bf16 && positional.dtype == TensorType::bf16;
    input.spec.dtype = is_narrow ? DType::bf16 : DType::f32;
    input.semantic_ = tensor_convert(semantic, input.spec.dtype);
    input.positional_ = tensor_convert(positional, input.spec.dtype);
  }

  const Safetensors& file_;
  std::span<const SettingOverride> overrides_;
  OpTask task_;
  std::map<std::string_view, Dim> dims_;
};

OpInput OpInput::read(const std::filesystem::path& path, std::span<const SettingOverride> overrides,
                      OpTask task) {
  const Safetensors file = Safetensors::open(path);
  return mapped_read([&] { return OpInputReader(file, overrides, task).read(); },
                     [&] { file.require_intact(); });
}

OpInput OpInput::parse(std::span<const std::byte> bytes, std::string_view name,
                       std::span<const SettingOverride> overrides, OpTask task) {
  return OpInputReader(Safetensors::parse(bytes, name), overrides, task).read();
}

std::int64_t OpInput::groups() const {
  const Layout layout(spec.settings);
  if (documents.empty()) return layout.groups(length);
  std::int64_t total = 0;
  for (std::size_t i = 1; i < documents.size(); ++i) {
    total += layout.groups(documents[i] - documents[i - 1]);
  }
  return total;
}

Queries OpInput::queries(std::int64_t entry) const {
  const AttentionShape& shape = spec.shape;
  return {nope_.view(entry, length, shape.heads, shape.d_nope),
          rope_.view(entry, length, shape.heads, shape.d_rope)};
}

Entries OpInput::entries(std::int64_t entry) const {
  const AttentionShape& shape = spec.shape;
  return {semantic_.view(entry, length, shape.kv_heads, shape.d_semantic()),
          positional_.view(entry, length, shape.kv_heads, shape.d_positional())};
}

LayerWeights OpInput::weights() const {
  const AttentionShape& shape = spec.shape;
  return {w_uk_.view(0, shape.heads, shape.d_nope, shape.d_latent),
          w_uv_.view(0, shape.heads, shape.d_value, shape.d_latent)};
}

ConstTensor OpInput::out_grad(std::int64_t entry) const {
  return out_grad_.view(entry, length, spec.shape.heads, spec.shape.d_value);
}

}  // namespace lca
