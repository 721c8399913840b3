"""The operators in PyTorch: gradients, torch.library, torch.compile, checkpointing, copies."""

import subprocess
import sys

import numpy
import pytest
from conftest import SMALL, VARIANTS, backends, difference, gqa_arrays, knobs_for, mla_arrays

torch = pytest.importorskip("torch")
import lca  # noqa: E402
import lca.reference  # noqa: E402

BACKENDS = backends()
HOST = "cpu" if "cpu" in BACKENDS else "reference"
needs_cpu = pytest.mark.skipif("cpu" not in BACKENDS, reason="this build has no operators on the CPU")


def tensors(arrays, dtype=torch.float64, grad=True):
    return [torch.tensor(array).to(dtype).requires_grad_(grad) for array in arrays]


def mla_tensors(arrays, dtype=torch.float64):
    """Inputs of MLA with keys and values of tokens that are not made from latents."""
    inputs = tensors(arrays, dtype, False)
    torch.manual_seed(11)
    return [*inputs, *(torch.randn(*inputs[2].shape[:2], *weight.shape[:2]).to(dtype) for weight in inputs[4:])]


def torch_knobs(variant, width):
    knobs = knobs_for(variant, width)
    if "rope_frequencies" in knobs:
        knobs["rope_frequencies"] = torch.tensor(knobs["rope_frequencies"])
    return knobs


