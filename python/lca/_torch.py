"""The operators as PyTorch knows them: registered with torch.library, with fake kernels and gradients.

`lca::condense` and `lca::attend` and their backward passes serve both forms; what MLA alone has (q_nope, w_uk,
k_nope) is None in GQA. The kernels run on the current stream and take their scratch from torch's allocator.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from lca import _call, _lca

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64"}

_KNOBS = ("str settings, float scale, Tensor? cu_seqlens, Tensor? rope_frequencies, str rope_layout, "
          "str backend")
_CONDENSE_IN = "Tensor? q_nope, Tensor q_rope, Tensor positional, Tensor semantic, Tensor? w_uk"
_ATTEND_IN = ("Tensor? q_nope, Tensor q_rope, Tensor? k_nope, Tensor k_rope, Tensor v, Tensor? rep_k_nope, "
              "Tensor? rep_k_rope, Tensor? rep_v, Tensor? rep_bias")
_library = torch.library.Library("lca", "DEF")
for _schema in (
        f"condense({_CONDENSE_IN}, {_KNOBS}) -> "
        "(Tensor rep_positional, Tensor rep_semantic, Tensor rep_bias, Tensor scores)",
        f"condense_backward(Tensor? grad_positional, Tensor? grad_semantic, Tensor? grad_bias, {_CONDENSE_IN}, "
        f"Tensor rep_positional, Tensor rep_semantic, Tensor rep_bias, Tensor scores, {_KNOBS}, bool[] wanted) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor)",
        f"attend({_ATTEND_IN}, {_KNOBS}) -> (Tensor out, Tensor lse)",
        f"attend_backward(Tensor grad_out, {_ATTEND_IN}, Tensor out, Tensor lse, {_KNOBS}, bool[] wanted) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


# --- tensors ------------------------------------------------------------------------------------------------


def _rows(tensor):
    """The tensor as it is where its last dimension is contiguous, else a copy."""
    if tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 or tensor.numel() == 0:
        return tensor
    return tensor.contiguous()


def _view(tensor):
    if tensor is None:
        return None
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"tensors are float32, bfloat16 or float64, not {str(tensor.dtype).removeprefix('torch.')}")
    return _lca.view_of_memory(tensor, tensor.data_ptr(), dtype, tensor.shape, tensor.stride())


_host_values: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _values(tensor):
    """A small tensor's values as a tuple; those of a GPU are fetched once for each state of the tensor."""
    if tensor is None:
        return None
    if not tensor.is_cuda or tensor.is_inference():
        return tuple(tensor.tolist())
    known = _host_values.get(tensor)
    if known is None or known[0] != tensor._version:
        known = (tensor._version, tuple(tensor.tolist()))
        _host_values[tensor] = known
    return known[1]


def _backend_of(backend, tensor):
    """The backend a tensor's device and type ask for."""
    if backend == "auto":
        return "cuda" if tensor.is_cuda else "reference" if tensor.dtype == torch.float64 else "cpu"
    if (backend == "cuda") != tensor.is_cuda:
        raise ValueError(f"backend {backend} does not take tensors on {tensor.device}")
    return backend


_workspace_bytes = functools.lru_cache(maxsize=4096)(_lca.workspace_bytes)


class _Run:
    """One call: its plan, and where it runs."""

    def __init__(self, mla, dims, knobs, q_rope):
        settings, scale, cu_seqlens, rope_frequencies, rope_layout, backend = knobs
        if cu_seqlens is not None and cu_seqlens.dtype != torch.int32:
            raise ValueError(f"cu_seqlens must be int32, not {str(cu_seqlens.dtype).removeprefix('torch.')}")
        self.device = q_rope.device
        self.cuda = q_rope.is_cuda
        self.plan = _call.plan(
            mla, tuple(dims), settings, scale, _values(rope_frequencies) or (), rope_layout, q_rope.shape[0],
            q_rope.shape[1], _values(cu_seqlens), _backend_of(backend, q_rope), self.device.index or 0)

    def __call__(self, part, *args):
        """Calls a part of the binding; the scratch lives as long as the stream needs it."""
        function = getattr(_lca, part)
        if not self.cuda:
            return function(self.plan, *args)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device).cuda_stream
            scratch = torch.empty(_workspace_bytes(self.plan, part), dtype=torch.uint8, device=self.device)
            return function(self.plan, *args, stream=stream, workspace=scratch.data_ptr())


