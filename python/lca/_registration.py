"""Registration of operators with torch.library: schemas, kernels, fake kernels, and autograd formulas.

Every operator takes tensors, then knobs (`KNOBS`); it has a backward operator of the name `…_backward`, which takes
gradients of outputs, all inputs and outputs, knobs, and which gradients are wanted.
"""

from __future__ import annotations

import torch
from torch import _C

KNOBS = ("str settings, float scale, Tensor? cu_seqlens, Tensor? rope_frequencies, str rope_layout, "
         "str backend")
_library = torch.library.Library("lca", "DEF")
_BELOW_AUTOGRAD = _C._after_autograd_keyset
_DEVICES = (_C.DispatchKey.CUDA, _C.DispatchKey.CPU)


def empty_grads(inputs, wanted):
    """A tensor for each wanted gradient, in the type of its input; None for others."""
    return [tensor.new_empty(tensor.shape) if want else None for tensor, want in zip(inputs, wanted)]


def _formula(name, kernel, backward_kernel, inputs, differentiable):
    """The autograd kernel of an operator with `inputs` tensors and `differentiable` outputs before others.

    As torch.library.register_autograd has it, at a third of the time: the schema is not read again in every call,
    and kernels are called directly where nothing lies between them and autograd (no mode, no tracing).
    """
    operator = getattr(torch.ops.lca, name).default
    backward_operator = getattr(torch.ops.lca, f"{name}_backward").default

    def run(below, arguments):
        with _C._AutoDispatchBelowAutograd():
            return kernel(*arguments) if below is None else operator.redispatch(below, *arguments)

    class Formula(torch.autograd.Function):
        @staticmethod
        def forward(ctx, below, *arguments):
            outputs = run(below, arguments)
            settings, scale, cu_seqlens, rope_frequencies, *ctx.place = arguments[inputs:]
            ctx.settings, ctx.direct = (settings, scale), below is None
            ctx.save_for_backward(*arguments[:inputs], *outputs, cu_seqlens, rope_frequencies)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*outputs[differentiable:])
            return outputs

        @staticmethod
        def backward(ctx, *grads):
            grads = grads[:differentiable]
            if all(grad is None for grad in grads):
                return (None,) * (inputs + 7)
            *tensors, cu_seqlens, rope_frequencies = ctx.saved_tensors
            wanted = list(ctx.needs_input_grad[1:inputs + 1])
            direct = ctx.direct and not torch.is_grad_enabled() and _C._len_torch_dispatch_stack() == 0
            results = (backward_kernel if direct else backward_operator)(
                *grads, *tensors, *ctx.settings, cu_seqlens, rope_frequencies, *ctx.place, wanted)
            return (None, *(grad if want else None for grad, want in zip(results, wanted)), *(None,) * 6)

    Formula.__name__ = Formula.__qualname__ = f"lca_{name}"

    def autograd(keyset, *arguments):
        below = keyset & _BELOW_AUTOGRAD
        if below.highestPriorityTypeId() in _DEVICES:
            below = None
        if _C.is_grad_enabled() and _C._any_requires_grad(*arguments):
            return Formula.apply(below, *arguments)
        return run(below, arguments)

    return autograd


def _filled(grads, like):
    """What a backward operator returns: its outputs are tensors, those that nobody wants without values."""
    return tuple(like.new_empty(0) if grad is None else grad for grad in grads)


def register(name, inputs, outputs, grads, kernel, backward_kernel, fake):
    """An operator and its backward operator: schemas, kernels, fake kernels, autograd formula."""
    count, given = inputs.count("Tensor"), grads.count("Tensor")

    def forward(*arguments):
        with _C._AutoDispatchBelowAutograd():
            return kernel(*arguments)

    def backward(*arguments):
        with _C._AutoDispatchBelowAutograd():
            return _filled(backward_kernel(*arguments), arguments[given + 1])

    def backward_fake(*arguments):
        return _filled(empty_grads(arguments[given:given + count], arguments[-1]), arguments[given + 1])

    results = ", ".join(["Tensor"] * count)
    for operator, schema, real, shapes in (
            (name, f"({inputs}, {KNOBS}) -> ({outputs})", forward, fake),
            (f"{name}_backward", f"({grads}, {inputs}, {outputs}, {KNOBS}, bool[] wanted) -> ({results})", backward,
             backward_fake)):
        _library.define(operator + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            _library.impl(operator, real, key)
        torch.library.register_fake(f"lca::{operator}", shapes, lib=_library)
    _library.impl(name, _formula(name, kernel, backward_kernel, count, given), "Autograd", with_keyset=True)