def backward(function, inputs, seed=7):
    """Output and gradients for one random gradient of the output."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    torch.manual_seed(seed)
    grads = torch.autograd.grad(out, inputs, torch.randn(out.shape).to(out.dtype), allow_unused=True)
    return out.detach(), [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, grads)]


def without_backend(knobs):
    return {name: value for name, value in knobs.items() if name != "backend"}


# --- against lca.reference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend, dtype, limit", [
    ("reference", torch.float64, 1e-6), pytest.param("cpu", torch.float32, 2e-4, marks=needs_cpu)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_and_gradients_equal_autograd_of_the_plain_implementation(variant, backend, dtype, limit):
    knobs = torch_knobs(variant, 8)
    inputs = tensors(gqa_arrays())
    truth = backward(lambda *x: lca.reference.attention(*x, **knobs), inputs)
    ours = backward(lambda *x: lca.attention(*x, backend=backend, **knobs), [x.to(dtype) for x in inputs])
    assert difference(ours[0], truth[0]) < limit
    for name, one, other in zip("qkv", ours[1], truth[1]):
        assert one.dtype == dtype and difference(one, other) < limit, name


@pytest.mark.parametrize("backend, dtype, limit", [
    ("reference", torch.float64, 1e-6), pytest.param("cpu", torch.float32, 2e-4, marks=needs_cpu)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_mla_forward_and_gradients_equal_autograd_of_the_plain_implementation(variant, backend, dtype, limit):
    knobs = torch_knobs(variant, 4)
    inputs = tensors(mla_arrays())
    truth = backward(lambda *x: lca.reference.mla_attention(*x, **knobs), inputs)
    ours = backward(lambda *x: lca.mla_attention(*x, backend=backend, **knobs), [x.to(dtype) for x in inputs])
    assert difference(ours[0], truth[0]) < limit
    for name, one, other in zip(("q_nope", "q_rope", "c", "k_rope", "w_uk", "w_uv"), ours[1], truth[1]):
        assert difference(one, other) < limit, name


def test_packed_documents_have_the_gradients_of_each_document_alone():
    inputs = tensors(gqa_arrays(batch=1, tokens=60))
    knobs = {**SMALL, "sink": 1, "mass": "score", "cu_seqlens": torch.tensor([0, 25, 26, 60], dtype=torch.int32)}
    truth = backward(lambda *x: lca.reference.attention(*x, **knobs), inputs)
    ours = backward(lambda *x: lca.attention(*x, **knobs), inputs)
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert difference(one, other) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_do_not_depend_on_the_layout_of_a_batch(backend):
    inputs = tensors(mla_arrays(batch=3), torch.float32, False)
    run = lambda *x: lca.mla_attention(*x, mass="score", backend=backend, **SMALL)
    truth = backward(run, inputs)

    def spread(*x):  # queries with their heads first: a call for each entry of the batch
        return run(*(y.transpose(1, 2).contiguous().transpose(1, 2) for y in x[:2]), *x[2:])

    ours = backward(spread, inputs)
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert difference(one, other) < 1e-5


@needs_cpu
def test_bfloat16_stays_close_to_double():
    inputs = [x.bfloat16() for x in tensors(gqa_arrays(), grad=False)]
    ours = backward(lambda *x: lca.attention(*x, **SMALL), inputs)
    truth = backward(lambda *x: lca.reference.attention(*x, **SMALL), [x.double() for x in inputs])
    assert ours[0].dtype == torch.bfloat16
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert difference(one.double(), other) < 2e-2


def test_lse_carries_no_gradient():
    q, k, v = tensors(gqa_arrays())
    out, lse = lca.attention(q, k, v, return_lse=True, **SMALL)
    assert out.requires_grad and not lse.requires_grad
    _, truth = lca.reference.attention(q, k, v, return_lse=True, **SMALL)
    assert difference(lse, truth.detach()) < 1e-12


# --- what PyTorch checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["training", "weighted keys, mass by score", "maxima", "best head",
                                     "entry positions, adjacent", "prompt"])
def test_gradcheck_of_the_halves(variant):
    knobs = {**torch_knobs(variant, 4), "window": 5, "group": 3, "summary_queries": 2}
    inputs = tensors(gqa_arrays(batch=1, tokens=13, heads=2, kv=1, width=4, value=3))
    condense = lambda q, k, v: lca.condense(q, k, v, **knobs)[:3 if knobs.get("mass") == "score" else 2]
    assert torch.autograd.gradcheck(condense, inputs, fast_mode=True)
    reps = [rep.detach().double().requires_grad_() for rep in lca.condense(*inputs, **knobs)]
    attend = lambda *x: lca.attend(*x, **knobs)
    assert torch.autograd.gradcheck(attend, [*inputs, *reps], fast_mode=True)


def test_gradcheck_of_mla_whole():
    knobs = {"window": 5, "group": 3, "summary_queries": 2, "mass": "score", "positional_pool": "weighted"}
    inputs = tensors(mla_arrays(batch=1, tokens=12, heads=2, nope=3, rope=2, latent=4, value=2))
    assert torch.autograd.gradcheck(lambda *x: lca.mla_attention(*x, **knobs), inputs, fast_mode=True)


OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def op_knobs(**changes):
    from lca import _call, _torch
    return _torch._knobs(_call.Call({**SMALL, "backend": "reference", **changes}))


@pytest.mark.parametrize("changes", [{}, {"mass": "score", "positional_pool": "weighted"}, {"method": "dense"}])
def test_opcheck_passes(changes):
    q, k, v = tensors(gqa_arrays(tokens=21))
    knobs = op_knobs(**changes)
    torch.library.opcheck(torch.ops.lca.condense, (None, q, k, v, None, *knobs), test_utils=OPCHECKS)
    reps = [rep.detach().requires_grad_() for rep in torch.ops.lca.condense(None, q, k, v, None, *knobs)[:3]]
    arguments = (None, q, None, k, v, None, *reps, *knobs)
    torch.library.opcheck(torch.ops.lca.attend, arguments, test_utils=OPCHECKS)
    torch.library.opcheck(torch.ops.lca.attention, (None, q, k, v, *[None] * 4, *knobs), test_utils=OPCHECKS)


def test_opcheck_passes_for_mla():
    q_nope, q_rope, c, k_rope, w_uk, w_uv = tensors(mla_arrays(tokens=21))
    knobs = op_knobs(mass="score")
    torch.library.opcheck(torch.ops.lca.condense, (q_nope, q_rope, k_rope, c, w_uk, *knobs), test_utils=OPCHECKS)
    k_nope, v = (x.detach().requires_grad_() for x in mla_tensors(mla_arrays(tokens=21))[6:])
    whole = (q_nope, q_rope, k_rope, c, k_nope, v, w_uk, w_uv, *knobs)
    torch.library.opcheck(torch.ops.lca.attention, whole, test_utils=OPCHECKS)


def test_opcheck_passes_for_packed_documents():
    q, k, v = tensors(gqa_arrays(batch=1, tokens=40))
    knobs = op_knobs(cu_seqlens=torch.tensor([0, 17, 40], dtype=torch.int32))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.lca.condense, (None, q, k, v, None, *knobs), test_utils=checks)
    torch.library.opcheck(torch.ops.lca.attention, (None, q, k, v, *[None] * 4, *knobs), test_utils=checks)


# --- torch.compile, checkpointing -------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A transformer block around the operator."""

    def __init__(self, mla=False, width=16, **knobs):
        super().__init__()
        torch.manual_seed(3)
        self.mla, self.knobs = mla, {**SMALL, "backend": HOST, **knobs}
        self.norm = torch.nn.LayerNorm(width)
        self.inward = torch.nn.Linear(width, 2 * 6 + 2 * 4 + 8 + 4 if mla else 4 * 8 + 2 * 2 * 8)
        self.outward = torch.nn.Linear(10 if mla else 32, width)
        if mla:
            self.w_uk, self.w_uv = (torch.nn.Parameter(torch.randn(2, d, 8) / 3) for d in (6, 5))

    def forward(self, x, cu_seqlens=None):
        parts = self.inward(self.norm(x))
        if self.mla:
            q_nope, q_rope, c, k_rope = parts.split([12, 8, 8, 4], -1)
            y = lca.mla_attention(q_nope.unflatten(-1, (2, 6)), q_rope.unflatten(-1, (2, 4)), c, k_rope, self.w_uk,
                                  self.w_uv, cu_seqlens=cu_seqlens, **self.knobs)
        else:
            q, k, v = parts.split([32, 16, 16], -1)
            y = lca.attention(q.unflatten(-1, (4, 8)), k.unflatten(-1, (2, 8)), v.unflatten(-1, (2, 8)),
                              cu_seqlens=cu_seqlens, **self.knobs)
        return x + self.outward(y.flatten(2))


