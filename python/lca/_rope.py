"""RoPE whose frequencies depend on the length (types `dynamic` and `longrope`), with entry positions.

The length is then the number of entries that a sequence's first prompt leaves (mechanism §10), each sequence's
own. Keys are turned on by the same frequencies when they are condensed, so a sequence keeps them for its life,
as a session of the engine does.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from . import reference


def depends_on_length(rotary) -> bool:
    return getattr(rotary, "rope_type", "default") in ("dynamic", "longrope")


def entries(settings, count: int) -> int:
    """Positions that so many tokens span: the most of any layer."""
    most = 0
    for one in settings:
        knobs = SimpleNamespace(**one)
        shift = reference.dropped_at(knobs, count) - reference.groups_at(knobs, count)
        most = max(most, count - (shift if knobs.positions == "entry" else 0))
    return most


def rope_length(rotary, length: int) -> int:
    """The length that stands for all lengths with the same frequencies."""
    if rotary.rope_type == "dynamic":
        return max(length, rotary.config.max_position_embeddings)
    short = rotary.config.rope_parameters["original_max_position_embeddings"]
    return short if length <= short else short + 1


def frequencies(rotary, length: int, device) -> Tensor:
    """Radians per position of every pair of channels, at this length."""
    return ROPE_INIT_FUNCTIONS[rotary.rope_type](rotary.config, device, seq_len=length)[0]


class Turns:
    """Which frequencies the tokens of a pass have: a set for each length, `which` [B, n] says whose is whose."""

    def __init__(self, rotary, lengths: list[int], device):
        self.lengths = sorted(set(lengths))
        self.sets = [frequencies(rotary, length, device) for length in self.lengths]
        self.which: Tensor | None = None  # one set: all have it

    def of(self, length: int) -> Tensor:
        return self.sets[self.lengths.index(length)]

    def assign(self, ranges, batch: int, tokens: int, device) -> None:
        """`ranges` are (first, end, length) over the flat batch."""
        if len(self.sets) < 2:
            return
        which = torch.zeros(batch * tokens, dtype=torch.long)
        for first, end, length in ranges:
            which[first:end] = self.lengths.index(length)
        self.which = which.view(batch, tokens).to(device)


class _At:
    """A rotary module at other frequencies."""

    def __init__(self, rotary, inv_freq):
        self.rotary, self.inv_freq = rotary, inv_freq

    def __getattr__(self, name):
        return getattr(self.rotary, name)


@torch.no_grad()
def rotary_forward(self, x, position_ids):
    """Replaces a rotary module's forward: its own formula, at the frequencies of the pass."""
    turns: Turns = self._lca.turns
    plain = inspect.unwrap(type(self).forward)  # without what follows the length in tokens
    angles = [plain(_At(self, inv_freq), x, position_ids) for inv_freq in turns.sets]
    chosen = angles[0]
    for number, other in enumerate(angles[1:], 1):
        mask = (turns.which == number)[..., None]
        if isinstance(other, tuple):
            chosen = tuple(torch.where(mask, new, old) for new, old in zip(other, chosen))
        else:
            chosen = torch.where(mask, other, chosen)
    return chosen
