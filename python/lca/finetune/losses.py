"""The loss, in chunks of tokens through the head: logits of a whole sequence are never in memory.

On text the loss is the KL divergence from the dense teacher to the student (or cross-entropy where there is no
teacher), on answers cross-entropy. A chunk's logits are made again in the backward pass; where the head is frozen
(`frozen_sums`), its gradient is made while they are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from lca.data.store import ANSWER, NONE, TEXT
from lca.finetune.fused import Fused
from lca.finetune.kernels import kernels_for
from lca.patching import override

Head = Callable[[Tensor], Tensor]
#: What `Student` returns, in this order: sums over tokens. KL and text are over the same tokens with a teacher.
SUMS = ("kl", "text", "answer", "hits")


@dataclasses.dataclass(frozen=True)
class Places:
    """Flat numbers of the outputs that are trained, by what they are trained to say."""

    text: Tensor
    answer: Tensor
    context: Tensor

    def to(self, move: Callable[[Tensor], Tensor]) -> Places:
        return Places(move(self.text), move(self.answer), move(self.context))


def places_of(kinds: Tensor, positions: Tensor, context: bool = False, reach: int | None = None) -> Places:
    """kinds and positions [B, n]; output i of a row is for token i + 1. Text and context end at `reach` of a row."""
    after = F.pad(kinds[:, 1:], (0, 1), value=NONE)
    inside = F.pad(positions[:, 1:] > 0, (0, 1), value=False)
    other = (after == NONE) & inside if context else torch.zeros_like(inside)
    text = after == TEXT
    if reach is not None:
        text[:, reach:], other[:, reach:] = False, False
    return Places(*(mask.reshape(-1).nonzero().squeeze(1) for mask in (text, after == ANSWER, other)))


def documents_cut(documents: Tensor | None, length: int, reach: int) -> Tensor | None:
    """Bounds of documents of rows of `length` tokens, where only the first `reach` of a row are left."""
    if documents is None:
        return None
    bounds = documents.long()
    rows = torch.arange(0, int(bounds[-1]) + 1, length)
    bounds = torch.cat([bounds, rows])
    row, at = bounds // length, bounds % length
    return torch.unique(row * reach + at.clamp(max=reach)).to(torch.int32)


def _text_chunk(hidden: Tensor, target: Tensor, teacher: Tensor | None, head: Head, teacher_head: Head | None):
    """KL and cross-entropy of some outputs, summed; with a teacher, cross-entropy is for the reader alone."""
    mine = head(hidden).float().log_softmax(-1)
    entropy = -(mine if teacher is None else mine.detach()).gather(1, target[:, None]).sum()
    if teacher is None:
        return torch.zeros_like(entropy), entropy
    with torch.no_grad():
        theirs = teacher_head(teacher).float().log_softmax(-1)
    return (theirs.exp() * (theirs - mine)).sum(), entropy


def _answer_chunk(hidden: Tensor, target: Tensor, head: Head):
    """Cross-entropy, and how many are the likeliest token."""
    logits = head(hidden).float()
    return F.cross_entropy(logits, target, reduction="sum"), (logits.detach().argmax(-1) == target).sum().float()


def _summed(function, index: Tensor, chunk: int, tensors: tuple, heads: tuple, like: Tensor) -> list[Tensor]:
    """The sums of `function` over chunks of the rows `index` of tensors."""
    totals = [like.new_zeros((), dtype=torch.float32) for _ in range(2)]
    count = -(-len(index) // chunk)
    # Picked once and split: a chunk's gradient is then as small as the chunk.
    picked = [[None] * count if each is None else each.index_select(0, index).split(chunk) for each in tensors]
    for parts in zip(*picked) if count else ():
        if torch.is_grad_enabled():
            found = checkpoint(function, *parts, *heads, use_reentrant=False, preserve_rng_state=False)
        else:
            found = function(*parts, *heads)
        totals = [total + part for total, part in zip(totals, found)]
    return totals


def loss_sums(hidden: Tensor, ids: Tensor, places: Places, head: Head, teacher: Tensor | None = None,
              teacher_head: Head | None = None, chunk: int = 1024) -> Tensor:
    """The sums named in SUMS of hidden [B, n, d], float32 [4]."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    target = F.pad(ids[:, 1:], (0, 1)).reshape(-1)
    theirs = None if teacher is None else teacher.reshape(-1, teacher.shape[-1])
    kl, text = _summed(_text_chunk, places.text, chunk, (flat, target, theirs), (head, teacher_head), flat)
    if theirs is not None and len(places.context):
        more, _ = _summed(_text_chunk, places.context, chunk, (flat, target, theirs), (head, teacher_head), flat)
        kl = kl + more
    answer, hits = _summed(_answer_chunk, places.answer, chunk, (flat, target), (head,), flat)
    return torch.stack([kl, text, answer, hits])


