#include "attention/operator_grids.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/layout.h"
#include "core/bf16.h"
#include "core/context_state.h"
#include "support/compare.h"
#include "support/random_layer.h"

namespace lca::test {

Grid::Grid(DType dtype, const Dims& dims, Random& random) : dtype_(dtype), dims_(dims) {
  stride_[1] = dims[2] + random.integer(0, 3);
  stride_[0] = dims[1] * stride_[1] + random.integer(0, 5);
  const auto count = static_cast<std::size_t>(dims[0] * stride_[0]) + 1;
  bytes_.resize(count * dtype_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    write(static_cast<std::int64_t>(i), std::numeric_limits<double>::quiet_NaN());
  }
}

double Grid::read(std::int64_t at) const {
  const auto one = [&](auto value) {
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(at) * sizeof(value),
                sizeof(value));
    return value;
  };
  if (dtype_ == DType::f64) return one(double{});
  return dtype_ == DType::f32 ? one(float{}) : bf16_to_f32(one(bf16_bits{}));
}

void Grid::write(std::int64_t at, double value) {
  const auto one = [&](auto stored) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(at) * sizeof(stored), &stored,
                sizeof(stored));
  };
  if (dtype_ == DType::f64) return one(value);
  if (dtype_ == DType::f32) return one(static_cast<float>(value));
  one(bf16_from_f32(static_cast<float>(value)));
}

double Grid::get(std::int64_t i, std::int64_t j, std::int64_t k) const { return read(at(i, j, k)); }

void Grid::set(std::int64_t i, std::int64_t j, std::int64_t k, double value) {
  write(at(i, j, k), value);
}

void Grid::fill_normal(Random& random, double deviation) {
  for (std::int64_t i = 0; i < dims_[0]; ++i) {
    for (std::int64_t j = 0; j < dims_[1]; ++j) {
      for (std::int64_t k = 0; k < dims_[2]; ++k) set(i, j, k, deviation * random.normal());
    }
  }
}

Tensor Grid::tensor() {
  Tensor view;
  view.dtype = dtype_;
  view.shape = dims_;
  view.stride = {stride_[0], stride_[1], 1};
  if (dims_[0] * dims_[1] * dims_[2] > 0) view.data = bytes_.data();
  return view;
}

std::vector<double> Grid::values() const {
  std::vector<double> all;
  for (std::int64_t i = 0; i < dims_[0]; ++i) {
    for (std::int64_t j = 0; j < dims_[1]; ++j) {
      for (std::int64_t k = 0; k < dims_[2]; ++k) all.push_back(get(i, j, k));
    }
  }
  return all;
}

bool Grid::gaps_are_intact() const {
  const auto is_gap = [&](std::int64_t at) {
    return stride_[0] == 0 || at / stride_[0] >= dims_[0] ||
           at % stride_[0] / stride_[1] >= dims_[1] || at % stride_[0] % stride_[1] >= dims_[2];
  };
  const auto count = static_cast<std::int64_t>(bytes_.size() / dtype_bytes(dtype_));
  for (std::int64_t i = 0; i < count; ++i) {
    if (stride_[1] > 0 && is_gap(i) && !std::isnan(read(i))) return false;
  }
  return true;
}

namespace {

std::vector<float> random_floats(std::int64_t count, double deviation, Random& random) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(deviation * random.normal()));
  }
  return values;
}

/// Queries that share a direction for each head, as those of a real model do.
void fill_queries(Grid& grid, std::int64_t rows, std::int64_t heads, std::int64_t width,
                  Random& random) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t d = 0; d < width; ++d) {
      const double shared = 2 * random.normal();
      for (std::int64_t t = 0; t < rows; ++t) grid.set(t, h, d, shared + random.normal());
    }
  }
}

OperatorCase::Side random_side(const AttentionShape& shape, std::int64_t rows, DType dtype,
                               Random& random) {
  const bool mla = shape.form == Form::mla;
  OperatorCase::Side side;
  side.k_nope = Grid(dtype, {rows, mla ? shape.heads : 0, shape.d_nope}, random);
  side.k_rope = Grid(dtype, {rows, shape.kv_heads, shape.d_rope}, random);
  side.value = Grid(dtype, {rows, mla ? shape.heads : shape.kv_heads, shape.d_value}, random);
  for (Grid* grid : {&side.k_nope, &side.k_rope, &side.value}) grid->fill_normal(random);
  return side;
}

}  // namespace

