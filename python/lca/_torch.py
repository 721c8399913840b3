"""The operators as PyTorch knows them: registered with torch.library, with fake kernels and gradients.

`lca::condense` and `lca::attend` are the halves, `lca::attention` is both in one operator; each has a backward
operator. They serve both forms; what MLA alone has (q_nope, k_nope, w_uk, w_uv) is None in GQA. The kernels run on
the current stream and take their scratch from torch's allocator.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from lca import _call, _lca
from lca._registration import empty_grads, register

_lca.torch_attach(Tensor)

_CONDENSE_IN = "Tensor? q_nope, Tensor q_rope, Tensor positional, Tensor semantic, Tensor? w_uk"
_CONDENSE_OUT = "Tensor rep_positional, Tensor rep_semantic, Tensor rep_bias, Tensor scores"
_ATTEND_IN = ("Tensor? q_nope, Tensor q_rope, Tensor? k_nope, Tensor k_rope, Tensor v, Tensor? rep_k_nope, "
              "Tensor? rep_k_rope, Tensor? rep_v, Tensor? rep_bias")
_ATTENTION_IN = ("Tensor? q_nope, Tensor q_rope, Tensor positional, Tensor semantic, Tensor? k_nope, Tensor? v, "
                 "Tensor? w_uk, Tensor? w_uv")
_ATTENTION_OUT = f"Tensor out, Tensor lse, {_CONDENSE_OUT}, Tensor rep_k_nope, Tensor rep_v"


# --- calls ----------------------------------------------------------------------------------------------------

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


def _plan(q_nope, q_rope, positional, semantic, value, knobs):
    """The plan of a call with these tensors; a half of MLA does not see one of the last two."""
    settings, scale, cu_seqlens, rope_frequencies, rope_layout, backend = knobs
    if cu_seqlens is not None and cu_seqlens.dtype != torch.int32:
        raise ValueError(f"cu_seqlens must be int32, not {str(cu_seqlens.dtype).removeprefix('torch.')}")
    return _lca.plan_of(q_nope, q_rope, positional, semantic, value, settings, scale, _values(cu_seqlens),
                        _values(rope_frequencies) or (), rope_layout, backend)


def _bias_dtype(tensor):
    """rep_bias and lse are float32, but doubles where everything is."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _zero(*grads):
    for grad in grads:
        if grad is not None:
            grad.zero_()


# --- condense -------------------------------------------------------------------------------------------------


def _condense_empty(q_rope, positional, semantic, mla, groups, group):
    """rep_positional, rep_semantic, rep_bias, scores for `groups` representatives."""
    shape = (q_rope.shape[0], groups) if mla else (q_rope.shape[0], groups, positional.shape[2])
    return (positional.new_empty((*shape, positional.shape[-1])), semantic.new_empty((*shape, semantic.shape[-1])),
            semantic.new_empty(shape, dtype=_bias_dtype(semantic)),
            semantic.new_empty((*shape, group), dtype=torch.float32))


def _condense_plan(q_nope, q_rope, positional, semantic, knobs):
    return _plan(q_nope, q_rope, positional, semantic, semantic if q_nope is None else None, knobs)


def _condense(q_nope, q_rope, positional, semantic, w_uk, *knobs):
    plan = _condense_plan(q_nope, q_rope, positional, semantic, knobs)
    out = _condense_empty(q_rope, positional, semantic, q_nope is not None, plan.groups, plan.group)
    if plan.groups:
        _lca.condense(plan, (q_nope, q_rope, positional, semantic, w_uk), out)
    return out


def _fake_groups(q_rope, settings, cu_seqlens):
    """Representatives of a call; with packed documents only their values tell."""
    if cu_seqlens is None or _call.setting(settings, "method") != "lca":
        return _call.groups_of(settings, q_rope.shape[1])
    return torch.library.get_ctx().new_dynamic_size()


def _condense_fake(q_nope, q_rope, positional, semantic, w_uk, settings, scale, cu_seqlens, *_):
    return _condense_empty(q_rope, positional, semantic, q_nope is not None, _fake_groups(q_rope, settings, cu_seqlens),
                           int(_call.setting(settings, "group")))


