"""What lies between the matrix products of a Llama block and of its losses, in plain PyTorch.

On a GPU with Triton the functions of `triton_kernels` take their place (`kernels_for`); they have the same names and
say the same. Rows are tokens: x [N, d]. Computation is in float32, or in double where everything is.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import torch
from torch import Tensor


@functools.cache
def _triton() -> ModuleType | None:
    try:
        from lca.finetune import triton_kernels
    except ImportError:
        return None
    return triton_kernels


def kernels_for(tensor: Tensor) -> ModuleType:
    """The module whose functions take tensors on this device."""
    return tensor.is_cuda and _triton() or sys.modules[__name__]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _placed(found: Tensor, buffer: Tensor | None) -> Tensor:
    return found if buffer is None else buffer[:, :found.shape[1]].copy_(found)


def norm(x: Tensor, weight: Tensor, epsilon: float, buffer: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [N, d], and 1 / rms [N]. With a `buffer` the first is its first d columns."""
    wide = _wide(x)
    scale = torch.rsqrt(wide.square().mean(-1) + epsilon)
    return _placed((wide * scale[:, None] * weight).to(x.dtype), buffer), scale


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient of x, with `more` added, and the norm itself once more."""
    unit = _wide(x) * scale[:, None]
    inner = _wide(grad) * weight
    found = scale[:, None] * (inner - unit * (inner * unit).mean(-1, keepdim=True))
    return (found if more is None else found + more).to(x.dtype), (unit * weight).to(x.dtype)


def _turned(x: Tensor, positions: Tensor, table: Tensor, sign: float) -> Tensor:
    """x [N, heads, d] turned; table [2, P, d / 2] has cosines and sines."""
    cos, sin = (each[positions][:, None] for each in table)
    first, second = _wide(x).chunk(2, -1)
    sin = sin * sign
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def rope(qkv: Tensor, positions: Tensor, table: Tensor, heads: int) -> None:
    """Turns the first `heads` heads of qkv [N, all heads, d], in place."""
    qkv[:, :heads] = _turned(qkv[:, :heads], positions, table, 1.0)


def rope_backward(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Gradients q [N, H, d], k and v [N, KV, d] before turning, side by side."""
    return torch.cat([_turned(q, positions, table, -1.0), _turned(k, positions, table, -1.0), v], 1)


def swiglu(both: Tensor, buffer: Tensor | None = None) -> Tensor:
    """silu(gate) · up of both [N, 2 f], in the first columns of a `buffer` where there is one."""
    gate, up = _wide(both).chunk(2, -1)
    return _placed((torch.nn.functional.silu(gate) * up).to(both.dtype), buffer)


def swiglu_backward(grad: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of both [N, 2 f], and silu(gate) · up once more."""
    gate, up = _wide(both).chunk(2, -1)
    sigmoid = gate.sigmoid()
    active, wide = gate * sigmoid, _wide(grad)
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([wide * up * slope, wide * active], -1).to(both.dtype), (active * up).to(both.dtype)


def divergence(logits: Tensor, theirs: Tensor | None, target: Tensor, gradient: bool) -> Tensor:
    """[3, N]: KL to the teacher (0 without one), cross-entropy, and whether the target is the likeliest.

    With `gradient` logits [N, V] are overwritten by the gradient of the KL, without teacher of the cross-entropy.
    """
    mine = _wide(logits).log_softmax(-1)
    entropy = -mine.gather(1, target[:, None]).squeeze(1)
    hits = (logits.argmax(-1) == target).to(entropy.dtype)
    if theirs is None:
        kl = torch.zeros_like(entropy)
    else:
        teacher = _wide(theirs).log_softmax(-1)
        kl = (teacher.exp() * (teacher - mine)).sum(-1)
    if gradient:
        found = mine.exp()
        if theirs is None:
            found[torch.arange(len(target), device=target.device), target] -= 1
        else:
            found -= teacher.exp()
        logits.copy_(found)
    return torch.stack([kl, entropy, hits])