OperatorCase operator_case(const LayerSpec& layer, const std::vector<std::int64_t>& starts,
                           DType dtype, Random& random) {
  OperatorCase a_case;
  a_case.spec.layer = layer;
  a_case.spec.starts = starts;
  a_case.dtype = dtype;
  const AttentionShape& shape = layer.shape;
  const bool mla = shape.form == Form::mla;
  const std::int64_t n = a_case.spec.tokens();
  const std::int64_t m = a_case.spec.groups();
  const auto grid = [&](const Grid::Dims& dims, double deviation) {
    Grid made(dtype, dims, random);
    made.fill_normal(random, deviation);
    return made;
  };
  a_case.q_nope = Grid(dtype, {n, mla ? shape.heads : 0, shape.d_nope}, random);
  if (mla) fill_queries(a_case.q_nope, n, shape.heads, shape.d_nope, random);
  a_case.q_rope = Grid(dtype, {n, shape.heads, shape.d_rope}, random);
  fill_queries(a_case.q_rope, n, shape.heads, shape.d_rope, random);
  a_case.semantic = grid({n, shape.kv_heads, shape.d_semantic()}, 1);
  a_case.positional = grid({n, shape.kv_heads, shape.d_positional()}, 1);
  a_case.w_uk = grid({mla ? shape.heads : 0, shape.d_nope, shape.d_latent},
                     mla ? 1 / std::sqrt(static_cast<double>(shape.d_latent)) : 1);
  a_case.rep_semantic_grad = grid({m, shape.kv_heads, shape.d_semantic()}, 1);
  a_case.rep_positional_grad = grid({m, shape.kv_heads, shape.d_positional()}, 1);
  if (layer.settings.mass == Mass::score) {
    a_case.rep_bias_grad = random_floats(m * shape.kv_heads, 1, random);
  }
  a_case.exact = random_side(shape, n, dtype, random);
  a_case.groups = random_side(shape, m, dtype, random);
  if (random.chance(0.7)) a_case.bias = random_floats(m * shape.kv_heads, 1, random);
  a_case.out_grad = grid({n, shape.heads, shape.d_value}, 1);
  a_case.out_dtype = random.chance(0.3) ? DType::f32 : dtype;
  a_case.accumulate = random.chance(0.3);
  return a_case;
}

OperatorCase random_operator_case(Random& random, std::int64_t most) {
  LayerSpec layer;
  layer.shape = random_shape(random);
  std::vector<std::int64_t> starts{0};
  const std::int64_t documents = random.pick<std::int64_t>({1, 1, 1, 2, 4});
  for (std::int64_t i = 0; i < documents; ++i) {
    starts.push_back(starts.back() +
                     random.pick({std::int64_t{1}, random.integer(1, most), random.integer(1, 40),
                                  random.integer((most + 1) / 2, most)}));
  }
  layer.settings = random_settings(random, most);
  if (documents > 1) layer.settings.summary = Summary::streaming;
  random_positions(layer, random);
  if (random.chance(0.2)) layer.scale = 0.05 + random.unit();
  return operator_case(layer, starts, random.chance(0.7) ? DType::f32 : DType::bf16, random);
}

std::string describe(const OperatorCase& a_case) {
  return fmt::format("{} tensors={} out={} starts=[{}]{}{}", describe(a_case.spec.layer),
                     dtype_name(a_case.dtype), dtype_name(a_case.out_dtype),
                     fmt::join(a_case.spec.starts, ","), a_case.bias.empty() ? "" : " biased",
                     a_case.accumulate ? " adds" : "");
}

namespace {

/// Runs all four operators in one place.
class OperatorRun {
 public:
  OperatorRun(OperatorCase& a_case, const OperatorPlace& place, DType dtype,
              const OperatorRuns& runs)
      : c_(a_case), place_(place), dtype_(dtype), runs_(runs), random_(7) {
    const AttentionShape& shape = c_.spec.layer.shape;
    mla_ = shape.form == Form::mla;
    n_ = c_.spec.tokens();
    m_ = c_.spec.groups();
  }

  void condense() {
    const AttentionShape& shape = c_.spec.layer.shape;
    rep_semantic_ = grid({m_, shape.kv_heads, shape.d_semantic()});
    rep_positional_ = grid({m_, shape.kv_heads, shape.d_positional()});
    rep_bias_ = floats(m_ * shape.kv_heads);
    results_.scores = floats(m_ * shape.kv_heads * c_.spec.layer.settings.group);
    poison();
    operator_condense(c_.spec, condense_inputs(), condense_outputs(), place_);
    add("rep_semantic", rep_semantic_);
    add("rep_positional", rep_positional_);
    add("rep_bias", rep_bias_, kErrorFloorBias);
    add("scores", results_.scores, kErrorFloorBias);
  }