def block_grads(block, run, x, **arguments):
    block.zero_grad()
    x = x.clone().requires_grad_()
    out = run(x, **arguments)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


@pytest.mark.parametrize("mla", [False, True])
def test_compiled_gradients_equal_eager_ones(mla):
    block = Block(mla, mass="score")
    x = torch.randn(2, 40, 16)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for one, other in zip(block_grads(block, compiled, x), block_grads(block, block, x)):
        assert difference(one, other) < 1e-5


def test_a_block_compiled_by_inductor_equals_the_eager_one():
    block = Block(mla=True, mass="score")
    x = torch.randn(1, 40, 16)
    compiled = torch.compile(block, fullgraph=True)
    for cuts in ([0, 17, 40], [0, 9, 20, 40]):
        documents = torch.tensor(cuts, dtype=torch.int32)
        for one, other in zip(block_grads(block, compiled, x, cu_seqlens=documents),
                              block_grads(block, block, x, cu_seqlens=documents)):
            assert difference(one, other) < 1e-5


def test_a_compiled_block_takes_packed_documents_of_changing_lengths():
    block = Block()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for cuts in ([0, 17, 40], [0, 30, 40], [0, 9, 20, 40]):
        x, documents = torch.randn(1, 40, 16), torch.tensor(cuts, dtype=torch.int32)
        for one, other in zip(block_grads(block, compiled, x, cu_seqlens=documents),
                              block_grads(block, block, x, cu_seqlens=documents)):
            assert difference(one, other) < 1e-5


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(reentrant):
    block = Block(mla=True, mass="score")
    x = torch.randn(2, 40, 16)
    recomputed = lambda y: torch.utils.checkpoint.checkpoint(block, y, use_reentrant=reentrant)
    for one, other in zip(block_grads(block, recomputed, x), block_grads(block, block, x)):
        assert torch.equal(one, other)


