"""The functions of `kernels` for a GPU. Every kernel is bound by memory: bytes are what its tensors have.

A program is a row (a token). Numbers are float32 in registers and the tensors' type (bf16) in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _power(n: int) -> int:
    return triton.next_power_of_2(n)


@triton.jit
def _norm_kernel(x, weight, out, scales, rows, columns, stride, epsilon, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < columns)[None, :]
    value = tl.load(x + row[:, None] * columns + at[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / columns + epsilon)
    tl.store(scales + row, scale, mask=row < rows)
    factor = tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    place = out + row[:, None] * stride + at[None, :]
    tl.store(place, (value * scale[:, None] * factor[None, :]).to(out.dtype.element_ty), mask=inside)


_NORM = (4, 4)  # rows and warps of a program
_NORM_BACKWARD = (4, 4)


def norm(x: Tensor, weight: Tensor, epsilon: float, buffer: Tensor | None = None) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    count, warps = _NORM
    out = torch.empty_like(x) if buffer is None else buffer[:, :columns]
    scale = torch.empty(rows, device=x.device, dtype=torch.float32)
    _norm_kernel[(triton.cdiv(rows, count),)](x, weight, out, scale, rows, columns, out.stride(0), epsilon,
                                              count, _power(columns), num_warps=warps)
    return out, scale


@triton.jit
def _norm_backward_kernel(grad, x, weight, scales, more, into, again, rows, columns, MORE: tl.constexpr,
                          ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < columns)[None, :]
    place = row[:, None] * columns + at[None, :]
    scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
    factor = tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)[None, :]
    unit = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale
    inner = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32) * factor
    found = scale * (inner - unit * (tl.sum(inner * unit, 1) / columns)[:, None])
    if MORE:
        found += tl.load(more + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(into + place, found.to(into.dtype.element_ty), mask=inside)
    tl.store(again + place, (unit * factor).to(again.dtype.element_ty), mask=inside)


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    count, warps = _NORM_BACKWARD
    into, again = torch.empty_like(x), torch.empty_like(x)
    _norm_backward_kernel[(triton.cdiv(rows, count),)](grad, x, weight, scale, grad if more is None else more, into,
                                                       again, rows, columns, more is not None, count, _power(columns),
                                                       num_warps=warps)
    return into, again


@triton.jit
def _rope_kernel(qkv, positions, cosines, sines, stride, heads, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < heads * HALF
    place = qkv + row * stride + at // HALF * (2 * HALF) + at % HALF
    turn = tl.load(positions + row).to(tl.int64) * HALF + at % HALF
    cos, sin = tl.load(cosines + turn), tl.load(sines + turn)
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, (first * cos - second * sin).to(qkv.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (second * cos + first * sin).to(qkv.dtype.element_ty), mask=inside)


def rope(qkv: Tensor, positions: Tensor, table: Tensor, heads: int) -> None:
    half = qkv.shape[-1] // 2
    _rope_kernel[(len(qkv),)](qkv, positions, table[0], table[1], qkv.stride(0), heads, half, _power(heads * half),
                              num_warps=4)


@triton.jit
def _rope_backward_kernel(q, k, v, out, positions, cosines, sines, heads, kv, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    head, channel = at // HALF, at % HALF
    inside = head < heads + kv
    of_q, of_k = head < heads, inside & (head >= heads)
    from_q = q + row * heads * 2 * HALF + head * (2 * HALF) + channel
    from_k = k + row * kv * 2 * HALF + (head - heads) * (2 * HALF) + channel
    first = (tl.load(from_q, mask=of_q, other=0.0) + tl.load(from_k, mask=of_k, other=0.0)).to(tl.float32)
    second = (tl.load(from_q + HALF, mask=of_q, other=0.0) + tl.load(from_k + HALF, mask=of_k, other=0.0))
    second = second.to(tl.float32)
    turn = tl.load(positions + row).to(tl.int64) * HALF + channel
    cos, sin = tl.load(cosines + turn), tl.load(sines + turn)
    place = out + row * (heads + 2 * kv) * 2 * HALF + head * (2 * HALF) + channel
    tl.store(place, (first * cos + second * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (second * cos - first * sin).to(out.dtype.element_ty), mask=inside)
    of_v = at < kv * 2 * HALF
    value = tl.load(v + row * kv * 2 * HALF + at, mask=of_v, other=0.0)
    tl.store(out + row * (heads + 2 * kv) * 2 * HALF + (heads + kv) * 2 * HALF + at, value, mask=of_v)


def rope_backward(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    (rows, heads, width), kv = q.shape, k.shape[1]
    out = torch.empty(rows, heads + 2 * kv, width, device=q.device, dtype=q.dtype)
    block = _power(max((heads + kv) * (width // 2), kv * width))
    _rope_backward_kernel[(rows,)](q, k, v, out, positions, table[0], table[1], heads, kv, width // 2, block,
                                   num_warps=4)
    return out


@triton.jit
def _swiglu_kernel(both, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gate = tl.load(both + row * 2 * columns + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * columns + columns + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(both: Tensor, buffer: Tensor | None = None) -> Tensor:
    rows, columns = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, columns) if buffer is None else buffer[:, :columns]
    block = min(_power(columns), 2048)
    _swiglu_kernel[(rows, triton.cdiv(columns, block))](both, out, columns, out.stride(0), block, num_warps=4)
    return out


@triton.jit
def _swiglu_backward_kernel(grad, both, into, again, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    first, second = row * 2 * columns + at, row * 2 * columns + columns + at
    gate = tl.load(both + first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + second, mask=inside, other=0.0).to(tl.float32)
    outer = tl.load(grad + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    active = gate * sigmoid
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(into + first, (outer * up * slope).to(into.dtype.element_ty), mask=inside)
    tl.store(into + second, (outer * active).to(into.dtype.element_ty), mask=inside)
    tl.store(again + row * columns + at, (active * up).to(again.dtype.element_ty), mask=inside)


def swiglu_backward(grad: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = grad.shape
    into, again = torch.empty_like(both), torch.empty_like(grad)
    block = min(_power(columns), 2048)
    _swiglu_backward_kernel[(rows, triton.cdiv(columns, block))](grad, both, into, again, columns, block, num_warps=4)
    return into, again


@triton.jit
def _divergence_kernel(logits, theirs, target, found, columns, rows, TEACHER: tl.constexpr, GRADIENT: tl.constexpr,
                       BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    mine, other = logits + row * columns, theirs + row * columns
    wanted = tl.load(target + row).to(tl.int32)
    low = -float("inf")
    top, total, best = low, 0.0, columns
    other_top, other_total, gap = low, 0.0, 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(mine + at, mask=inside, other=low).to(tl.float32)
        highest = tl.max(x, 0)
        first = tl.min(tl.where(x == highest, at, columns), 0)
        best = tl.where(highest > top, first, best)
        new = tl.maximum(top, highest)
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), 0)
        top = new
        if TEACHER:
            y = tl.load(other + at, mask=inside, other=low).to(tl.float32)
            new = tl.maximum(other_top, tl.max(y, 0))
            shrunk, weight = tl.exp(other_top - new), tl.exp(y - new)
            other_total = other_total * shrunk + tl.sum(weight, 0)
            gap = gap * shrunk + tl.sum(tl.where(inside, weight * (y - x), 0.0), 0)
            other_top = new
    mine_lse = top + tl.log(total)
    chosen = tl.load(mine + wanted).to(tl.float32)
    tl.store(found + rows + row, mine_lse - chosen)
    tl.store(found + 2 * rows + row, tl.where(best == wanted, 1.0, 0.0))
    other_lse = 0.0
    if TEACHER:
        other_lse = other_top + tl.log(other_total)
        tl.store(found + row, gap / other_total - other_lse + mine_lse)
    else:
        tl.store(found + row, 0.0)
    if GRADIENT:
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < columns
            x = tl.load(mine + at, mask=inside, other=low).to(tl.float32)
            slope = tl.exp(x - mine_lse)
            if TEACHER:
                y = tl.load(other + at, mask=inside, other=low).to(tl.float32)
                slope -= tl.exp(y - other_lse)
            else:
                slope -= tl.where(at == wanted, 1.0, 0.0)
            tl.store(mine + at, slope.to(logits.dtype.element_ty), mask=inside)


def divergence(logits: Tensor, theirs: Tensor | None, target: Tensor, gradient: bool) -> Tensor:
    rows, columns = logits.shape
    found = torch.empty(3, rows, device=logits.device, dtype=torch.float32)
    block = min(_power(columns), 4096)
    _divergence_kernel[(rows,)](logits, logits if theirs is None else theirs, target, found, columns, rows,
                                theirs is not None, gradient, block, num_warps=8)
    return found
