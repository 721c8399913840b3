"""What the tests of the package share."""

import importlib.util
import os
import pathlib

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
EVAL = ROOT / "eval"

# Small widths and windows, so that documents of some fifty tokens have several groups.
SMALL = {"group": 4, "window": 8, "summary_queries": 5}
VARIANTS = {
    "training": {},
    "sink": {"sink": 3},
    "select and mass by score": {"semantic_pool": "select", "mass": "score", "sink": 2},
    "weighted keys, mass by score": {"positional_pool": "weighted", "mass": "score"},
    "means and counts": {"semantic_pool": "mean", "positional_pool": "mean", "mass": "count"},
    "maxima": {"semantic_pool": "max", "positional_pool": "max", "mass": "score"},
    "sum over heads": {"head_reduce": "sum", "mass": "score"},
    "best head": {"head_reduce": "max", "positional_pool": "weighted", "mass": "score"},
    "prompt": {"summary": "prompt", "mass": "score"},
    "entry positions": {"positions": "entry", "sink": 2},
    "entry positions, adjacent": {"positions": "entry", "rope_layout": "adjacent", "positional_pool": "weighted",
                                  "mass": "score"},
    "window": {"method": "window", "sink": 2},
    "window at entry positions": {"method": "window", "sink": 2, "positions": "entry"},
    "dense": {"method": "dense"},
}


def knobs_for(variant, width):
    """The knobs of a variant; with entry positions, frequencies for RoPE of that width."""
    knobs = {**SMALL, **VARIANTS[variant]}
    if knobs.get("positions") == "entry":
        knobs["rope_frequencies"] = (10000.0 ** (-numpy.arange(0, width, 2) / width)).astype(numpy.float32)
    return knobs


def gqa_arrays(seed=0, batch=2, tokens=45, heads=4, kv=2, width=8, value=6, dtype=numpy.float32):
    """q, k, v."""
    draw = numpy.random.default_rng(seed).standard_normal
    return tuple(draw(shape).astype(dtype) for shape in
                 ((batch, tokens, heads, width), (batch, tokens, kv, width), (batch, tokens, kv, value)))


def mla_arrays(seed=0, batch=2, tokens=45, heads=3, nope=6, rope=4, latent=10, value=5, dtype=numpy.float32):
    """q_nope, q_rope, c, k_rope, w_uk, w_uv."""
    draw = numpy.random.default_rng(seed).standard_normal
    return tuple(draw(shape).astype(dtype) for shape in
                 ((batch, tokens, heads, nope), (batch, tokens, heads, rope), (batch, tokens, latent),
                  (batch, tokens, rope), (heads, nope, latent), (heads, value, latent)))


def difference(one, other):
    """The project's measure of errors: the largest difference over the largest value, at least 0.01."""
    one, other = numpy.asarray(one, numpy.float64), numpy.asarray(other, numpy.float64)
    assert one.shape == other.shape
    if not other.size:
        return 0.0
    return float(numpy.max(numpy.abs(one - other)) / max(float(numpy.max(numpy.abs(other))), 1e-2))


def eval_module(name):
    """A program of eval/ as a module; where it is not there, the tests of the file are skipped."""
    if not (EVAL / f"{name}.py").exists():
        pytest.skip("the scripts of eval/ are not here", allow_module_level=True)
    spec = importlib.util.spec_from_file_location(f"eval_{name}", EVAL / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _smollm2():
    for folder in (os.environ.get("LCA_TEST_DATA"), ROOT / "build" / "test-data", pathlib.Path.home() / ".cache/lca"):
        path = pathlib.Path(folder or "/nowhere") / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if path.exists():
            return path
    return None


@pytest.fixture(scope="session")
def smollm2():
    """The path of the default model; tests that need it are skipped where it is not there."""
    path = _smollm2()
    if path is None:
        pytest.skip("SmolLM2-135M-Instruct.Q4_1.gguf is not there; scripts/test_data.py gets it")
    return path


def backends():
    """Backends of the host that this build has."""
    import lca
    found = []
    for name in ("reference", "cpu"):
        q, k, v = gqa_arrays(batch=1, tokens=3)
        try:
            lca.attention(q, k, v, backend=name)
            found.append(name)
        except RuntimeError:
            pass
    return found