  void condense_backward() {
    CondenseOutputGrads out_grads;
    out_grads.semantic = c_.rep_semantic_grad.tensor();
    out_grads.positional = c_.rep_positional_grad.tensor();
    if (!c_.rep_bias_grad.empty()) out_grads.bias = c_.rep_bias_grad.data();
    std::array<Grid, 5> grids{like(c_.q_nope), like(c_.q_rope), like(c_.semantic),
                              like(c_.positional), like(c_.w_uk)};
    if (c_.accumulate) {
      Random same(11);
      for (Grid& one : grids) one.fill_normal(same);
    }
    CondenseInputGrads in_grads;
    in_grads.q_nope = wanted(grids[0], 0);
    in_grads.q_rope = wanted(grids[1], 1);
    in_grads.semantic = wanted(grids[2], 2);
    in_grads.positional = wanted(grids[3], 3);
    in_grads.w_uk = wanted(grids[4], 4);
    in_grads.accumulate = c_.accumulate;
    poison();
    operator_condense_backward(c_.spec, condense_inputs(), condense_outputs(), out_grads, in_grads,
                               place_);
    const std::array names{"d q_nope", "d q_rope", "d semantic", "d positional", "d w_uk"};
    for (unsigned i = 0; i < grids.size(); ++i) add_wanted(names[i], grids[i], i);
  }

  void attend() {
    const AttentionShape& shape = c_.spec.layer.shape;
    const bool is_reference = place_.backend == Backend::reference;
    out_ = Grid(is_reference ? dtype_ : c_.out_dtype, {n_, shape.heads, shape.d_value}, random_);
    lse_ = floats(n_ * shape.heads);
    poison();
    operator_attend(c_.spec, attend_inputs(), {out_.tensor(), lse_.data()}, place_);
    add("out", out_);
    add("lse", lse_, kErrorFloorBias);
  }

  void attend_backward() {
    std::array<Grid, 8> grids{like(c_.q_nope),        like(c_.q_rope),      like(c_.exact.k_nope),
                              like(c_.exact.k_rope),  like(c_.exact.value), like(c_.groups.k_nope),
                              like(c_.groups.k_rope), like(c_.groups.value)};
    std::vector<float> bias = floats(m_ * c_.spec.layer.shape.kv_heads);
    AttendInputGrads in_grads;
    const std::array<Tensor*, 8> to{&in_grads.q_nope,        &in_grads.q_rope,
                                    &in_grads.exact.k_nope,  &in_grads.exact.k_rope,
                                    &in_grads.exact.value,   &in_grads.groups.k_nope,
                                    &in_grads.groups.k_rope, &in_grads.groups.value};
    for (unsigned i = 0; i < grids.size(); ++i) *to[i] = wanted(grids[i], i);
    if (is_wanted(8)) in_grads.bias = bias.data();
    poison();
    operator_attend_backward(c_.spec, attend_inputs(), out_.tensor(), lse_.data(),
                             c_.out_grad.tensor(), in_grads, place_);
    const std::array names{"D q_nope", "D q_rope",     "D k_nope",     "D k_rope",
                           "D value",  "D rep k_nope", "D rep k_rope", "D rep value"};
    // The backward pass subtracts rowsum(dO ∘ O). Where `out` is rounded to bfloat16 that leaves an
    // error in proportion to the sum and to the rows it is multiplied with, about 2 for these
    // inputs, however small the gradient is; a bias adds as many of them as there are queries and
    // heads, with either sign.
    const bool rounded = c_.out_dtype == DType::bf16;
    const double queries = static_cast<double>(n_ * c_.spec.layer.shape.heads_per_kv());
    for (unsigned i = 0; i < grids.size(); ++i) {
      add_wanted(names[i], grids[i], i, rounded ? 2 : kErrorFloor);
    }
    const double floor = rounded ? std::max(1.0, std::sqrt(queries) / 2) : kErrorFloorBias;
    if (is_wanted(8)) add("D rep_bias", bias, floor);
  }

  void follow(const std::vector<float>& scores) { results_.scores = scores; }
  OperatorResults results() { return std::move(results_); }

