"""The operators on numpy arrays: no torch is needed."""

import subprocess
import sys

import numpy
import pytest
from conftest import SMALL, VARIANTS, backends, difference, gqa_arrays, knobs_for, mla_arrays

import lca

BACKENDS = backends()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_backends_agree_with_the_reference_in_double(variant, backend):
    q, k, v = gqa_arrays()
    knobs = knobs_for(variant, 8)
    out, lse = lca.attention(q, k, v, backend=backend, return_lse=True, **knobs)
    assert out.dtype == numpy.float32 and lse.dtype == numpy.float32 and out.shape == (2, 45, 4, 6)
    wide = [array.astype(numpy.float64) for array in (q, k, v)]
    truth, truth_lse = lca.attention(*wide, backend="reference", return_lse=True, **knobs)
    assert truth.dtype == numpy.float64
    assert difference(out, truth) < 1e-5 and difference(lse, truth_lse) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_mla_agrees_with_the_reference_in_double(variant, backend):
    arrays = mla_arrays()
    knobs = knobs_for(variant, 4)
    out = lca.mla_attention(*arrays, backend=backend, **knobs)
    truth = lca.mla_attention(*(array.astype(numpy.float64) for array in arrays), backend="reference", **knobs)
    assert out.shape == (2, 45, 3, 5) and difference(out, truth) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_halves_compose_to_the_whole(variant):
    q, k, v = gqa_arrays()
    knobs = {**knobs_for(variant, 8), "backend": "reference"}
    whole = lca.attention(q, k, v, **knobs)
    reps = lca.condense(q, k, v, **knobs)
    groups = (45 - 8 - knobs.get("sink", 0)) // 4 if knobs.get("method", "lca") == "lca" else 0
    assert reps[0].shape == (2, groups, 2, 8) and reps[1].shape == (2, groups, 2, 6)
    assert reps[2].shape == (2, groups, 2) and reps[2].dtype == numpy.float32
    assert numpy.array_equal(lca.attend(q, k, v, *reps, **knobs), whole)


def test_mla_halves_compose_to_the_whole():
    q_nope, q_rope, c, k_rope, w_uk, w_uv = mla_arrays()
    knobs = {**SMALL, "mass": "score", "backend": "reference"}
    rep_c, rep_k_rope, rep_bias = lca.mla_condense(q_nope, q_rope, c, k_rope, w_uk, **knobs)
    assert rep_c.shape == (2, 9, 10) and rep_k_rope.shape == (2, 9, 4) and rep_bias.shape == (2, 9)
    up = lambda latents, weight: numpy.einsum("bnc,hdc->bnhd", latents, weight)
    out = lca.mla_attend(q_nope, q_rope, up(c, w_uk), k_rope, up(c, w_uv), up(rep_c, w_uk), rep_k_rope,
                         up(rep_c, w_uv), rep_bias, **knobs)
    assert difference(out, lca.mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, **knobs)) < 1e-5


def test_packed_documents_equal_each_document_alone():
    q, k, v = gqa_arrays(batch=1, tokens=60)
    knobs = {**SMALL, "sink": 1, "mass": "score", "backend": "reference"}
    cuts = numpy.array([0, 25, 26, 60], numpy.int32)
    packed = lca.attention(q, k, v, cu_seqlens=cuts, **knobs)
    for first, last in zip(cuts, cuts[1:]):
        alone = lca.attention(*(array[:, first:last] for array in (q, k, v)), **knobs)
        assert numpy.array_equal(packed[:, first:last], alone)


def test_entries_of_a_batch_do_not_depend_on_each_other_or_on_their_layout():
    q, k, v = gqa_arrays(batch=3)
    knobs = {**SMALL, "backend": "reference"}
    whole = lca.attention(q, k, v, **knobs)
    heads_first = [numpy.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in (q, k, v)]
    assert numpy.array_equal(lca.attention(*heads_first, **knobs), whole)
    for entry in range(3):
        alone = lca.attention(*(array[entry:entry + 1] for array in (q, k, v)), **knobs)
        assert numpy.array_equal(alone[0], whole[entry])


