// What operator calls refuse: every check has a case here, and the call it is made from passes.

#include <lca/error.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/operator_case.h"

namespace lca::test {
namespace {

// A call of all four operators that is right; tests change one thing in it.
struct Call {
  explicit Call(Form form) {
    Random random(3);
    spec.layer.shape =
        form == Form::mla ? AttentionShape::mla(2, 3, 4, 5, 3) : AttentionShape::gqa(4, 2, 4, 3);
    spec.layer.settings.group = 3;
    spec.layer.settings.window = 2;
    spec.layer.settings.mass = Mass::score;
    spec.starts = {0, 9, 14};
    place.backend = Backend::reference;
    inputs = random_values(spec, DType::f64, random);
    composed.emplace_back(spec, inputs, place);
    condense = inputs.condense_inputs();
    condensed = first().condense_outputs();
    attend = first().attend_inputs();
    attended.out = first().out.tensor();
    attended.lse = first().lse.data();
    lse = first().lse.data();
    const AttentionShape& shape = spec.layer.shape;
    out_grad = Values(DType::f64, spec.tokens(), shape.heads, shape.d_value);
    rep_semantic = Values(DType::f64, spec.groups(), shape.kv_heads, shape.d_semantic());
    rep_positional = Values(DType::f64, spec.groups(), shape.kv_heads, shape.d_positional());
    for (Values* values : {&out_grad, &rep_semantic, &rep_positional}) {
      values->fill_normal(1, random);
    }
    condensed_grads.semantic = rep_semantic.view();
    condensed_grads.positional = rep_positional.view();
    out = first().out.view();
    attended_grad = out_grad.view();
    grads = OperatorValues::of(spec, DType::f64);
    condense_grads.q_nope = grads.q_nope.tensor();
    condense_grads.q_rope = grads.q_rope.tensor();
    condense_grads.semantic = grads.semantic.tensor();
    condense_grads.positional = grads.positional.tensor();
    condense_grads.w_uk = grads.w_uk.tensor();
    const bool mla = form == Form::mla;
    const std::int64_t columns = mla ? shape.heads : shape.kv_heads;
    k_nope_grad = Values(DType::f64, spec.tokens(), shape.heads, shape.d_nope);
    value_grad = Values(DType::f64, spec.tokens(), columns, shape.d_value);
    rep_k_nope_grad = Values(DType::f64, spec.groups(), shape.heads, shape.d_nope);
    rep_value_grad = Values(DType::f64, spec.groups(), columns, shape.d_value);
    attend_grads.q_nope = grads.q_nope.tensor();
    attend_grads.q_rope = grads.q_rope.tensor();
    attend_grads.exact = {k_nope_grad.tensor(), grads.positional.tensor(), value_grad.tensor()};
    attend_grads.groups = {rep_k_nope_grad.tensor(), rep_positional.tensor(),
                           rep_value_grad.tensor()};
  }

  Composed& first() { return composed.front(); }

  void run_condense() { operator_condense(spec, condense, condensed, place); }
  void run_condense_backward() {
    operator_condense_backward(spec, condense, condensed, condensed_grads, condense_grads, place);
  }
  void run_attend() { operator_attend(spec, attend, attended, place); }
  void run_attend_backward() {
    operator_attend_backward(spec, attend, out, lse, attended_grad, attend_grads, place);
  }

  OperatorSpec spec;
  OperatorPlace place;
  OperatorValues inputs;
  std::vector<Composed> composed;  // one; it has no default
  Values out_grad, rep_semantic, rep_positional;
  Values k_nope_grad, value_grad, rep_k_nope_grad, rep_value_grad;
  OperatorValues grads;

