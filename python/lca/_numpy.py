"""The operators on numpy arrays, and on anything in host memory that DLPack hands over. Forward only."""

from __future__ import annotations

import numpy

from lca import _call, _lca


def _empty(shape, dtype):
    """A new array of one of the library's types, and its view."""
    if dtype == "bf16":
        array = _lca.empty_bfloat16([int(dim) for dim in shape])
    else:
        array = numpy.empty(shape, numpy.float64 if dtype == "f64" else numpy.float32)
    return array, _lca.view_of_array(array)


def _wide(view):
    """The type of rep_bias and lse: float32, but doubles where everything is."""
    return "f64" if view.dtype == "f64" else "f32"


def _view(array):
    """The view of an array; copied only where its last dimension is not contiguous."""
    if array is None:
        return None
    if isinstance(array, numpy.ndarray) and array.ndim and array.shape[-1] > 1 \
            and array.strides[-1] != array.itemsize:
        array = numpy.ascontiguousarray(array)
    return _lca.view_of_array(array)


def _ints(array):
    return None if array is None else tuple(int(value) for value in numpy.asarray(array).tolist())


def _floats(array):
    return () if array is None else tuple(float(value) for value in numpy.asarray(array).tolist())


def _backend(backend, views):
    if backend != "auto":
        return backend
    return "reference" if any(view is not None and view.dtype == "f64" for view in views) else "cpu"


def _plan(call, mla, dims, q_rope, views):
    return _lca.plan(mla, dims, call.settings, call.scale, _floats(call.rope_frequencies), call.rope_layout,
                     q_rope.shape[0], q_rope.shape[1], _ints(call.cu_seqlens), _backend(call.backend, views))


def condense(q_nope, q_rope, positional, semantic, w_uk, call):
    """rep_positional, rep_semantic, rep_bias."""
    views = [_view(array) for array in (q_nope, q_rope, positional, semantic, w_uk)]
    q_nope, q_rope, positional, semantic, w_uk = views
    mla = q_nope is not None
    _call.check_dims(q_nope=(q_nope, "B n H d_n"), q=(q_rope, "B n H d"),
                     k=(positional, "B n d_r" if mla else "B n KV d"),
                     v=(semantic, "B n d_c" if mla else "B n KV d_v"))
    dims = _call.dims_condense(q_nope.shape if mla else None, q_rope.shape, positional.shape, semantic.shape)
    plan = _plan(call, mla, dims, q_rope, views)
    batch, groups, heads = q_rope.shape[0], plan.groups, [] if mla else [positional.shape[2]]
    rep_positional, positional_view = _empty([batch, groups, *heads, positional.shape[-1]], positional.dtype)
    rep_semantic, semantic_view = _empty([batch, groups, *heads, semantic.shape[-1]], semantic.dtype)
    bias, bias_view = _empty([batch, groups, *heads], _wide(semantic))
    if groups:
        _lca.condense(plan, views, (positional_view, semantic_view, bias_view, None))
    return rep_positional, rep_semantic, bias


def attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias, call):
    """out, lse."""
    views = [_view(array) for array in (q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v)]
    mla = q_nope is not None
    q_nope, q_rope, k_rope, v = views[0], views[1], views[3], views[4]
    _call.check_dims(q_nope=(q_nope, "B n H d_n"), q=(q_rope, "B n H d"),
                     k=(k_rope, "B n d_r" if mla else "B n KV d"), v=(v, "B n H d_v" if mla else "B n KV d_v"))
    dims = _call.dims_attend(q_nope.shape if mla else None, q_rope.shape, k_rope.shape, v.shape)
    plan = _plan(call, mla, dims, q_rope, views)
    if not plan.groups:
        views[5:], rep_bias = [None] * 3, None
    shape = [*q_rope.shape[:3], v.shape[-1]]
    out, out_view = _empty(shape, q_rope.dtype)
    lse, lse_view = _empty(shape[:3], _wide(q_rope))
    if rep_bias is not None:
        kind = numpy.float64 if _wide(q_rope) == "f64" else numpy.float32
        rep_bias = _lca.view_of_array(numpy.ascontiguousarray(rep_bias, kind))
    _lca.attend(plan, (*views, rep_bias), out_view, lse_view)
    return out, lse


def attention(q, k, v, call):
    """out, lse."""
    reps = condense(None, q, k, v, None, call) if call.method == "lca" else (None,) * 3
    return attend(None, q, None, k, v, None, reps[0], reps[1], None if call.mass == "none" else reps[2], call)


def mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v, call):
    """out, lse; k_nope and v of tokens are made where they are not given."""
    q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v = as_factors(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v)
    k_nope = up_project(c, w_uk) if k_nope is None else k_nope
    v = up_project(c, w_uv) if v is None else v
    rep_k_nope = rep_k_rope = rep_v = rep_bias = None
    if call.method == "lca":
        rep_k_rope, rep_c, rep_bias = condense(q_nope, q_rope, k_rope, c, w_uk, call)
        rep_k_nope, rep_v = up_project(rep_c, w_uk), up_project(rep_c, w_uv)
    return attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v,
                  None if call.mass == "none" else rep_bias, call)


def up_project(latents, weight):
    """Keys or values of all heads from latents: [B,n,d_c] × [H,d,d_c] → [B,n,H,d]."""
    latents, weight = numpy.asarray(latents), numpy.asarray(weight)
    heads, width, rank = weight.shape
    product = latents.reshape(-1, rank) @ weight.reshape(heads * width, rank).T
    return product.reshape(*latents.shape[:2], heads, width)


def as_factors(*arrays):
    """Arrays that numpy can multiply: with a bfloat16 among them all become float32."""
    views = [None if array is None else _lca.view_of_array(array) for array in arrays]
    if any(view is not None and view.dtype == "bf16" for view in views):
        return [None if view is None else _lca.to_float32(view) for view in views]
    return arrays