def test_a_short_sequence_is_dense():
    q, k, v = gqa_arrays(tokens=11)
    knobs = {**SMALL, "backend": "reference"}
    dense = lca.attention(q, k, v, method="dense", backend="reference")
    assert numpy.array_equal(lca.attention(q, k, v, **knobs), dense)


def test_dense_is_softmax_attention():
    q, k, v = gqa_arrays(batch=1, heads=2, kv=2, dtype=numpy.float64)
    out = lca.attention(q, k, v, method="dense")
    logits = numpy.einsum("nhd,mhd->hnm", q[0], k[0]) * 8 ** -0.5
    logits[:, numpy.triu(numpy.ones((45, 45), bool), 1)] = -numpy.inf
    weights = numpy.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert difference(out[0], numpy.einsum("hnm,mhd->nhd", weights, v[0])) < 1e-12


@pytest.mark.parametrize("arguments, text", [
    ({"group": 0}, "group"), ({"window": 1.5}, "window"), ({"group": True}, "group"), ({"mass": "heavy"}, "mass"),
    ({"scale": -1.0}, "scale"), ({"backend": "gpu"}, "backend"), ({"positions": "entry"}, "rope_frequencies"),
    ({"rope_frequencies": [1.0] * 4}, "rope_frequencies"), ({"rope_layout": "both"}, "rope_layout"),
    ({"cu_seqlens": numpy.array([0, 45], numpy.int32)}, "cu_seqlens"),
])
def test_a_wrong_knob_is_a_value_error_that_names_it(arguments, text):
    with pytest.raises(ValueError, match=text):
        lca.attention(*gqa_arrays(), **{"backend": "reference", **arguments})


def test_wrong_tensors_are_value_errors():
    q, k, v = gqa_arrays()
    with pytest.raises(ValueError, match="k has shape"):
        lca.attention(q, k[:, :, :, :4], v, backend="reference")
    with pytest.raises(ValueError, match="k has batch 1, not 2"):
        lca.attention(q, k[:1], v, backend="reference")
    with pytest.raises(ValueError, match="B, n, H, d"):
        lca.attention(q[0], k, v, backend="reference")
    with pytest.raises(ValueError, match="float32, float64 or bfloat16"):
        lca.attention(q.astype(numpy.float16), k, v, backend="reference")
    with pytest.raises(TypeError, match="unknown knob groups"):
        lca.condense(q, k, v, groups=3)
    with pytest.raises(TypeError):
        lca.attention(q, k, v, groups=3)


def test_packed_documents_refuse_the_prompt_summary():
    q, k, v = gqa_arrays(batch=1)
    with pytest.raises(ValueError, match="prompt"):
        lca.attention(q, k, v, cu_seqlens=numpy.array([0, 20, 45], numpy.int32), summary="prompt", **SMALL)


def test_the_package_runs_without_torch():
    code = ("import sys; sys.modules['torch'] = None\n"
            "import numpy, lca\n"
            "q = numpy.ones((1, 40, 2, 4), numpy.float32)\n"
            "assert lca.attention(q, q, q, group=4, window=8, backend='reference').shape == (1, 40, 2, 4)\n"
            "assert 'torch' not in dir(lca) and lca.Engine")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_may_call_at_once(backend):
    import concurrent.futures
    inputs = [gqa_arrays(seed) for seed in range(8)]
    run = lambda arrays: lca.attention(*arrays, backend=backend, **SMALL)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, inputs))
    assert all(numpy.array_equal(out, run(arrays)) for out, arrays in zip(together, inputs))


def test_a_forked_process_can_go_on():
    code = ("import os, numpy, lca\n"
            "q = numpy.random.default_rng(0).standard_normal((2, 300, 4, 16), dtype=numpy.float32)\n"
            "truth = lca.attention(q, q, q, group=4, window=8)\n"
            "child = os.fork()\n"
            "again = lca.attention(q, q, q, group=4, window=8)\n"
            "if child == 0: os._exit(0 if numpy.array_equal(again, truth) else 1)\n"
            "assert os.waitpid(child, 0)[1] == 0 and numpy.array_equal(again, truth)")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
