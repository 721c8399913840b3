"""How a layer's tensors become calls of the operators: one class for each form of attention.

Without a cache a pass is one operator, `attention`. With one it takes two steps, `condense` and `attend`, because the
cache keeps what lies between them; cached rows ask for queries and keys as `lca.reference` takes them.
"""

from __future__ import annotations

import torch
from torch import nn

from . import operators, reference


class Gqa:
    """GQA: `semantic` is the value, `positional` the key."""

    frequencies = None  # of the row at hand

    def __init__(self, scale):
        self.scale = scale

    def attention(self, query, semantic, positional, options):
        return operators.attention(query, positional, semantic, scale=self.scale, **options)

    def condense(self, query, semantic, positional, options):
        rep_k, rep_v, bias = operators.condense(query, positional, semantic, scale=self.scale, **options)
        return rep_v, rep_k, bias

    def attend(self, query, semantic, positional, reps, options):
        rep_v, rep_k, bias = reps
        return operators.attend(query, positional, semantic, rep_k, rep_v, bias, scale=self.scale, **options)

    # What a cached row needs.
    def query(self, q):
        return q

    def score_query(self, q):
        return q

    def score_key(self, semantic, positional):
        return positional

    def heads(self, semantic, positional):
        return positional, semantic


class Mla:
    """MLA: `semantic` is the latent, `positional` the RoPE key; a query is its part without position, then the one with
    it."""

    frequencies = None  # of the row at hand

    def __init__(self, module, scale):
        self.module, self.scale = module, scale
        self.weights = None

    def _up(self, latents):
        """Per-head keys without position and values of latents [..., d_c]."""
        m = self.module
        both = m.kv_b_proj(latents).unflatten(-1, (m.num_heads, m.qk_nope_head_dim + m.v_head_dim))
        return both.split([m.qk_nope_head_dim, m.v_head_dim], -1)

    def _weights(self):
        """W_uk [H, d_n, d_c] and W_uv [H, d_v, d_c], adapters included: what kv_b_proj makes of latent channels."""
        m = self.module
        if self.weights is None:
            if type(m.kv_b_proj) is nn.Linear:
                both = m.kv_b_proj.weight
            else:
                like = next(m.kv_b_proj.parameters())
                both = m.kv_b_proj(torch.eye(m.kv_lora_rank, device=like.device, dtype=like.dtype)).T
            both = both.unflatten(0, (m.num_heads, m.qk_nope_head_dim + m.v_head_dim))
            self.weights = both.split([m.qk_nope_head_dim, m.v_head_dim], 1)
        return self.weights

    def _split(self, q):
        return q.split([self.module.qk_nope_head_dim, self.module.qk_rope_head_dim], -1)

    def attention(self, query, semantic, positional, options):
        if type(self.module.kv_b_proj) is not nn.Linear:  # an adapter's dropout belongs to rows, not to a weight
            return self.attend(query, semantic, positional, self.condense(query, semantic, positional, options), options)
        nope, rope = self._split(query)
        w_uk, w_uv = (weight.to(query.dtype) for weight in self._weights())
        k_nope, v = self._up(semantic)
        return operators.mla_attention(nope, rope, semantic, positional, w_uk, w_uv, k_nope=k_nope, v=v,
                                       scale=self.scale, **options)

    def condense(self, query, semantic, positional, options):
        nope, rope = self._split(query)
        w_uk = self._weights()[0].to(query.dtype)
        return operators.mla_condense(nope, rope, semantic, positional, w_uk, scale=self.scale, **options)

    def attend(self, query, semantic, positional, reps, options):
        nope, rope = self._split(query)
        (k_nope, v), (rep_k_nope, rep_v) = self._up(semantic), self._up(reps[0])
        return operators.mla_attend(nope, rope, k_nope, positional, v, rep_k_nope, reps[1], rep_v, reps[2],
                                    scale=self.scale, **options)

    def query(self, q):
        nope, rope = self._split(q)
        return torch.cat([rope, nope], -1)

    def score_query(self, q):
        return reference.absorb(*self._split(q), self._weights()[0].to(q.dtype))

    score_key = staticmethod(reference.latent_key)

    def heads(self, semantic, positional):
        k_nope, v = self._up(semantic[:, 0])
        rope = positional.expand(-1, k_nope.shape[1], -1)
        return torch.cat([rope, k_nope], -1), v
