"""The condensed cache of a patched transformers model: what `generate()` carries from token to token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from . import reference

# Queries that attend to a cache at a time: bounds the mask of a long turn after the first.
_QUERIES = 256


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums over a long context need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass
class Row:
    """One sequence of a batch in one layer: representatives, exact rows, the queries that score next."""

    length: int = 0
    rep_semantic: Tensor | None = None  # [m, KV, d_semantic]
    rep_positional: Tensor | None = None  # [m, KV, d_positional]
    rep_bias: Tensor | None = None  # [m, KV] float32; None where all are equal
    semantic: Tensor | None = None  # [rows, KV, d_semantic]: sink, then window
    positional: Tensor | None = None
    queries: Tensor | None = None  # [rows, H, d]: the last ones, up to `length`
    rope_length: int | None = None  # whose frequencies its keys have, where they depend on the length

    def bytes(self) -> int:
        """Bytes of representatives and exact rows."""
        held = (self.rep_semantic, self.rep_positional, self.rep_bias, self.semantic, self.positional)
        return sum(x.numel() * x.element_size() for x in held if x is not None)

    def release(self, knobs) -> None:
        """Drops rows and queries that no later token needs; what stays owns its memory."""
        kept = self.length - reference.dropped_at(knobs, self.length)  # sink and window
        sink = min(knobs.sink, self.length)
        if self.semantic.shape[0] > kept:
            first = self.semantic.shape[0] - (kept - sink)
            self.semantic = torch.cat([self.semantic[:sink], self.semantic[first:]])
            self.positional = torch.cat([self.positional[:sink], self.positional[first:]])
        next_end = reference.summary_end(knobs, reference.groups_at(knobs, self.length), 0)
        needed = max(0, next_end + 1 - knobs.summary_queries)
        keep = max(0, self.length - needed) if knobs.method == "lca" else 0
        self.queries = self.queries[self.queries.shape[0] - keep :].clone()

    def store(self, knobs, query, semantic, positional, reps) -> None:
        """Keeps what a first prompt leaves; `reps` are (semantic, positional, bias)."""
        self.length = query.shape[0]
        self.rep_semantic, self.rep_positional = reps[0].clone(), reps[1].clone()
        self.rep_bias = _wide(reps[2]).clone() if knobs.mass == "score" else None
        self.semantic, self.positional, self.queries = semantic.clone(), positional.clone(), query
        self.release(knobs)

    def bias(self, knobs) -> Tensor:
        if self.rep_bias is not None:
            return self.rep_bias
        m, kv = self.rep_semantic.shape[:2]
        level = math.log(knobs.group) if knobs.mass == "count" else 0.0
        return self.rep_semantic.new_full((m, kv), level, dtype=torch.float32)

    def extend(self, knobs, form, query, semantic, positional) -> Tensor:
        """Takes L more tokens and attends with their queries; out [L, H, d_v]."""
        before, count = self.length, query.shape[0]
        self.length += count
        self.semantic = torch.cat([self.semantic, semantic])
        self.positional = torch.cat([self.positional, positional])
        self.queries = torch.cat([self.queries, query])
        self._condense(knobs, form, before, count)
        out = self._attend(knobs, form, query, before)
        self.release(knobs)
        return out

    def _condense(self, knobs, form, before: int, count: int) -> None:
        held, m = self.rep_semantic.shape[0], reference.groups_at(knobs, self.length)
        if m == held:
            return
        g = knobs.group
        start = knobs.sink  # rows of groups before `held` are gone: the next one follows the sink
        rows = slice(start, start + (m - held) * g)
        first_query = self.length - self.queries.shape[0]
        # A run of several tokens is a prompt: in mode `prompt` its end scores what leaves in it.
        prompt = self.length if count > 1 else 0
        mean = reference.summary_means(knobs, _wide(self.queries), range(held, m), prompt, first_query)
        semantic, positional, bias = reference.condense_groups(
            knobs, form.scale, form.score_query(mean), _wide(self.semantic[rows]).unflatten(0, (m - held, g)),
            _wide(self.positional[rows]).unflatten(0, (m - held, g)), form.score_key, held, form.frequencies)
        dtype = self.semantic.dtype
        self.rep_semantic = torch.cat([self.rep_semantic, semantic.to(dtype)])
        self.rep_positional = torch.cat([self.rep_positional, positional.to(dtype)])
        if self.rep_bias is not None:
            self.rep_bias = torch.cat([self.rep_bias, bias])

    def _attend(self, knobs, form, query, before: int) -> Tensor:
        device = query.device
        gone = reference.dropped_at(knobs, before)
        sink = min(knobs.sink, self.length)
        tokens = torch.arange(self.length - gone, device=device)
        tokens = torch.where(tokens < sink, tokens, tokens + gone)
        k, v = form.heads(self.semantic, self.positional)
        rep_k, rep_v = form.heads(self.rep_semantic, self.rep_positional)
        bias = self.bias(knobs).expand(-1, k.shape[1])
        parts = []
        for at in range(0, query.shape[0], _QUERIES):
            block = _wide(form.query(query[at : at + _QUERIES]))
            positions = before + at + torch.arange(block.shape[0], device=device)
            parts.append(reference.attend_rows(knobs, form.scale, block, positions, _wide(k), _wide(v), tokens,
                                               _wide(rep_k), _wide(rep_v), bias, form.frequencies)[0])
        return torch.cat(parts).to(query.dtype)


class CacheLayer(CacheLayerMixin):
    """One layer's rows behind the interface that transformers expects."""

    is_sliding = False

    def __init__(self):
        super().__init__()
        self.rows: list[Row] = []
        self.seen = 0  # tokens, padding included

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Returns the new tokens as they are: attention itself takes them in, with their queries."""
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        self.rows, self.seen = [], 0

    def _pick(self, indices) -> None:
        self.rows = [replace(self.rows[int(i)]) for i in indices]

    def reorder_cache(self, beam_idx) -> None:
        self._pick(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._pick(i for i in range(len(self.rows)) for _ in range(repeats))

    def batch_select_indices(self, indices) -> None:
        self._pick(indices)


class Cache(TransformersCache):
    """The condensed cache of a model that `lca.patch` has changed; `generate()` makes it by itself."""

    def __init__(self, settings):
        super().__init__(layers=[CacheLayer() for _ in settings])
        self.settings = tuple(settings)

    def bytes(self) -> int:
        """Bytes of representatives and exact rows: the law of size of the mechanism."""
        return sum(row.bytes() for layer in self.layers for row in layer.rows)

    def groups(self, layer: int = 0) -> list[int]:
        """Representatives of every sequence of the batch."""
        return [row.rep_semantic.shape[0] for row in self.layers[layer].rows]