class _Frozen(Function):
    """Sums over rows `index` of hidden [N, d] through a frozen head [V, d], and their gradient at once."""

    @staticmethod
    def forward(ctx, hidden, weight, index, target, theirs, chunk):
        wants = ctx.needs_input_grad[0]
        picked, target = hidden.index_select(0, index), target.index_select(0, index)
        theirs = None if theirs is None else theirs.index_select(0, index)
        found = torch.empty(3, len(index), device=hidden.device,
                            dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
        slope = torch.empty_like(picked) if wants else None
        for at in range(0, len(index), chunk):
            part = slice(at, at + chunk)
            logits = picked[part] @ weight.T
            other = None if theirs is None else theirs[part] @ weight.T
            found[:, part] = kernels_for(hidden).divergence(logits, other, target[part], wants)
            if wants:
                torch.mm(logits, weight, out=slope[part])
        if wants:
            ctx.save_for_backward(index, slope)
            ctx.rows, ctx.taught = len(hidden), theirs is not None
        ctx.mark_non_differentiable(hits := found[2].sum())
        return found[0].sum(), found[1].sum(), hits

    @staticmethod
    def backward(ctx, kl, entropy, _):
        index, slope = ctx.saved_tensors
        into = slope.new_zeros(ctx.rows, slope.shape[1])
        into.index_copy_(0, index, slope * (kl if ctx.taught else entropy).to(slope.dtype))
        return into, None, None, None, None, None


def frozen_sums(hidden: Tensor, ids: Tensor, places: Places, weight: Tensor, teacher: Tensor | None = None,
                chunk: int = 1024) -> Tensor:
    """`loss_sums` where the head is a matrix without gradient, the teacher's too."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    target = F.pad(ids[:, 1:], (0, 1)).reshape(-1)
    theirs = None if teacher is None else teacher.reshape(-1, teacher.shape[-1])
    kl, text, _ = _Frozen.apply(flat, weight, places.text, target, theirs, chunk)
    if theirs is not None:
        text = text.detach()
        if len(places.context):
            kl = kl + _Frozen.apply(flat, weight, places.context, target, theirs, chunk)[0]
    _, answer, hits = _Frozen.apply(flat, weight, places.answer, target, None, chunk)
    return torch.stack([kl, text, answer, hits])


@contextlib.contextmanager
def adapters_off(model: nn.Module):
    """The base model, without adapters. PEFT's own switch also changes requires_grad, which sharding forbids."""
    found = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
    before = [module._disable_adapters for module in found]
    for module in found:
        module._disable_adapters = True
    try:
        yield
    finally:
        for module, was in zip(found, before):
            module._disable_adapters = was


class Student(nn.Module):
    """A patched causal model whose forward pass is the loss, teacher included, so that sharding sees one module."""

    def __init__(self, model: nn.Module, chunk: int = 1024, teacher: nn.Module | None = None,
                 reach: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        self._reach = reach  # tokens of a row the teacher reads
        self._teacher = [teacher]  # in a list: not a part of this module
        self._fused: list[Fused] = []
        self._no_split_modules = getattr(self.causal, "_no_split_modules", None)

    @property
    def causal(self) -> nn.Module:
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def _hidden(self, causal: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
        found = causal.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        scaling = getattr(causal.config, "logits_scaling", 1.0)
        return found / scaling if scaling != 1.0 else found

    def _taught(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Head]:
        other = self._teacher[0]
        causal = self.causal if other is None else other
        near = slice(None, self._reach)
        with torch.no_grad(), adapters_off(causal), override(causal, method="dense", positions="token"):
            hidden = self._hidden(causal, ids[:, near], positions[:, near])
        hidden = F.pad(hidden, (0, 0, 0, ids.shape[1] - hidden.shape[1]))  # of places without a loss
        head = causal.get_output_embeddings()
        return hidden, getattr(head, "base_layer", head)

    def fuse(self, checkpointing: bool) -> None:
        """Computes the model by `Fused` from now on; to be called where the weights are on their device."""
        self._fused = [Fused(self.causal, checkpointing)]

    def forward(self, ids: Tensor, positions: Tensor, places: Places, knobs: dict, teach: bool,
                documents: Tensor | None = None) -> Tensor:
        """`documents` int32 [D + 1], on the host: bounds of the documents of the whole batch as one row, where a row
        has several."""
        if self._fused:
            return self._fused_sums(ids, positions, places, knobs, teach, documents)
        teacher = self._taught(ids, positions) if teach else (None, None)
        with override(self.causal, **knobs):
            hidden = self._hidden(self.causal, ids, positions)
        sums = loss_sums(hidden, ids, places, self.causal.get_output_embeddings(), *teacher, chunk=self.chunk)
        # Rows without a loss still reach every weight: processes that share gradients wait for all of them.
        return sums + 0.0 * hidden[:1, :1].float().sum() if torch.is_grad_enabled() else sums

    def _fused_sums(self, ids: Tensor, positions: Tensor, places: Places, knobs: dict, teach: bool,
                    documents: Tensor | None) -> Tensor:
        fused, theirs, length = self._fused[0], None, ids.shape[1]
        if teach:
            reach = min(length, self._reach or length)
            near = ids[:, :reach], positions[:, :reach], documents_cut(documents, length, reach)
            with torch.no_grad():
                theirs = fused.hidden(*near, {"method": "dense", "positions": "token"}, False)
                theirs = F.pad(theirs, (0, 0, 0, length - reach))  # of places without a loss
        hidden = fused.hidden(ids, positions, documents, knobs, True)
        weight = self.causal.get_output_embeddings().weight
        with torch.autocast(ids.device.type, enabled=False):
            return frozen_sums(hidden, ids, places, weight, theirs, self.chunk)