def _condense_backward(grad_positional, grad_semantic, grad_bias, *arguments):
    inputs, outputs, knobs, wanted = arguments[:5], arguments[5:9], arguments[9:-1], arguments[-1]
    grads = empty_grads(inputs, wanted)
    plan = _condense_plan(*inputs[:4], knobs)
    if not plan.groups:
        _zero(*grads)
        return grads
    if not plan.has_bias_grad:
        grad_bias = None
    elif grad_bias is None:
        grad_bias = torch.zeros_like(outputs[2])
    else:
        grad_bias = grad_bias.contiguous()
    given = [torch.zeros_like(rep) if grad is None else grad
             for grad, rep in zip((grad_positional, grad_semantic), outputs)]
    _lca.condense_backward(plan, inputs, outputs, (*given, grad_bias), grads, False)
    return grads


# --- attend ---------------------------------------------------------------------------------------------------


def _attend_empty(q_rope, v):
    shape = q_rope.shape[:3]
    return q_rope.new_empty((*shape, v.shape[-1])), q_rope.new_empty(shape, dtype=_bias_dtype(q_rope))


def _attend_plan(inputs, knobs):
    return _plan(*inputs[:2], inputs[3], None, inputs[4], knobs)


def _attend_inputs(plan, inputs):
    """The nine tensors; those of representatives are None where there are none."""
    if not plan.groups:
        return (*inputs[:5], None, None, None, None)
    if inputs[6] is None:
        raise ValueError(f"the call has {plan.groups} representatives: it needs those that condense made")
    bias = inputs[8]
    return inputs if bias is None else (*inputs[:8], bias.to(_bias_dtype(inputs[1])).contiguous())


def _attend(*arguments):
    inputs, knobs = arguments[:9], arguments[9:]
    plan = _attend_plan(inputs, knobs)
    out, lse = _attend_empty(inputs[1], inputs[4])
    _lca.attend(plan, _attend_inputs(plan, inputs), out, lse)
    return out, lse


def _attend_fake(q_nope, q_rope, k_nope, k_rope, v, *_):
    return _attend_empty(q_rope, v)


def _attend_backward(grad_out, *arguments):
    inputs, (out, lse), knobs, wanted = arguments[:9], arguments[9:11], arguments[11:-1], arguments[-1]
    plan = _attend_plan(inputs, knobs)
    grads = empty_grads(inputs, wanted)
    into = grads
    if not plan.groups:
        _zero(*grads[5:])
        into = grads[:5]
    _lca.attend_backward(plan, _attend_inputs(plan, inputs), out, lse, grad_out, into)
    return grads


# --- both in one operator -------------------------------------------------------------------------------------


def _attention_empty(inputs, groups, group):
    q_nope, q_rope, positional, semantic, k_nope, v = inputs[:6]
    mla = q_nope is not None
    rep_k_nope = rep_v = (0,)
    if mla:
        rep_k_nope, rep_v = ((x.shape[0], groups, *x.shape[2:]) for x in (k_nope, v))
    return (*_attend_empty(q_rope, v if mla else semantic),
            *_condense_empty(q_rope, positional, semantic, mla, groups, group),
            q_rope.new_empty(rep_k_nope), q_rope.new_empty(rep_v))


def _attention_plan(inputs, knobs):
    q_nope, q_rope, positional, semantic, _, v = inputs[:6]
    return _plan(q_nope, q_rope, positional, semantic, semantic if q_nope is None else v, knobs)


def _attention_reads(plan, inputs, outputs):
    """What attending reads: inputs, and the representatives that condensing made."""
    q_nope, q_rope, positional, semantic, k_nope, v = inputs[:6]
    rep_positional, rep_semantic, rep_bias, _, rep_k_nope, rep_v = outputs[2:]
    reps = (None,) * 4
    if plan.groups:
        reps = (*((None, rep_positional, rep_semantic) if q_nope is None else (rep_k_nope, rep_positional, rep_v)),
                rep_bias if plan.has_bias else None)
    return q_nope, q_rope, k_nope, positional, semantic if q_nope is None else v, *reps


def _attention(*arguments):
    inputs, knobs = arguments[:8], arguments[8:]
    plan = _attention_plan(inputs, knobs)
    outputs = _attention_empty(inputs, plan.groups, plan.group)
    if plan.groups:
        w_uk, w_uv = inputs[6:]
        _lca.condense(plan, (*inputs[:4], w_uk), outputs[2:6])
        if w_uk is not None:
            latents = _matrix(outputs[3])
            torch.mm(latents, _matrix(w_uk).t(), out=_wide(outputs[6]))
            torch.mm(latents, _matrix(w_uv).t(), out=_wide(outputs[7]))
    _lca.attend(plan, _attention_reads(plan, inputs, outputs), outputs[0], outputs[1])
    return outputs


def _matrix(tensor):
    """[…, d] as rows [·, d]."""
    return tensor.reshape(-1, tensor.shape[-1])


