"""Operators as a whole beside their halves, and what happens on the way to their kernels."""

import pytest
from conftest import SMALL, VARIANTS, difference, gqa_arrays, mla_arrays

torch = pytest.importorskip("torch")
import lca  # noqa: E402
from test_torch import backward, events_of, mla_tensors, needs_cpu, tensors, torch_knobs  # noqa: E402


def mla_by_halves(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v, **knobs):
    rep_c, rep_k_rope, bias = lca.mla_condense(q_nope, q_rope, c, k_rope, w_uk, **knobs)
    up = lambda weight: torch.einsum("bmc,hdc->bmhd", rep_c, weight)
    return lca.mla_attend(q_nope, q_rope, k_nope, k_rope, v, up(w_uk), rep_k_rope, up(w_uv), bias, **knobs)


@pytest.mark.parametrize("backend, dtype, limit", [
    ("reference", torch.float64, 1e-12), pytest.param("cpu", torch.float32, 1e-5, marks=needs_cpu)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_halves_compose_to_the_whole(variant, backend, dtype, limit):
    knobs = {**torch_knobs(variant, 8), "backend": backend}
    inputs = tensors(gqa_arrays(), dtype, False)
    whole = backward(lambda *x: lca.attention(*x, **knobs), inputs)
    halves = backward(lambda *x: lca.attend(*x, *lca.condense(*x, **knobs), **knobs), inputs)
    for one, other in zip([whole[0], *whole[1]], [halves[0], *halves[1]]):
        assert difference(one, other) < limit


@pytest.mark.parametrize("backend, dtype, limit", [
    ("reference", torch.float64, 1e-12), pytest.param("cpu", torch.float32, 1e-5, marks=needs_cpu)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_halves_of_mla_compose_to_the_whole(variant, backend, dtype, limit):
    knobs = {**torch_knobs(variant, 4), "backend": backend}
    inputs = mla_tensors(mla_arrays(), dtype)
    whole = backward(lambda *x: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], **knobs), inputs)
    halves = backward(lambda *x: mla_by_halves(*x, **knobs), inputs)
    for one, other in zip([whole[0], *whole[1]], [halves[0], *halves[1]]):
        assert difference(one, other) < limit


def test_numpy_takes_keys_and_values_of_tokens_too():
    inputs = mla_tensors(mla_arrays(), torch.float32)
    run = lambda x, **knobs: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], backend="reference", **knobs, **SMALL)
    for mass in ("none", "score"):
        assert difference(run([x.numpy() for x in inputs], mass=mass), run(inputs, mass=mass)) < 1e-6


@pytest.mark.parametrize("frozen", range(8))
def test_gradients_do_not_depend_on_which_others_are_wanted(frozen):
    inputs = mla_tensors(mla_arrays())
    run = lambda *x: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], mass="score", **SMALL)
    _, truth = backward(run, inputs)
    held = inputs[frozen]
    free = inputs[:frozen] + inputs[frozen + 1:]
    _, ours = backward(lambda *x: run(*x[:frozen], held, *x[frozen:]), free)
    for one, other in zip(ours, truth[:frozen] + truth[frozen + 1:]):
        assert torch.equal(one, other)
    _, alone = backward(lambda x: run(*inputs[:frozen], x, *inputs[frozen + 1:]), [held])
    assert torch.equal(alone[0], truth[frozen])


def test_a_short_sequence_has_gradients_without_representatives():
    inputs = mla_tensors(mla_arrays(tokens=6))
    _, grads = backward(lambda *x: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], **SMALL), inputs)
    _, truth = backward(lambda *x: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], method="dense", **SMALL), inputs)
    for one, other in zip(grads, truth):
        assert torch.equal(one, other)


class EveryOperator(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees every operator below autograd."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.append(function._schema.name)
        return function(*arguments, **(keywords or {}))


def test_a_dispatch_mode_sees_the_operators_and_changes_nothing():
    inputs = tensors(gqa_arrays())
    run = lambda *x: lca.attention(*x, mass="score", **SMALL)
    truth = backward(run, inputs)
    with EveryOperator() as seen:
        ours = backward(run, inputs)
    assert "lca::attention" in seen.names and "lca::attention_backward" in seen.names
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert torch.equal(one, other)


def test_autograd_adds_up_no_tensors():
    inputs = [x.requires_grad_() for x in mla_tensors(mla_arrays(), torch.float32)]
    out = lca.mla_attention(*inputs[:6], k_nope=inputs[6], v=inputs[7], mass="score", **SMALL)
    events = events_of(lambda: torch.autograd.grad(out, inputs, torch.ones_like(out)))
    assert not {"aten::add", "aten::add_"} & set(events)


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def gpu_inputs(mla):
    if not mla:
        return [x.bfloat16().cuda() for x in tensors(gqa_arrays(tokens=300, width=64, value=64), grad=False)]
    arrays = mla_arrays(tokens=300, heads=4, nope=128, rope=64, latent=512, value=128)
    inputs = mla_tensors((*arrays[:4], arrays[4] / 20, arrays[5] / 20))
    return [x.bfloat16().cuda() for x in inputs]


def whole_of(mla, **knobs):
    if mla:
        return lambda *x: lca.mla_attention(*x[:6], k_nope=x[6], v=x[7], **knobs)
    return lambda *x: lca.attention(*x, **knobs)


def gradients(run, inputs):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*leaves)
    torch.manual_seed(5)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn(out.shape, device=out.device).to(out.dtype))]


@cuda
@pytest.mark.parametrize("variant", ["training", "select and mass by score", "entry positions", "best head"])
@pytest.mark.parametrize("mla", [False, True])
def test_the_gpu_gives_the_same_whole_and_in_halves(mla, variant):
    knobs, inputs = torch_knobs(variant, 64), gpu_inputs(mla)
    halves = (lambda *x: mla_by_halves(*x, **knobs)) if mla else \
        (lambda *x: lca.attend(*x, *lca.condense(*x, **knobs), **knobs))
    whole, halves = gradients(whole_of(mla, **knobs), inputs), gradients(halves, inputs)
    assert torch.equal(whole[0], halves[0])
    for one, other in zip(whole, halves):
        assert difference(one.double().cpu(), other.double().cpu()) < 2e-2


@cuda
@pytest.mark.parametrize("mla", [False, True])
def test_deterministic_gradients_of_the_whole_repeat(mla):
    inputs = gpu_inputs(mla)
    torch.use_deterministic_algorithms(True)
    try:
        results = [gradients(whole_of(mla, mass="score", **SMALL), inputs) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0]))


@cuda
@pytest.mark.parametrize("mla", [False, True])
def test_nothing_waits_for_the_gpu(mla):
    inputs = [x.requires_grad_() for x in gpu_inputs(mla)]
    run = whole_of(mla, **SMALL)
    grad = torch.ones_like(run(*inputs))
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(run(*inputs), inputs, grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cuda
def test_gradients_on_another_stream_of_the_gpu_are_the_same():
    inputs = gpu_inputs(True)
    truth = gradients(whole_of(True, **SMALL), inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = [x + 0 for x in inputs]  # seen only by what follows on this stream
        ours = gradients(whole_of(True, **SMALL), late)
    torch.cuda.current_stream().wait_stream(stream)
    for one, other in zip(ours, truth):
        assert difference(one.double().cpu(), other.double().cpu()) < 1e-2
