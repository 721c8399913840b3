"""A Llama with LoRA as two functions a block around attention, with backward passes of their own.

The modules of transformers and PEFT hold the weights; here they are computed with: q, k and v are one product, gate and
up another, an adapter is a product of small matrices added to its result, and nothing is kept for the backward pass
that is cheaper to make again (norms, silu). Base weights have no gradient.

For N tokens of width d a block keeps x [N, d], q k v, the output of attention, x in its middle and gate and up.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from lca import operators
from lca.finetune.kernels import kernels_for
from lca.patching import override


class Projection:
    """Linear layers of one input as one: W [out, d], and of their adapters a [r, d] and b [out, r], block by block.

    W and b lie side by side: with x a^T beside x, x W^T + x a^T b^T is one product. a, b and their gradients are parts
    of flat buffers that `Adapters` keeps.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self.bases = [getattr(each, "base_layer", each).weight.detach() for each in modules]
        self.rows, self.width = sum(map(len, self.bases)), self.bases[0].shape[1]
        self.adapters: list[tuple[nn.Parameter, nn.Parameter]] = []
        self.places: list[tuple[int, int]] = []  # first column and row of each block of b
        self.scale = 1.0
        self.rank = row = 0
        for module, base in zip(modules, self.bases):
            if hasattr(module, "base_layer"):
                pair = module.lora_A["default"].weight, module.lora_B["default"].weight
                self.adapters.append(pair)
                self.places.append((self.rank, row))
                self.scale = float(module.scaling["default"])
                self.rank += len(pair[0])
            row += len(base)
        self.joint = self.weight = self.a = self.b = self.grad_a = self.grad_b = self.bases[0][:0]

    def buffer(self, x: Tensor) -> Tensor | None:
        """[N, d + r] for the input and x a^T, where that is aligned as matrix products like it."""
        return x.new_empty(len(x), self.width + self.rank) if self.rank and self.rank % 8 == 0 else None

    def __call__(self, x: Tensor, adapted: bool, buffer: Tensor | None = None, more: Tensor | None = None,
                 over: bool = False) -> tuple[Tensor, Tensor | None]:
        """x W^T (+ more, which the result may be written over) with adapters, and x a^T; x may lie in a buffer."""
        low = x @ self.a.T if adapted and self.rank else None
        weight = self.weight
        if buffer is not None:
            buffer[:, self.width:] = low
            x, weight = buffer, self.joint
        if more is None:
            out = x @ weight.T
        else:
            out = more.addmm_(x, weight.T) if over else torch.addmm(more, x, weight.T)
        if low is not None and buffer is None:
            out.addmm_(low, self.b.T)
        return out, low

    def backward(self, grad: Tensor, low: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and of x a^T."""
        into = grad @ self.weight
        if low is None:
            return into, None
        grad_low = grad @ self.b
        return into.addmm_(grad_low, self.a), grad_low

    def adapters_backward(self, grad: Tensor, grad_low: Tensor | None, x: Tensor, low: Tensor | None) -> None:
        """Writes the gradients of a and b."""
        if low is not None:
            torch.mm(grad_low.T, x, out=self.grad_a)
            torch.mm(grad.T, low, out=self.grad_b)


class Adapters:
    """The adapters of all projections in flat buffers, so that a step copies and scales them with a few kernels.

    PEFT's parameters become parts of one float32 tensor: all A, then all B. a is then a plain copy of the first half;
    b has the blocks of B on its diagonal, times the adapters' scale.
    """

    def __init__(self, projections: list[Projection]) -> None:
        like = projections[0].bases[0]
        pairs = [pair for each in projections for pair in each.adapters]
        self.parameters = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        self._sizes = [each.numel() for each in self.parameters]
        self._scale = next(each.scale for each in projections if each.rank)
        self._first = sum(self._sizes[:len(pairs)])
        self._flat = torch.cat([each.detach().reshape(-1) for each in self.parameters])
        for each, part in zip(self.parameters, self._flat.split(self._sizes)):
            each.data = part.view(each.shape)
        self._a, self._grad_a = like.new_zeros(self._first), like.new_zeros(self._first)
        self._weights = like.new_zeros(sum(each.rows * (each.width + each.rank) for each in projections))
        self._grad_b = like.new_zeros(sum(each.rows * each.rank for each in projections))
        first = second = third = 0
        into, of = [], []  # places of B in the weights, and of its gradients
        for each in projections:
            rows, width, rank = each.rows, each.width, each.rank
            stride = width + rank
            each.a, each.grad_a = (flat[first:first + rank * width].view(rank, width)
                                   for flat in (self._a, self._grad_a))
            each.joint = self._weights[second:second + rows * stride].view(rows, stride)
            each.weight, each.b = each.joint[:, :width], each.joint[:, width:]
            each.weight.copy_(torch.cat(each.bases))
            each.grad_b = self._grad_b[third:third + rows * rank].view(rows, rank)
            for (column, row), (_, up) in zip(each.places, each.adapters):
                down, right = torch.arange(len(up))[:, None] + row, torch.arange(up.shape[1])[None] + column
                into.append((second + down * stride + width + right).reshape(-1))
                of.append((third + down * rank + right).reshape(-1))
            each.bases = []
            first, second, third = first + rank * width, second + rows * stride, third + rows * rank
        self._into, self._of = torch.cat(into).to(like.device), torch.cat(of).to(like.device)

    def refresh(self) -> None:
        """Takes over the parameters, in the type of the computation."""
        self._a.copy_(self._flat[:self._first])
        self._weights.index_copy_(0, self._into, (self._flat[self._first:] * self._scale).to(self._weights.dtype))

    def gradients(self) -> list[Tensor]:
        """Those of `parameters`."""
        second = self._grad_b.index_select(0, self._of).to(self._flat.dtype).mul_(self._scale)
        flat = torch.cat([self._grad_a.to(self._flat.dtype), second])
        return [part.view(each.shape) for each, part in zip(self.parameters, flat.split(self._sizes))]


class _Enter(Function):
    """x as it is. Its backward pass is the last one, and hands over the gradients that the blocks wrote."""

    @staticmethod
    def forward(ctx, x, adapters, *parameters):
        ctx.adapters = adapters
        return x

    @staticmethod
    def backward(ctx, grad):
        return (None, None, *ctx.adapters.gradients())


@dataclasses.dataclass
class Block:
    """The weights of a layer."""

    norm_in: Tensor
    norm_mid: Tensor
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    heads: int
    kv: int
    epsilon: float

    @property
    def projections(self) -> list[Projection]:
        return [self.qkv, self.out, self.gate_up, self.down]


@dataclasses.dataclass(frozen=True)
class Turn:
    """RoPE of a pass: positions [N], cosines and sines [2, P, d / 2] in float32."""

    positions: Tensor
    table: Tensor


def _inward(x: Tensor, block: Block, turn: Turn, adapted: bool):
    kernels = kernels_for(x)
    buffer = block.qkv.buffer(x) if adapted else None
    hidden, scale = kernels.norm(x, block.norm_in, block.epsilon, buffer)
    qkv, low = block.qkv(hidden, adapted, buffer)
    qkv = qkv.unflatten(1, (block.heads + 2 * block.kv, -1))
    kernels.rope(qkv, turn.positions, turn.table, block.heads + block.kv)
    return qkv.split([block.heads, block.kv, block.kv], 1), scale, low


class _Inward(Function):
    """q, k, v [B, n, heads, d] of x [N, d], and x itself: its other gradient then joins in one pass."""

    @staticmethod
    def forward(ctx, x, block, turn, shape):
        found, scale, low = _inward(x, block, turn, True)
        ctx.save_for_backward(x, scale, low)
        ctx.block, ctx.turn = block, turn
        return (*(each.unflatten(0, shape) for each in found), x)

    @staticmethod
    def backward(ctx, q, k, v, more):
        x, scale, low = ctx.saved_tensors
        block, kernels = ctx.block, kernels_for(x)
        q, k, v = (each.flatten(0, 1) for each in (q, k, v))
        grad = kernels.rope_backward(q, k, v, ctx.turn.positions, ctx.turn.table).flatten(1)
        inner, grad_low = block.qkv.backward(grad, low)
        into, hidden = kernels.norm_backward(inner, x, block.norm_in, scale, more)
        block.qkv.adapters_backward(grad, grad_low, hidden, low)
        return into, None, None, None


def _outward(attended: Tensor, x: Tensor, block: Block, adapted: bool, over: bool = False):
    kernels = kernels_for(x)
    middle, low_out = block.out(attended, adapted, None, x, over)
    buffer = block.gate_up.buffer(x) if adapted else None
    hidden, scale = kernels.norm(middle, block.norm_mid, block.epsilon, buffer)
    both, low_both = block.gate_up(hidden, adapted, buffer)
    buffer = block.down.buffer(x) if adapted else None
    out, low_down = block.down(kernels.swiglu(both, buffer), adapted, buffer, middle, over)
    return out, (middle, scale, both, low_out, low_both, low_down)


class _Outward(Function):
    """What follows attention [B, n, heads, d] in a block: its output matrix, the feed-forward part."""

    @staticmethod
    def forward(ctx, attended, x, block):
        ctx.shape = attended.shape
        attended = attended.reshape(len(x), -1)
        out, kept = _outward(attended, x, block, True)
        ctx.save_for_backward(attended, *kept)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx, grad):
        attended, middle, scale, both, low_out, low_both, low_down = ctx.saved_tensors
        block, kernels = ctx.block, kernels_for(grad)
        grad = grad.contiguous()
        inner, grad_low = block.down.backward(grad, low_down)
        inner, active = kernels.swiglu_backward(inner, both)
        block.down.adapters_backward(grad, grad_low, active, low_down)
        outer, grad_low = block.gate_up.backward(inner, low_both)
        grad, hidden = kernels.norm_backward(outer, middle, block.norm_mid, scale, grad)
        block.gate_up.adapters_backward(inner, grad_low, hidden, low_both)
        into, grad_low = block.out.backward(grad, low_out)
        block.out.adapters_backward(grad, grad_low, attended, low_out)
        return into.view(ctx.shape), grad, None


class _Norm(Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        out, scale = kernels_for(x).norm(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        return kernels_for(x).norm_backward(grad.contiguous(), x, weight, scale, None)[0], None, None


def obstacle(causal: nn.Module) -> str | None:
    """Why a model has to be computed by its own modules, or None."""
    inner = causal.model
    if type(inner).__name__ != "LlamaModel":
        return f"it is no Llama but {type(causal).__name__}"
    if causal.config.hidden_act != "silu":
        return f"its activation is {causal.config.hidden_act}"
    if getattr(inner.rotary_emb, "rope_type", "default") in ("dynamic", "longrope"):
        return f"its rope type is {inner.rotary_emb.rope_type}"
    blocks = {module for layer in inner.layers for module in layer.modules()}
    for name, module in causal.named_modules():
        if hasattr(module, "base_layer") and module not in blocks:
            return f"{name} has an adapter"
        if isinstance(module, nn.Linear) and module.bias is not None:
            return f"{name} has a bias"
    return None


class Fused:
    """A patched causal Llama with adapters, for training."""

    def __init__(self, causal: nn.Module, checkpointing: bool = False) -> None:
        inner, config = causal.model, causal.config
        self._inner, self._checkpointing = inner, checkpointing
        self.blocks = []
        for layer in inner.layers:
            own, mlp = layer.self_attn, layer.mlp
            self.blocks.append(Block(
                layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach(),
                Projection([own.q_proj, own.k_proj, own.v_proj]), Projection([own.o_proj]),
                Projection([mlp.gate_proj, mlp.up_proj]), Projection([mlp.down_proj]),
                config.num_attention_heads, config.num_key_value_heads, layer.input_layernorm.variance_epsilon))
        self._scaling = inner.layers[0].self_attn.scaling
        self._table: Tensor | None = None
        self._settings: dict[str, tuple[tuple, Tensor | None]] = {}
        self.adapters = Adapters([part for block in self.blocks for part in block.projections])

    def _turn(self, positions: Tensor) -> Turn:
        length = positions.shape[-1]
        if self._table is None or self._table.shape[1] < length:
            count = torch.arange(length, device=positions.device)[None]
            like = torch.zeros(1, device=positions.device)
            half = self._inner.layers[0].self_attn.head_dim // 2
            self._table = torch.stack([each[0, :, :half] for each in self._inner.rotary_emb(like, count)]).contiguous()
        return Turn(positions.reshape(-1), self._table)

    def settings(self, knobs: dict[str, Any]) -> tuple[tuple, Tensor | None]:
        """The settings of every layer and RoPE's frequencies with these knobs; checked once for each."""
        key = repr(sorted(knobs.items()))
        if key not in self._settings:
            with override(self._inner, **knobs):
                settings = self._inner._lca.settings
            turned = any(each["positions"] == "entry" for each in settings)
            self._settings[key] = settings, self._inner.rotary_emb.inv_freq if turned else None
        return self._settings[key]

    def hidden(self, ids: Tensor, positions: Tensor, documents: Tensor | None, knobs: dict[str, Any],
               adapted: bool) -> Tensor:
        """The last hidden states [B, n, d] with other settings; `documents` int32 [D + 1] on the host."""
        settings, frequencies = self.settings(knobs)
        with torch.autocast(ids.device.type, enabled=False):
            x = F.embedding(ids.reshape(-1), self._inner.embed_tokens.weight)
            if adapted:
                self.adapters.refresh()
                x = _Enter.apply(x, self.adapters, *self.adapters.parameters)
            turn = self._turn(positions)
            shape = tuple(ids.shape) if documents is None else (1, ids.numel())
            for block, own in zip(self.blocks, settings):
                options = {**own, "scale": self._scaling, "cu_seqlens": documents}
                if own["positions"] == "entry":
                    options["rope_frequencies"] = frequencies
                x = self._layer(x, block, turn, shape, options, adapted)
            x = _Norm.apply(x, self._inner.norm.weight, self._inner.norm.variance_epsilon)
        return x.view(*ids.shape, -1)

    def _layer(self, x: Tensor, block: Block, turn: Turn, shape: tuple, options: dict, adapted: bool) -> Tensor:
        if not (adapted and torch.is_grad_enabled()):
            found, _, _ = _inward(x, block, turn, adapted)
            out = operators.attention(*(each.unflatten(0, shape) for each in found), **options)
            return _outward(out.reshape(len(x), -1), x, block, adapted, True)[0]
        if self._checkpointing:
            return checkpoint(_trained, x, block, turn, shape, options, use_reentrant=False, preserve_rng_state=False)
        return _trained(x, block, turn, shape, options)


def _trained(x: Tensor, block: Block, turn: Turn, shape: tuple, options: dict) -> Tensor:
    *found, x = _Inward.apply(x, block, turn, shape)
    return _Outward.apply(operators.attention(*found, **options), x, block)