@needs_cpu
@pytest.mark.parametrize("mla", [False, True])
def test_autocast_runs_in_its_own_type(mla):
    block = Block(mla)
    x = torch.randn(2, 40, 16)
    with torch.autocast("cpu", torch.bfloat16):
        ours = block_grads(block, block, x)
    for one, other in zip(ours, block_grads(block, block, x)):
        assert one.dtype == torch.float32 and difference(one, other) < 0.1


# --- memory -----------------------------------------------------------------------------------------------------

COPIES = ("aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to")


def events_of(function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {event.key: event.count for event in profile.key_averages()}


def copies_of(function):
    events = events_of(function)
    return sum(events.get(name, 0) for name in COPIES)


def test_tensors_are_taken_as_they_lie_without_a_copy():
    base = torch.randn(2, 50, 4 * 8 + 2 * 8 + 2 * 8)
    q, k, v = base.split([32, 16, 16], -1)  # neighbouring columns of one product
    q, k, v = q.unflatten(-1, (4, 8)), k.unflatten(-1, (2, 8)), v.unflatten(-1, (2, 8))
    assert not q.is_contiguous()
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    run = lambda *x: lca.attention(*x, backend=HOST, **SMALL)
    assert copies_of(lambda: run(q, k, v)) == 0
    assert copies_of(lambda: run(*heads_first)) == 0
    assert torch.equal(run(*heads_first), run(q, k, v))
    turned = q.transpose(2, 3).contiguous().transpose(2, 3)  # the last dimension is not contiguous
    assert copies_of(lambda: run(turned, k, v)) > 0
    assert torch.equal(run(turned, k, v), run(q, k, v))


def test_backward_copies_nothing():
    q, k, v = (x.requires_grad_() for x in tensors(gqa_arrays(), torch.float32))
    out = lca.attention(q, k, v, backend=HOST, **SMALL)
    grad = torch.randn_like(out)
    assert copies_of(lambda: torch.autograd.grad(out, (q, k, v), grad)) == 0


# --- errors, DLPack, devices ------------------------------------------------------------------------------------


def test_errors_are_the_librarys_own_lines():
    q, k, v = tensors(gqa_arrays())
    with pytest.raises(ValueError, match="k has shape"):
        lca.attention(q, k[..., :4], v, **SMALL)
    with pytest.raises(ValueError, match="float16"):
        lca.attention(q.half(), k.half(), v.half(), backend="reference")
    with pytest.raises(ValueError, match="int32"):
        lca.attention(q[:1], k[:1], v[:1], cu_seqlens=torch.tensor([0, 45]))
    with pytest.raises(ValueError, match="cuda"):
        lca.attention(q, k, v, backend="cuda")
    with pytest.raises(ValueError, match="representatives"):
        lca.attend(q, k, v, None, None, None, **SMALL)


def test_a_torch_that_shares_no_tensors_is_refused():
    from lca import _lca
    with pytest.raises(ValueError, match="2.11 or newer"):
        _lca.torch_attach(object)


GPU_TOO = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", GPU_TOO)
def test_python_ends_without_a_word_whatever_the_gpu_has_run(device):
    kind = "bfloat16" if device == "cuda" else "float"
    program = (f"import torch, lca\nq = torch.randn(1, 60, 2, 64, device='{device}').{kind}().requires_grad_()\n"
               "lca.attention(q, q, q, group=4, window=8).sum().backward()\n")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_numpy_and_torch_give_the_same_numbers():
    arrays = gqa_arrays()
    ours = lca.attention(*arrays, backend=HOST, **SMALL)
    assert numpy.array_equal(ours, lca.attention(*tensors(arrays, torch.float32, False), backend=HOST, **SMALL))


class Exported:
    """An array of some other library: DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_bfloat16_arrays_come_and_go_by_dlpack():
    q, k, v = (x.bfloat16() for x in tensors(gqa_arrays(), grad=False))
    out = lca.attention(*map(Exported, (q, k, v)), backend=HOST, **SMALL)
    truth = lca.attention(q, k, v, backend=HOST, **SMALL)
    assert torch.equal(torch.from_dlpack(out), truth)
    latent = [x.bfloat16() for x in tensors(mla_arrays(), grad=False)]
    out = lca.mla_attention(*map(Exported, latent), backend=HOST, **SMALL)
    assert difference(out, lca.mla_attention(*(x.float() for x in latent), backend=HOST, **SMALL)) < 1e-5


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@cuda
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gpu_agrees_with_double(variant):
    knobs = torch_knobs(variant, 64)
    inputs = [x.bfloat16() for x in tensors(gqa_arrays(tokens=300, width=64, value=64), grad=False)]
    truth = backward(lambda *x: lca.attention(*x, backend="reference", **knobs), [x.double() for x in inputs])
    ours = backward(lambda *x: lca.attention(*(y.cuda() for y in x), **knobs).cpu(), inputs)
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert difference(one.double(), other) < 2e-2


@cuda
@pytest.mark.parametrize("variant", ["training", "select and mass by score", "entry positions", "best head"])
def test_the_gpu_agrees_with_double_in_mla(variant):
    knobs = torch_knobs(variant, 64)
    arrays = mla_arrays(tokens=200, heads=4, nope=128, rope=64, latent=512, value=128)
    inputs = [x.bfloat16() for x in tensors((*arrays[:4], arrays[4] / 20, arrays[5] / 20), grad=False)]
    truth = backward(lambda *x: lca.mla_attention(*x, backend="reference", **knobs), [x.double() for x in inputs])
    ours = backward(lambda *x: lca.mla_attention(*(y.cuda() for y in x), **knobs).cpu(), inputs)
    for one, other in zip([ours[0], *ours[1]], [truth[0], *truth[1]]):
        assert difference(one.double(), other) < 3e-2  # keys and values of tokens are rounded on the way


@cuda
def test_the_gpu_takes_packed_documents_and_strided_batches():
    q, k, v = (x.bfloat16().cuda() for x in tensors(gqa_arrays(batch=1, tokens=300, width=64, value=64), grad=False))
    cuts = torch.tensor([0, 120, 121, 300], dtype=torch.int32, device="cuda")
    packed = lca.attention(q, k, v, cu_seqlens=cuts, **SMALL)
    for first, last in ((0, 120), (120, 121), (121, 300)):
        alone = lca.attention(*(x[:, first:last] for x in (q, k, v)), **SMALL)
        assert difference(packed[:, first:last].float().cpu(), alone.float().cpu()) < 1e-2
    both = [torch.cat([x, x.flip(1)]) for x in (q, k, v)]
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in both]
    one, other = (lca.attention(*x, **SMALL).float().cpu() for x in (both, heads_first))
    assert difference(one, other) < 1e-2


@cuda
def test_gradients_are_the_same_bits_every_time():
    inputs = [x.bfloat16().cuda() for x in tensors(gqa_arrays(tokens=2000, width=64, value=64), grad=False)]
    grad = torch.randn(2, 2000, 4, 64, device="cuda").bfloat16()
    results = []
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in inputs]
        results.append(torch.autograd.grad(lca.attention(*leaves, **SMALL), leaves, grad))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0]))


@cuda
def test_the_current_stream_is_respected():
    q, k, v = (x.bfloat16().cuda() for x in tensors(gqa_arrays(tokens=300, width=64, value=64), grad=False))
    truth = lca.attention(q, k, v, **SMALL)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(200_000_000)
        late.copy_(q)  # seen only by what follows on this stream
        out = lca.attention(late, k, v, **SMALL)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(out, truth)
