"""Attention on a condensed cache as an operator, whole and in its two halves.

All functions take numpy arrays (or anything in host memory with ``__dlpack__``) and torch tensors; with torch
they are differentiable in every tensor. B batch, n tokens, H query heads, KV key/value heads, m representatives.
"""

from __future__ import annotations

import sys
from typing import Any, Unpack

import numpy

from lca import _call
from lca._call import Backend, HeadReduce, Knobs, Mass, Method, Pool, Positions, RopeLayout, Summary

_torch: Any = None  # lca._torch, once torch is there


def _torch_for(array):
    """lca._torch where the array is a tensor of torch's, else None."""
    global _torch
    if isinstance(array, numpy.ndarray):
        return None
    if _torch is None and sys.modules.get("torch") is not None:
        from lca import _torch as loaded
        _torch = loaded
    return _torch if _torch is not None and isinstance(array, _torch.Tensor) else None


def attention(q, k, v, *, method: Method = "lca", group: int = 16, window: int = 1024, sink: int = 0,
              summary_queries: int = 16, summary: Summary = "streaming", head_reduce: HeadReduce = "mean",
              semantic_pool: Pool = "weighted", positional_pool: Pool = "select", mass: Mass = "none",
              positions: Positions = "token", rope_frequencies=None, rope_layout: RopeLayout = "half",
              scale: float | None = None, cu_seqlens=None, backend: Backend = "auto", return_lse: bool = False):
    """Causal attention of q [B,n,H,d] to k [B,n,KV,d] and v [B,n,KV,d_v], RoPE already applied.

    Returns out [B,n,H,d_v] in the type of q; with `return_lse` the pair (out, lse [B,n,H] float32, without
    gradient). The knobs are those of a settings file, their defaults preset ``training``. `cu_seqlens` int32
    [D+1] packs D documents into a batch of 1; `rope_frequencies` [d/2] goes with positions="entry".
    """
    knobs = {"method": method, "group": group, "window": window, "sink": sink, "summary_queries": summary_queries,
             "summary": summary, "head_reduce": head_reduce, "semantic_pool": semantic_pool,
             "positional_pool": positional_pool, "mass": mass, "positions": positions,
             "rope_frequencies": rope_frequencies, "rope_layout": rope_layout, "scale": scale,
             "cu_seqlens": cu_seqlens, "backend": backend}
    out, lse = _kind(q).attention(q, k, v, _call.Call(knobs))
    return (out, lse) if return_lse else out


def mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, *, method: Method = "lca", group: int = 16,
                  window: int = 1024, sink: int = 0, summary_queries: int = 16, summary: Summary = "streaming",
                  head_reduce: HeadReduce = "mean", semantic_pool: Pool = "weighted",
                  positional_pool: Pool = "select", mass: Mass = "none", positions: Positions = "token",
                  rope_frequencies=None, rope_layout: RopeLayout = "half", scale: float | None = None,
                  cu_seqlens=None, backend: Backend = "auto", return_lse: bool = False, k_nope=None, v=None):
    """MLA: queries q_nope [B,n,H,d_n] and q_rope [B,n,H,d_r], latents c [B,n,d_c] after their norm, k_rope
    [B,n,d_r] after RoPE, up-projections w_uk [H,d_n,d_c] and w_uv [H,d_v,d_c].

    Returns out [B,n,H,d_v], with `return_lse` the pair (out, lse), as `attention` does. Keys and values of
    tokens and of representatives are made from latents by plain matrix products; those of tokens may be given
    instead, as k_nope [B,n,H,d_n] and v [B,n,H,d_v], where a layer has them already.
    """
    knobs = {"method": method, "group": group, "window": window, "sink": sink, "summary_queries": summary_queries,
             "summary": summary, "head_reduce": head_reduce, "semantic_pool": semantic_pool,
             "positional_pool": positional_pool, "mass": mass, "positions": positions,
             "rope_frequencies": rope_frequencies, "rope_layout": rope_layout, "scale": scale,
             "cu_seqlens": cu_seqlens, "backend": backend}
    out, lse = _kind(q_nope).mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v, _call.Call(knobs))
    return (out, lse) if return_lse else out


def condense(q, k, v, **knobs: Unpack[Knobs]):
    """Condenses every group that has left the window: rep_k [B,m,KV,d], rep_v [B,m,KV,d_v], rep_bias [B,m,KV].

    rep_bias is float32: 0, log g or b_j, as `mass` says. With packed documents m is the sum over them.
    """
    return _kind(q).condense(None, q, k, v, None, _call.Call(knobs))


def mla_condense(q_nope, q_rope, c, k_rope, w_uk, **knobs: Unpack[Knobs]):
    """The same for MLA: rep_c [B,m,d_c], rep_k_rope [B,m,d_r], rep_bias [B,m]."""
    rep_k_rope, rep_c, rep_bias = _kind(q_nope).condense(q_nope, q_rope, k_rope, c, w_uk, _call.Call(knobs))
    return rep_c, rep_k_rope, rep_bias


def attend(q, k, v, rep_k, rep_v, rep_bias, *, return_lse: bool = False, **knobs: Unpack[Knobs]):
    """Attends to the sink, the representatives and the window each query sees; out [B,n,H,d_v].

    The representatives are those of `condense` with the same knobs; rep_bias may be None for 0, and all three
    None where there are none (method dense and window).
    """
    out, lse = _kind(q).attend(None, q, None, k, v, None, rep_k, rep_v, rep_bias, _call.Call(knobs))
    return (out, lse) if return_lse else out


def mla_attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias, *,
               return_lse: bool = False, **knobs: Unpack[Knobs]):
    """The same with keys and values per head: k_nope [B,n,H,d_n], k_rope [B,n,d_r], v [B,n,H,d_v], and of the
    representatives rep_k_nope [B,m,H,d_n], rep_k_rope [B,m,d_r], rep_v [B,m,H,d_v], rep_bias [B,m]."""
    out, lse = _kind(q_nope).attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias,
                                      _call.Call(knobs))
    return (out, lse) if return_lse else out


def _kind(array):
    """The module that has the operators for arrays of this kind."""
    from lca import _numpy
    return _torch_for(array) or _numpy


def set_threads(threads: int) -> None:
    """How many threads operators on the CPU use; 0: one per core this process may use."""
    from lca import _lca
    _lca.set_threads(threads)