  CondenseInputs condense;
  CondenseOutputs condensed;
  CondenseOutputGrads condensed_grads;
  CondenseInputGrads condense_grads;
  AttendInputs attend;
  AttendOutputs attended;
  ConstTensor out, attended_grad;
  const float* lse = nullptr;
  AttendInputGrads attend_grads;
};

using Operation = void (Call::*)();
constexpr Operation kCondense = &Call::run_condense;
constexpr Operation kCondenseBackward = &Call::run_condense_backward;
constexpr Operation kAttend = &Call::run_attend;
constexpr Operation kAttendBackward = &Call::run_attend_backward;

void expect_refused(Form form, Operation run, const std::function<void(Call&)>& change,
                    const std::string& words) {
  Call call(form);
  (call.*run)();  // as it is, it passes
  change(call);
  try {
    (call.*run)();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << error.what() << " does not say: " << words;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

// A tensor of a call, its name in messages, and the calls that check it.
struct Named {
  std::string name;
  std::function<ConstTensor*(Call&)> read;  // one of the two
  std::function<Tensor*(Call&)> write;
  std::vector<Operation> runs;
  bool may_be_empty = false;
};

std::vector<Named> tensors_of(Form form) {
  const bool mla = form == Form::mla;
  const std::string q = mla ? "q_rope" : "q", sem = mla ? "c" : "v", pos = mla ? "k_rope" : "k";
  const std::vector<Operation> condensing{kCondense, kCondenseBackward};
  const std::vector<Operation> attending{kAttend, kAttendBackward};
  std::vector<Named> list = {
      {q, [](Call& c) { return &c.condense.queries.rope; }, {}, condensing},
      {sem, [](Call& c) { return &c.condense.entries.semantic; }, {}, condensing},
      {pos, [](Call& c) { return &c.condense.entries.positional; }, {}, condensing},
      {"rep_" + sem, {}, [](Call& c) { return &c.condensed.semantic; }, condensing},
      {"rep_" + pos, {}, [](Call& c) { return &c.condensed.positional; }, condensing},
      {"the gradient of rep_c or rep_v",
       [](Call& c) { return &c.condensed_grads.semantic; },
       {},
       {kCondenseBackward}},
      {"the gradient of rep_k",
       [](Call& c) { return &c.condensed_grads.positional; },
       {},
       {kCondenseBackward}},
      {"the gradient of q",
       {},
       [](Call& c) { return &c.condense_grads.q_rope; },
       {kCondenseBackward},
       true},
      {"the gradient of c or v",
       {},
       [](Call& c) { return &c.condense_grads.semantic; },
       {kCondenseBackward},
       true},
      {"the gradient of k",
       {},
       [](Call& c) { return &c.condense_grads.positional; },
       {kCondenseBackward},
       true},
      {q, [](Call& c) { return &c.attend.queries.rope; }, {}, attending},
      {pos, [](Call& c) { return &c.attend.exact.k_rope; }, {}, attending},
      {"v", [](Call& c) { return &c.attend.exact.value; }, {}, attending},
      {pos, [](Call& c) { return &c.attend.groups.k_rope; }, {}, attending},
      {"v", [](Call& c) { return &c.attend.groups.value; }, {}, attending},
      {"out", {}, [](Call& c) { return &c.attended.out; }, {kAttend}},
      {"out", [](Call& c) { return &c.out; }, {}, {kAttendBackward}},
      {"the gradient of out", [](Call& c) { return &c.attended_grad; }, {}, {kAttendBackward}},
      {"the gradient of q",
       {},
       [](Call& c) { return &c.attend_grads.q_rope; },
       {kAttendBackward},
       true},
      {"the gradient of k",
       {},
       [](Call& c) { return &c.attend_grads.exact.k_rope; },
       {kAttendBackward},
       true},
      {"the gradient of v",
       {},
       [](Call& c) { return &c.attend_grads.exact.value; },
       {kAttendBackward},
       true},
      {"the gradient of k",
       {},
       [](Call& c) { return &c.attend_grads.groups.k_rope; },
       {kAttendBackward},
       true},
      {"the gradient of v",
       {},
       [](Call& c) { return &c.attend_grads.groups.value; },
       {kAttendBackward},
       true},
  };
  if (!mla) return list;
  const std::vector<Named> more = {
      {"q_nope", [](Call& c) { return &c.condense.queries.nope; }, {}, condensing},
      {"w_uk", [](Call& c) { return &c.condense.w_uk; }, {}, condensing},
      {"the gradient of q_nope",
       {},
       [](Call& c) { return &c.condense_grads.q_nope; },
       {kCondenseBackward},
       true},
      {"the gradient of w_uk",
       {},
       [](Call& c) { return &c.condense_grads.w_uk; },
       {kCondenseBackward},
       true},
      {"q_nope", [](Call& c) { return &c.attend.queries.nope; }, {}, attending},
      {"k_nope", [](Call& c) { return &c.attend.exact.k_nope; }, {}, attending},
      {"k_nope", [](Call& c) { return &c.attend.groups.k_nope; }, {}, attending},
      {"the gradient of q_nope",
       {},
       [](Call& c) { return &c.attend_grads.q_nope; },
       {kAttendBackward},
       true},
      {"the gradient of k_nope",
       {},
       [](Call& c) { return &c.attend_grads.exact.k_nope; },
       {kAttendBackward},
       true},
      {"the gradient of k_nope",
       {},
       [](Call& c) { return &c.attend_grads.groups.k_nope; },
       {kAttendBackward},
       true},
  };
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

TEST(OperatorChecks, ShapesStridesAndMemoryOfEveryTensorAreChecked) {
  for (const Form form : {Form::mla, Form::gqa}) {
    for (const Named& named : tensors_of(form)) {
      const auto on_view = [&](const auto& change) {
        return [&named, change](Call& call) {
          if (named.read) {
            change(*named.read(call));
          } else {
            change(*named.write(call));
          }
        };
      };
      for (const Operation run : named.runs) {
        for (const std::size_t dim : {0, 1, 2}) {
          for (const std::int64_t more : {-1, 1}) {
            expect_refused(form, run, on_view([=](auto& view) { view.shape[dim] += more; }),
                           named.name + " has shape");
          }
        }
        expect_refused(form, run, on_view([](auto& view) { view.stride[2] = 2; }),
                       named.name + ": the last dimension must be contiguous");
        if (named.may_be_empty) continue;
        expect_refused(form, run, on_view([](auto& view) { view.data = nullptr; }),
                       named.name + " has no memory");
      }
    }
  }
}

TEST(OperatorChecks, DoublesAreForTheReferenceAlone) {
  Context context(1);
  const auto on_cpu = [&](Call& call) {
    call.place.backend = Backend::cpu;
    call.place.context = &context;
  };
  const auto on_cuda = [](Call& call) {
    call.place.backend = Backend::cuda;
    call.place.workspace = call.grads.q_rope.tensor().data;  // never reached
  };
  for (const Form form : {Form::mla, Form::gqa}) {
    for (const Operation run : {kCondense, kCondenseBackward, kAttend, kAttendBackward}) {
      expect_refused(form, run, on_cpu, "is f64; this backend takes f32 and bf16");
      expect_refused(form, run, on_cuda, "is f64; this backend takes bf16");
    }
  }
}

// All tensors as floats, so that only what a test changes is wrong.
struct FloatCall {
  explicit FloatCall(const OperatorSpec& spec_) : spec(spec_) {
    Random random(4);
    inputs = random_values(spec, DType::f32, random);
    composed.emplace_back(spec, inputs, OperatorPlace{.backend = Backend::reference});
    doubles.assign(composed.front().bias.size() + composed.front().lse.size(), 0.0);
    grad = Values(DType::f32, spec.tokens(), spec.layer.shape.heads, spec.layer.shape.d_value);
    grad.fill_normal(1, random);
    place.backend = Backend::cpu;
    place.context = &context;
  }

  OperatorSpec spec;
  OperatorValues inputs;
  std::vector<Composed> composed;
  std::vector<double> doubles;
  Values grad;
  Context context{1};
  OperatorPlace place;
};

void expect_words(const std::function<void()>& run, const std::string& words) {
  try {
    run();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(OperatorChecks, BiasesInDoubleAndMissingLogSumExpsAreForTheReferenceAlone) {
  FloatCall call(Call(Form::gqa).spec);
  Composed& composed = call.composed.front();
  CondenseOutputs condensed = composed.condense_outputs();
  condensed.bias_f64 = call.doubles.data();
  expect_words(
      [&] { operator_condense(call.spec, call.inputs.condense_inputs(), condensed, call.place); },
      "rep_bias is f64");

  CondenseOutputGrads from;
  from.semantic = composed.rep_semantic.view();
  from.positional = composed.rep_positional.view();
  from.bias_f64 = call.doubles.data();
  expect_words(
      [&] {
        operator_condense_backward(call.spec, call.inputs.condense_inputs(),
                                   composed.condense_outputs(), from, {}, call.place);
      },
      "the gradient of rep_bias is f64");

  AttendInputs in = composed.attend_inputs();
  AttendOutputs to;
  to.out = composed.out.tensor();
  expect_words([&] { operator_attend(call.spec, in, to, call.place); }, "lse has no memory");
  to.lse_f64 = call.doubles.data();
  expect_words([&] { operator_attend(call.spec, in, to, call.place); }, "lse is f64");
  to = {};
  to.out = composed.out.tensor();
  to.lse = composed.lse.data();
  in.bias_f64 = call.doubles.data();
  expect_words([&] { operator_attend(call.spec, in, to, call.place); }, "rep_bias is f64");

  in.bias_f64 = nullptr;
  AttendInputGrads grads;
  const auto backward = [&](const float* lse) {
    operator_attend_backward(call.spec, in, composed.out.view(), lse, call.grad.view(), grads,
                             call.place);
  };
  expect_words([&] { backward(nullptr); }, "needs the lse that the forward pass wrote");
  grads.bias_f64 = call.doubles.data();
  expect_words([&] { backward(composed.lse.data()); }, "the gradient of rep_bias is f64");
}

TEST(OperatorChecks, BiasesAndScoresNeedMemory) {
  for (const Form form : {Form::mla, Form::gqa}) {
    for (const Operation run : {kCondense, kCondenseBackward}) {
      expect_refused(
          form, run,
          [](Call& call) { call.condensed.bias = nullptr, call.condensed.bias_f64 = nullptr; },
          "rep_bias has no memory");
    }
    expect_refused(
        form, kCondenseBackward, [](Call& call) { call.condensed.scores = nullptr; },
        "needs the scores that the forward pass wrote");
  }
}

TEST(OperatorChecks, TheCpuNeedsAContext) {
  for (const Operation run : {kCondense, kCondenseBackward, kAttend, kAttendBackward}) {
    expect_refused(
        Form::gqa, run, [](Call& call) { call.place.backend = Backend::cpu; }, "need a context");
  }
}

TEST(OperatorChecks, StartsRunFrom0UpwardsToTheNumberOfTokens) {
  const auto with = [](std::vector<std::int64_t> starts) {
    return [starts](Call& call) { call.spec.starts = starts; };
  };
  for (const Operation run : {kCondense, kCondenseBackward, kAttend, kAttendBackward}) {
    expect_refused(Form::mla, run, with({}), "starts begin with 0");
    expect_refused(Form::mla, run, with({0}), "starts begin with 0");
    expect_refused(Form::mla, run, with({1, 14}), "starts begin with 0");
    expect_refused(Form::mla, run, with({-1, 14}), "starts begin with 0");
    expect_refused(Form::mla, run, with({0, 0, 14}), "must increase");
    expect_refused(Form::mla, run, with({0, 9, 9, 14}), "must increase");
    expect_refused(Form::mla, run, with({0, 14, 9}), "must increase");
    expect_refused(Form::mla, run, with({0, -14}), "must increase");
    expect_refused(Form::mla, run, with({0, 13}), "has shape");
    expect_refused(Form::mla, run, with({0, std::int64_t{1} << 62}), "has shape");
  }
  OperatorSpec spec = Call(Form::mla).spec;
  spec.starts = {0, 9, 9};
  EXPECT_THROW(operator_workspace_bytes(spec, OperatorPart::attend, {}), Error);
}

TEST(OperatorChecks, ThePromptSummaryTakesOneDocument) {
  const auto prompt = [](Call& call) { call.spec.layer.settings.summary = Summary::prompt; };
  for (const Operation run : {kCondense, kCondenseBackward, kAttend, kAttendBackward}) {
    expect_refused(Form::gqa, run, prompt, "takes one document, not 2");
  }
  OperatorSpec spec = Call(Form::gqa).spec;
  spec.layer.settings.summary = Summary::prompt;
  spec.starts = {0, 14};
  EXPECT_NO_THROW(spec.validate());
  // Without representatives nothing is summarised.
  spec.layer.settings.method = MethodKind::window;
  spec.starts = {0, 9, 14};
  EXPECT_NO_THROW(spec.validate());
}

TEST(OperatorChecks, SettingsAndShapesOutOfRangeAreRefused) {
  for (const Operation run : {kCondense, kCondenseBackward, kAttend, kAttendBackward}) {
    expect_refused(
        Form::gqa, run, [](Call& call) { call.spec.layer.settings.group = 0; }, "group");
    expect_refused(
        Form::gqa, run, [](Call& call) { call.spec.layer.scale = std::nan(""); }, "scale");
    expect_refused(
        Form::gqa, run, [](Call& call) { call.spec.layer.shape.kv_heads = 3; }, "KV heads");
    expect_refused(
        Form::gqa, run, [](Call& call) { call.spec.layer.settings.positions = Positions::entry; },
        "RoPE frequencies");
  }
}

TEST(OperatorChecks, NothingCondensedNeedsNoMemoryForRepresentatives) {
  for (const Form form : {Form::mla, Form::gqa}) {
    Random random(9);
    OperatorSpec spec = Call(form).spec;
    spec.layer.settings.window = 50;
    const OperatorValues inputs = random_values(spec, DType::f64, random);
    ASSERT_EQ(spec.groups(), 0);
    const Composed composed(spec, inputs, OperatorPlace{.backend = Backend::reference});
    Values grad(DType::f64, spec.tokens(), spec.layer.shape.heads, spec.layer.shape.d_value);
    grad.fill_normal(1, random);
    const OperatorValues grads = composed.backward(grad);
    for (const Values* values : grads.all()) {
      for (const double value : values->doubles()) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

}  // namespace
}  // namespace lca::test
