#include "formats/gguf/gguf_types.h"

#include "core/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

namespace lca {
namespace {

struct TensorTypeRow {
  std::uint32_t number;
  std::string_view name;
  std::optional<PackedType> type;  ///< absent: we know its name and do not read it
};

constexpr std::array kTensorTypes = {
    TensorTypeRow{0, "F32", PackedType::f32},
    TensorTypeRow{1, "F16", PackedType::f16},
    TensorTypeRow{2, "Q4_0", PackedType::q4_0},
    TensorTypeRow{3, "Q4_1", PackedType::q4_1},
    TensorTypeRow{6, "Q5_0", PackedType::q5_0},
    TensorTypeRow{7, "Q5_1", PackedType::q5_1},
    TensorTypeRow{8, "Q8_0", PackedType::q8_0},
    TensorTypeRow{9, "Q8_1", {}},
    TensorTypeRow{10, "Q2_K", {}},
    TensorTypeRow{11, "Q3_K", {}},
    TensorTypeRow{12, "Q4_K", PackedType::q4_k},
    TensorTypeRow{13, "Q5_K", PackedType::q5_k},
    TensorTypeRow{14, "Q6_K", PackedType::q6_k},
    TensorTypeRow{15, "Q8_K", {}},
    TensorTypeRow{16, "IQ2_XXS", {}},
    TensorTypeRow{17, "IQ2_XS", {}},
    TensorTypeRow{18, "IQ3_XXS", {}},
    TensorTypeRow{19, "IQ1_S", {}},
    TensorTypeRow{20, "IQ4_NL", {}},
    TensorTypeRow{21, "IQ3_S", {}},
    TensorTypeRow{22, "IQ2_S", {}},
    TensorTypeRow{23, "IQ4_XS", {}},
    TensorTypeRow{24, "I8", {}},
    TensorTypeRow{25, "I16", {}},
    TensorTypeRow{26, "I32", {}},
    TensorTypeRow{27, "I64", {}},
    TensorTypeRow{28, "F64", {}},
    TensorTypeRow{29, "IQ1_M", {}},
    TensorTypeRow{30, "BF16", PackedType::bf16},
    TensorTypeRow{34, "TQ1_0", {}},
    TensorTypeRow{35, "TQ2_0", {}},
    TensorTypeRow{39, "MXFP4", {}},
    TensorTypeRow{40, "NVFP4", {}},
    TensorTypeRow{41, "Q1_0", {}},
};

}  // namespace

PackedType gguf_tensor_type(std::uint32_t number, std::string_view where) {
  const auto row = std::ranges::find(kTensorTypes, number, &TensorTypeRow::number);
  if (row != kTensorTypes.end() && row->type) return *row->type;
  std::vector<std::string_view> read;
  for (const TensorTypeRow& known : kTensorTypes) {
    if (known.type) read.push_back(known.name);
  }
  const std::string name = row != kTensorTypes.end()
                               ? std::string(row->name)
                               : fmt::format("number {}, which is unknown", number);
  fail_input("{}: is of type {}; only {} are read: quantise the model to one of them", where, name,
             fmt::join(read, ", "));
}

}  // namespace lca
