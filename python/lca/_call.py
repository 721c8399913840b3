"""What calls of the operators have in common, with numpy and with torch."""

from __future__ import annotations

import functools
import math
from typing import Literal, TypedDict

from lca import _lca

Method = Literal["lca", "dense", "window"]
Summary = Literal["streaming", "prompt"]
HeadReduce = Literal["mean", "sum", "max"]
Pool = Literal["weighted", "mean", "max", "select"]
Mass = Literal["none", "count", "score"]
Positions = Literal["token", "entry"]
RopeLayout = Literal["half", "adjacent"]
Backend = Literal["auto", "reference", "cpu", "cuda"]


class Knobs(TypedDict, total=False):
    """Keyword arguments of every operator, with the defaults of preset ``training``."""

    method: Method
    group: int
    window: int
    sink: int
    summary_queries: int
    summary: Summary
    head_reduce: HeadReduce
    semantic_pool: Pool
    positional_pool: Pool
    mass: Mass
    positions: Positions
    rope_frequencies: object
    rope_layout: RopeLayout
    scale: float | None
    cu_seqlens: object
    backend: Backend


# The settings of a layer; the rest of Knobs says how and where a call runs.
SETTINGS = {
    "method": "lca", "group": 16, "window": 1024, "sink": 0, "summary_queries": 16,
    "summary": "streaming", "head_reduce": "mean", "semantic_pool": "weighted",
    "positional_pool": "select", "mass": "none", "positions": "token",
}
OTHERS = {"rope_frequencies": None, "rope_layout": "half", "scale": None, "cu_seqlens": None,
          "backend": "auto"}


class Call:
    """Knobs of one call, in the form that the registered operators take."""

    __slots__ = ("settings", "scale", "cu_seqlens", "rope_frequencies", "rope_layout", "backend", "mass", "method")

    def __init__(self, knobs):
        words = []
        for name, default in SETTINGS.items():
            words.append(f"{name}={knobs.get(name, default)}")
        for name in knobs:
            if name not in SETTINGS and name not in OTHERS:
                raise TypeError(f"unknown knob {name}; there are {', '.join([*SETTINGS, *OTHERS])}")
        self.settings = " ".join(words)
        self.method = knobs.get("method", "lca")
        self.mass = knobs.get("mass", "none")
        self.scale = scale_number(knobs.get("scale"))
        self.cu_seqlens = knobs.get("cu_seqlens")
        self.rope_frequencies = knobs.get("rope_frequencies")
        self.rope_layout = knobs.get("rope_layout", "half")
        self.backend = knobs.get("backend", "auto")
        entry = knobs.get("positions", "token") == "entry"
        if entry and self.rope_frequencies is None:
            raise ValueError("positions=\"entry\" needs rope_frequencies, one for each pair of channels")
        if not entry and self.rope_frequencies is not None:
            raise ValueError("rope_frequencies are for positions=\"entry\"; leave them out")


def scale_number(scale):
    """The scale as the plan takes it: 0 stands for the default."""
    if scale is None:
        return 0.0
    if not (isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < math.inf):
        raise ValueError(f"scale must be a finite number above 0, not {scale!r}")
    return float(scale)


def setting(settings, name):
    """One field out of "group=16 window=1024 …"."""
    for word in settings.split(" "):
        key, _, value = word.partition("=")
        if key == name:
            return value
    raise KeyError(name)


def groups_of(settings, tokens):
    """m(n) of the mechanism; `tokens` may be symbolic."""
    if setting(settings, "method") != "lca":
        return 0
    group, window, sink = (int(setting(settings, name)) for name in ("group", "window", "sink"))
    if tokens < sink + window + group:
        return 0
    return (tokens - window - sink) // group


def dims_condense(q_nope, q_rope, positional, semantic):
    """heads, kv_heads, d_nope, d_rope, d_latent, d_value from shapes; d_value of MLA does not matter here."""
    if q_nope is None:
        return (q_rope[2], positional[2], 0, q_rope[3], 0, semantic[-1])
    return (q_rope[2], 1, q_nope[3], q_rope[3], semantic[-1], q_nope[3])


def dims_attend(q_nope, q_rope, k_rope, value):
    """The same for attending, where d_latent of MLA does not matter."""
    if q_nope is None:
        return (q_rope[2], k_rope[2], 0, q_rope[3], 0, value[-1])
    return (q_rope[2], 1, q_nope[3], q_rope[3], 4 * q_nope[3], value[-1])


def check_dims(**tensors):
    """Raises ValueError for the first tensor with another number of dimensions: name=(tensor, "B n H d")."""
    for name, (tensor, names) in tensors.items():
        if tensor is not None and len(tensor.shape) != len(names.split()):
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it takes [{', '.join(names.split())}]")


@functools.lru_cache(maxsize=4096)
def plan(mla, dims, settings, scale, frequencies, rope_layout, batch, tokens, starts, backend, device=0,
         portable=False):
    """The plan of a call; arguments are hashable."""
    return _lca.plan(mla, list(dims), settings, scale, list(frequencies), rope_layout, batch, tokens,
                     None if starts is None else list(starts), backend, device, portable)