def _wide(tensor):
    """[B, m, H, d] as rows [B·m, H·d]."""
    return tensor.view(-1, tensor.shape[2] * tensor.shape[3])


def _attention_fake(*arguments):
    inputs, (settings, _, cu_seqlens) = arguments[:8], arguments[8:11]
    groups = _fake_groups(inputs[1], settings, cu_seqlens)
    return _attention_empty(inputs, groups, int(_call.setting(settings, "group")))


def _attention_backward(grad_out, *arguments):
    inputs, outputs, knobs, wanted = arguments[:8], arguments[8:16], arguments[16:-1], arguments[-1]
    plan = _attention_plan(inputs, knobs)
    grads = empty_grads(inputs, wanted)
    q_nope, q_rope, positional, semantic, k_nope, v, w_uk, w_uv = grads
    mla = inputs[0] is not None
    reads = _attention_reads(plan, inputs, outputs)
    reps = [None if x is None else x.new_empty(x.shape) for x in reads[5:8]]
    bias = outputs[4].new_empty(outputs[4].shape) if plan.groups and plan.has_bias_grad else None
    _lca.attend_backward(plan, reads, outputs[0], outputs[1], grad_out,
                         (q_nope, q_rope, k_nope, positional, v if mla else semantic, *reps, bias))
    if not plan.groups:
        if mla:
            _zero(semantic, w_uk, w_uv)
        return grads
    rep_semantic = reps[2]
    if mla:
        keys, values = _wide(reps[0]), _wide(reps[2])
        rep_semantic = torch.mm(keys, _matrix(inputs[6]))
        rep_semantic.addmm_(values, _matrix(inputs[7]))
        rep_semantic = rep_semantic.view(outputs[3].shape)
        latents = _matrix(outputs[3])
        if w_uk is not None:
            torch.mm(keys.t(), latents, out=_matrix(w_uk))
        if w_uv is not None:
            torch.mm(values.t(), latents, out=_matrix(w_uv))
        _zero(semantic)  # attending reads keys and values of tokens, not their latents
    # Into the gradients that attending has written: no sums of whole tensors are left to autograd.
    condensed = (q_nope, q_rope, positional, semantic, w_uk)
    if any(grad is not None for grad in condensed):
        _lca.condense_backward(plan, (*inputs[:4], inputs[6]), outputs[2:6], (reps[1], rep_semantic, bias), condensed,
                               True)
    return grads


register("condense", _CONDENSE_IN, _CONDENSE_OUT, "Tensor? grad_positional, Tensor? grad_semantic, Tensor? grad_bias",
          _condense, _condense_backward, _condense_fake)
register("attend", _ATTEND_IN, "Tensor out, Tensor lse", "Tensor grad_out", _attend, _attend_backward, _attend_fake)
register("attention", _ATTENTION_IN, _ATTENTION_OUT, "Tensor grad_out", _attention, _attention_backward,
          _attention_fake)


# --- what lca.operators calls -----------------------------------------------------------------------------------


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
    tensors = _autocast(q_nope, q_rope, positional, semantic, w_uk)
    return torch.ops.lca.condense.default(*tensors, *_knobs(call))[:3]


def attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias, call):
    tensors = _autocast(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v)
    return torch.ops.lca.attend.default(*tensors, rep_bias, *_knobs(call))


def attention(q, k, v, call):
    """out, lse."""
    if call.method != "lca":
        return attend(None, q, None, k, v, None, None, None, None, call)
    _, q, k, v = _autocast(None, q, k, v)
    return torch.ops.lca.attention.default(None, q, k, v, None, None, None, None, *_knobs(call))[:2]


def mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v, call):
    """out, lse; k_nope and v of tokens are made where they are not given."""
    tensors = _autocast(q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v)
    q_nope, q_rope, c, k_rope, w_uk, w_uv, k_nope, v = tensors
    k_nope = up_project(c, w_uk) if k_nope is None else k_nope
    v = up_project(c, w_uv) if v is None else v
    if call.method != "lca":
        return attend(q_nope, q_rope, k_nope, k_rope, v, None, None, None, None, call)
    return torch.ops.lca.attention.default(q_nope, q_rope, k_rope, c, k_nope, v, w_uk, w_uv, *_knobs(call))[:2]


def up_project(latents, weight):
    """Keys or values of all heads from latents: [B,n,d_c] × [H,d,d_c] → [B,n,H,d]."""
    return torch.nn.functional.linear(latents, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])