def _check_devices(first, *others):
    for tensor in others:
        if tensor is not None and tensor.device != first.device:
            raise ValueError(f"tensors are on {first.device} and on {tensor.device}; they must be on one device")


def _bias_dtype(tensor):
    """rep_bias and lse are float32, but doubles where everything is."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


# --- condense -----------------------------------------------------------------------------------------------


def _condense_empty(q_rope, positional, semantic, mla, groups, group):
    """rep_positional, rep_semantic, rep_bias, scores for `groups` representatives."""
    batch, heads = q_rope.shape[0], [] if mla else [positional.shape[2]]
    return (positional.new_empty(batch, groups, *heads, positional.shape[-1]),
            semantic.new_empty(batch, groups, *heads, semantic.shape[-1]),
            semantic.new_empty(batch, groups, *heads, dtype=_bias_dtype(semantic)),
            semantic.new_empty(batch, groups, *heads, group, dtype=torch.float32))


def _condense(q_nope, q_rope, positional, semantic, w_uk, *knobs):
    mla = q_nope is not None
    _call.check_dims(q_nope=(q_nope, "B n H d_n"), q=(q_rope, "B n H d"),
                     k=(positional, "B n d_r" if mla else "B n KV d"),
                     v=(semantic, "B n d_c" if mla else "B n KV d_v"), w_uk=(w_uk, "H d_n d_c"))
    _check_devices(q_rope, q_nope, positional, semantic, w_uk)
    ins = [_rows(tensor) for tensor in (q_nope, q_rope, positional, semantic, w_uk)]
    run = _condense_run(q_nope, q_rope, positional, semantic, knobs)
    out = _condense_empty(q_rope, positional, semantic, mla, run.plan.groups, int(_call.setting(knobs[0], "group")))
    if run.plan.groups:
        run("condense", *map(_view, ins), *map(_view, out))
    return out


def _condense_run(q_nope, q_rope, positional, semantic, knobs):
    shapes = [None if tensor is None else tensor.shape for tensor in (q_nope, q_rope, positional, semantic)]
    return _Run(q_nope is not None, _call.dims_condense(*shapes), knobs, q_rope)


def _condense_fake(q_nope, q_rope, positional, semantic, w_uk, settings, scale, cu_seqlens, *_):
    if cu_seqlens is None or _call.setting(settings, "method") != "lca":
        groups = _call.groups_of(settings, q_rope.shape[1])
    else:
        groups = torch.library.get_ctx().new_dynamic_size()
    return _condense_empty(q_rope, positional, semantic, q_nope is not None, groups,
                           int(_call.setting(settings, "group")))


def _empty_grads(inputs, wanted):
    """A tensor for each wanted gradient, in the type of its input; others have no values."""
    return [tensor.new_empty(tensor.shape) if want else inputs[1].new_empty(0)
            for tensor, want in zip(inputs, wanted)]


def _condense_backward(grad_positional, grad_semantic, grad_bias, q_nope, q_rope, positional, semantic, w_uk,
                       rep_positional, rep_semantic, rep_bias, scores, *rest):
    knobs, wanted = rest[:-1], rest[-1]
    inputs = (q_nope, q_rope, positional, semantic, w_uk)
    grads = _empty_grads(inputs, wanted)
    run = _condense_run(q_nope, q_rope, positional, semantic, knobs)
    if not run.plan.groups:
        return tuple(grad.zero_() for grad in grads)
    if _call.setting(knobs[0], "mass") != "score":
        grad_bias = None
    elif grad_bias is None:
        grad_bias = torch.zeros_like(rep_bias)
    outs = [_rows(torch.zeros_like(rep) if grad is None else grad)
            for grad, rep in ((grad_positional, rep_positional), (grad_semantic, rep_semantic))]
    views = [_view(_rows(tensor)) for tensor in inputs]
    reps = [*map(_view, (rep_positional, rep_semantic))]
    outs = [*map(_view, outs)]
    # w_uk is one for the batch: calls for each entry of it would overwrite each other's gradient.
    add = wanted[4] and not _lca.packs(run.plan, [*views[:4], *reps, *outs])
    if add:
        for grad in grads:
            grad.zero_()
    run("condense_backward", *views, *reps, _view(rep_bias), _view(scores),
        [*outs, _view(None if grad_bias is None else grad_bias.contiguous())],
        [_view(grad) if want else None for grad, want in zip(grads, wanted)], add)
    return tuple(grads)


def _condense_backward_fake(grad_positional, grad_semantic, grad_bias, q_nope, q_rope, positional, semantic, w_uk,
                            *rest):
    return tuple(_empty_grads((q_nope, q_rope, positional, semantic, w_uk), rest[-1]))


def _condense_setup(ctx, inputs, output):
    tensors, ctx.knobs = inputs[:5], inputs[5:]
    cu_seqlens, rope_frequencies = ctx.knobs[2:4]
    ctx.save_for_backward(*tensors, *output, cu_seqlens, rope_frequencies)
    ctx.knobs = (*ctx.knobs[:2], None, None, *ctx.knobs[4:])
    ctx.set_materialize_grads(False)


def _condense_autograd(ctx, grad_positional, grad_semantic, grad_bias, _):
    *tensors, cu_seqlens, rope_frequencies = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:5])
    knobs = (*ctx.knobs[:2], cu_seqlens, rope_frequencies, *ctx.knobs[4:])
    grads = torch.ops.lca.condense_backward(grad_positional, grad_semantic, grad_bias, *tensors, *knobs, wanted)
    return (*(grad if want else None for grad, want in zip(grads, wanted)), *[None] * len(knobs))


# --- attend -------------------------------------------------------------------------------------------------


def _attend_empty(q_rope, v):
    out = q_rope.new_empty(*q_rope.shape[:3], v.shape[-1])
    return out, q_rope.new_empty(q_rope.shape[:3], dtype=_bias_dtype(q_rope))


def _attend_run(inputs, knobs):
    q_nope, q_rope, _, k_rope, v = inputs[:5]
    dims = _call.dims_attend(None if q_nope is None else q_nope.shape, q_rope.shape, k_rope.shape, v.shape)
    return _Run(q_nope is not None, dims, knobs, q_rope)


def _attend_views(run, inputs):
    """Views of the eight tensors, and of the bias; those of representatives are None where there are none."""
    tensors = [_rows(tensor) for tensor in inputs[:8]]
    bias = inputs[8]
    if not run.plan.groups:
        tensors[5:], bias = [None] * 3, None
    elif tensors[6] is None:
        raise ValueError(f"the call has {run.plan.groups} representatives: it needs those that condense made")
    if bias is not None:
        bias = bias.contiguous()
        if bias.dtype != _bias_dtype(inputs[1]):
            bias = bias.to(_bias_dtype(inputs[1]))
    return [_view(tensor) for tensor in tensors], _view(bias)


def _attend(*arguments):
    inputs, knobs = arguments[:9], arguments[9:]
    q_nope, q_rope, k_nope, k_rope, v = inputs[:5]
    mla = q_nope is not None
    _call.check_dims(q_nope=(q_nope, "B n H d_n"), q=(q_rope, "B n H d"), k_nope=(k_nope, "B n H d_n"),
                     k=(k_rope, "B n d_r" if mla else "B n KV d"), v=(v, "B n H d_v" if mla else "B n KV d_v"))
    _check_devices(q_rope, *inputs)
    run = _attend_run(inputs, knobs)
    out, lse = _attend_empty(q_rope, v)
    views, bias = _attend_views(run, inputs)
    run("attend", views, bias, _view(out), _view(lse))
    return out, lse


def _attend_fake(q_nope, q_rope, k_nope, k_rope, v, *_):
    return _attend_empty(q_rope, v)


def _attend_backward(grad_out, *arguments):
    inputs, (out, lse), knobs, wanted = arguments[:9], arguments[9:11], arguments[11:-1], arguments[-1]
    run = _attend_run(inputs, knobs)
    grads = _empty_grads(inputs, wanted)
    views, bias = _attend_views(run, inputs)
    into = [_view(grad) if want else None for grad, want in zip(grads, wanted)]
    if not run.plan.groups:
        for grad in grads[5:]:
            grad.zero_()
        into[5:] = [None] * 4
    grad_out = _rows(grad_out)
    run("attend_backward", views, bias, _view(out), _view(lse), _view(grad_out), into[:8], into[8])
    return tuple(grads)


def _attend_backward_fake(grad_out, *arguments):
    return tuple(_empty_grads(arguments[:9], arguments[-1]))


def _attend_setup(ctx, inputs, output):
    cu_seqlens, rope_frequencies = inputs[11:13]
    ctx.save_for_backward(*inputs[:9], *output, cu_seqlens, rope_frequencies)
    ctx.knobs = (*inputs[9:11], None, None, *inputs[13:])
    ctx.set_materialize_grads(False)


def _attend_autograd(ctx, grad_out, _):
    if grad_out is None:
        return (None,) * 15
    *tensors, cu_seqlens, rope_frequencies = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:9])
    knobs = (*ctx.knobs[:2], cu_seqlens, rope_frequencies, *ctx.knobs[4:])
    grads = torch.ops.lca.attend_backward(grad_out, *tensors, *knobs, wanted)
    return (*(grad if want else None for grad, want in zip(grads, wanted)), *[None] * len(knobs))


for _name, _kernel, _fake in (("condense", _condense, _condense_fake),
                              ("condense_backward", _condense_backward, _condense_backward_fake),
                              ("attend", _attend, _attend_fake),
                              ("attend_backward", _attend_backward, _attend_backward_fake)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
    torch.library.register_fake(f"lca::{_name}", _fake, lib=_library)
torch.library.register_autograd("lca::condense", _condense_autograd, setup_context=_condense_setup, lib=_library)
torch.library.register_autograd("lca::attend", _attend_autograd, setup_context=_attend_setup, lib=_library)


# --- what lca.operators calls ---------------------------------------------------------------------------------


def _host_tensor(values, dtype):
    return values if values is None or isinstance(values, Tensor) else torch.as_tensor(values, dtype=dtype)


def _knobs(call):
    return (call.settings, call.scale, _host_tensor(call.cu_seqlens, torch.int32),
            _host_tensor(call.rope_frequencies, torch.float32), call.rope_layout, call.backend)


def _autocast(*tensors):
    """The tensors in the type that autocast asks for, where it is on."""
    device = tensors[1].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors]


def condense(q_nope, q_rope, positional, semantic, w_uk, call):
    q_nope, q_rope, positional, semantic, w_uk = _autocast(q_nope, q_rope, positional, semantic, w_uk)
    return torch.ops.lca.condense(q_nope, q_rope, positional, semantic, w_uk, *_knobs(call))[:3]


def attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias, call):
    tensors = _autocast(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v)
    out, lse = torch.ops.lca.attend(*tensors, rep_bias, *_knobs(call))
    return out, lse.detach()


def up_project(latents, weight):
    """Keys or values of all heads from latents: [B,n,d_c] × [H,d,d_c] → [B,n,H,d]."""
    return torch.nn.functional.linear(latents, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])


def as_factors(*tensors):
    return tensors