 private:
  Grid grid(const Grid::Dims& dims) { return Grid(dtype_, dims, random_); }
  Grid like(Grid& input) { return grid(input.tensor().shape); }
  static std::vector<float> floats(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count),
                              std::numeric_limits<float>::quiet_NaN());
  }
  bool is_wanted(unsigned i) const { return (runs_.unwanted >> i & 1U) == 0; }
  Tensor wanted(Grid& to, unsigned i) const { return is_wanted(i) ? to.tensor() : Tensor(); }
  void poison() {
    if (runs_.poison && place_.context != nullptr) place_.context->state().workspace.poison();
  }

  CondenseInputs condense_inputs() {
    CondenseInputs in;
    if (mla_) in.queries.nope = c_.q_nope.tensor();
    in.queries.rope = c_.q_rope.tensor();
    in.entries = {c_.semantic.tensor(), c_.positional.tensor()};
    if (mla_) in.w_uk = c_.w_uk.tensor();
    return in;
  }
  CondenseOutputs condense_outputs() {
    return {rep_semantic_.tensor(), rep_positional_.tensor(), rep_bias_.data(),
            results_.scores.data()};
  }
  static HeadEntries entries(OperatorCase::Side& side) {
    return {side.k_nope.tensor(), side.k_rope.tensor(), side.value.tensor()};
  }
  AttendInputs attend_inputs() {
    AttendInputs in;
    if (mla_) in.queries.nope = c_.q_nope.tensor();
    in.queries.rope = c_.q_rope.tensor();
    in.exact = entries(c_.exact);
    in.groups = entries(c_.groups);
    if (!c_.bias.empty()) in.bias = c_.bias.data();
    return in;
  }

  void add_wanted(const char* name, const Grid& grid, unsigned i, double floor = kErrorFloor) {
    if (is_wanted(i)) add(name, grid, floor);
  }
  void add(const char* name, const Grid& grid, double floor = kErrorFloor) {
    results_.tensors.push_back({name, grid.values(), floor});
    results_.bytes.push_back(grid.bytes());
    results_.gaps_are_intact = results_.gaps_are_intact && grid.gaps_are_intact();
  }
  void add(const char* name, const std::vector<float>& values, double floor = kErrorFloor) {
    results_.tensors.push_back({name, {values.begin(), values.end()}, floor});
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    results_.bytes.emplace_back(bytes, bytes + values.size() * sizeof(float));
  }

  OperatorCase& c_;
  OperatorPlace place_;
  DType dtype_;
  OperatorRuns runs_;
  Random random_;
  bool mla_ = false;
  std::int64_t n_ = 0, m_ = 0;
  Grid rep_semantic_, rep_positional_, out_;
  std::vector<float> rep_bias_, lse_;
  OperatorResults results_;
};

}  // namespace

OperatorResults reference_results(OperatorCase& a_case, const std::vector<float>* chosen) {
  OperatorPlace place;
  place.backend = Backend::reference;
  OperatorRun run(a_case, place, DType::f64, {});
  run.condense();
  if (chosen != nullptr) run.follow(*chosen);
  run.condense_backward();
  run.attend();
  run.attend_backward();
  return run.results();
}

OperatorResults cpu_results(OperatorCase& a_case, Context& context, const OperatorRuns& runs) {
  OperatorPlace place;
  place.backend = Backend::cpu;
  place.context = &context;
  OperatorRun run(a_case, place, a_case.dtype, runs);
  run.condense();
  run.condense_backward();
  run.attend();
  run.attend_backward();
  return run.results();
}

bool has_near_tie(const OperatorCase& a_case, const OperatorResults& expected) {
  const Settings& settings = a_case.spec.layer.settings;
  if (!selects(settings) || settings.group < 2) return false;
  const auto g = static_cast<std::size_t>(settings.group);
  for (std::size_t first = 0; first < expected.scores.size(); first += g) {
    std::vector<float> scores(expected.scores.begin() + static_cast<std::ptrdiff_t>(first),
                              expected.scores.begin() + static_cast<std::ptrdiff_t>(first + g));
    std::sort(scores.rbegin(), scores.rend());
    if (scores[0] - scores[1] < 1e-4F * std::max(1.0F, std::abs(scores[0]))) return true;
  }
  return false;
}

double worst_error(const OperatorResults& expected, const OperatorResults& actual,
                   std::string& where) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    const NamedValues& tensor = expected.tensors[i];
    const double error = error_of(tensor.values, actual.tensors[i].values, tensor.floor);
    if (error > worst || std::isnan(error)) {
      worst = error;
      where = tensor.name;
    }
  }
  return worst;
}

}  // namespace lca::test
