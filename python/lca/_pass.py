"""One forward pass of a patched model: which documents it has, and what all layers share about them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cache import Cache


@dataclass
class Part:
    """Documents of one forward pass that share RoPE frequencies, mostly all of them: one call of the operators."""

    batch: int
    tokens: int
    rows: list  # numbers of those rows of the batch whose first document is in it
    cu_seqlens: Tensor | None = None  # packed documents, or rows without their padding
    index: Tensor | None = None  # where the packed tokens lie in the padded batch; None: everywhere
    frequencies: Tensor | None = None

    def pack(self, x: Tensor) -> Tensor:
        """[B, n, …] as one packed sequence [1, N, …], or as it is where every row is one whole document."""
        if self.cu_seqlens is None:
            return x
        flat = x.reshape(1, -1, *x.shape[2:])
        return flat if self.index is None else flat[:, self.index]

    def unpack(self, x: Tensor) -> Tensor:
        """Back to [B, n, …]; what is in no document is 0."""
        if self.cu_seqlens is None:
            return x
        if self.index is not None:
            full = x.new_zeros(self.batch * self.tokens, *x.shape[2:])
            x = full.index_copy(0, self.index, x[0])
        return x.reshape(self.batch, self.tokens, *x.shape[-2:])


@dataclass
class Pass:
    """What the layers of one forward pass share."""

    batch: int
    tokens: int
    settings: tuple
    parts: list = field(default_factory=list)  # of a pass without tokens in the cache
    cache: Cache | None = None
    lengths: list = field(default_factory=list)  # of rows, without padding
    firsts: list = field(default_factory=list)  # where they begin
    frequencies: list = field(default_factory=list)  # of rows; none where no layer needs them
    rope_lengths: list = field(default_factory=list)  # of rows; none where frequencies do not depend on it


def _row_ranges(mask: Tensor | None, batch: int, tokens: int) -> list[tuple[int, int]]:
    """First and last + 1 of the real tokens of every row."""
    if mask is None:
        return [(0, tokens)] * batch
    if mask.dim() != 2:
        raise ValueError("lca takes a 2-dimensional attention_mask (padding); other masks have no meaning here")
    real = mask[:, -tokens:].bool()
    count = real.sum(1)
    first = real.int().argmax(1)
    last = tokens - real.flip(1).int().argmax(1)
    if not bool(((last - first == count) & (count > 0)).all()):
        raise ValueError("attention_mask must be 1 on one run of tokens in each row, with padding on the left or right")
    return list(zip(first.tolist(), last.tolist()))


def _documents(rows, position_ids: Tensor | None, tokens: int) -> list[tuple[int, int]]:
    """The documents of a padded batch as ranges of flat token indices: a row, cut where positions start again."""
    documents = []
    resets = None
    if position_ids is not None and tokens > 1:
        steps = position_ids[:, 1:] - position_ids[:, :-1] != 1
        resets = steps.expand(len(rows), -1).nonzero().tolist() if bool(steps.any()) else None
    for row, (first, last) in enumerate(rows):
        inside = [at + 1 for r, at in resets or [] if r == row and first <= at < last - 1]
        cuts = [first, *inside, last]
        documents += [(row * tokens + a, row * tokens + b) for a, b in zip(cuts, cuts[1:])]
    return documents


def _parts(documents, rope_lengths, batch: int, tokens: int, frequencies, device) -> list[Part]:
    """The documents by their RoPE lengths; `frequencies` of such a length."""
    if len(set(rope_lengths)) > 1:
        parts = []
        for length in sorted(set(rope_lengths)):
            own = [document for document, its in zip(documents, rope_lengths) if its == length]
            parts.append(_part(own, batch, tokens, frequencies(length), device))
        return parts
    return [_part(documents, batch, tokens, frequencies(rope_lengths[0]), device)]


def _part(documents, batch: int, tokens: int, frequencies, device) -> Part:
    rows = sorted({first // tokens for first, _ in documents})
    part = Part(batch, tokens, rows, frequencies=frequencies)
    if documents != [(row * tokens, (row + 1) * tokens) for row in range(batch)]:
        lengths = torch.tensor([b - a for a, b in documents])
        part.cu_seqlens = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
        if int(lengths.sum()) != batch * tokens:
            part.index = torch.cat([torch.arange(a, b) for a, b in documents]).to(device)
    return part


def pass_plan(state, kwargs: dict, batch: int, tokens: int, device) -> Pass:
    """The pass of a patched decoder (`state`) that is called with `kwargs`."""
    cache = kwargs.get("past_key_values")
    plan = Pass(batch, tokens, state.settings, cache=cache)
    past = cache.get_seq_length() if cache is not None else 0
    decodes = past and tokens == 1
    rows = [(0, 1)] * batch if decodes else _row_ranges(kwargs.get("attention_mask"), batch, tokens)
    documents = _documents(rows, None if past else kwargs.get("position_ids"), tokens)
    if cache is not None and len(documents) != batch:
        raise ValueError("packed documents have no cache: pass use_cache=False")
    plan.firsts = [first for first, _ in rows]
    plan.lengths = [last - first for first, last in rows]
    if past:
        lengths = [row.rope_length for row in cache.layers[0].rows]
    else:
        lengths = [state.rope_length(last - first) for first, last in documents]
    frequencies = state.frequencies(documents, lengths, batch, tokens, device)
    if cache is not None:
        plan.frequencies, plan.rope_lengths = [frequencies(length) for length in lengths], lengths
    if not past:
        plan.parts = _parts(documents, lengths, batch, tokens, frequencies, device)
    return plan
