"""Latent-Condensed Attention in plain PyTorch, to read and to change.

Nothing here is fast, everything is differentiable, and the tests tie it to the kernels. Tensors have no
batch dimension: n tokens of one document, H query heads, KV key/value heads, width d last. `attention` and
`mla_attention` take batches and packed documents and call the halves document by document.

MLA is GQA with one KV head whose key, for scoring, is the latent and the RoPE key side by side and whose
queries are absorbed; once keys and values are per head, both forms attend alike.
"""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

DEFAULTS = dict(
    method="lca", group=16, window=1024, sink=0, summary_queries=16, summary="streaming", head_reduce="mean",
    semantic_pool="weighted", positional_pool="select", mass="none", positions="token", rope_layout="half",
)


def knobs_of(**given) -> SimpleNamespace:
    """All knobs, those not given at the values of preset `training`."""
    unknown = set(given) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
    return SimpleNamespace(**{**DEFAULTS, **given})


# --- the index law ------------------------------------------------------------------------------------------


def groups_at(knobs, n):
    """m(n): groups condensed in a prefix of n tokens; n may be a number or a tensor."""
    if knobs.method != "lca":
        return n * 0
    behind = n - knobs.window - knobs.sink
    m = behind // knobs.group
    return m.clamp(min=0) if isinstance(m, Tensor) else max(m, 0)


def dropped_at(knobs, n):
    """Tokens after the sink that a prefix of n tokens no longer holds."""
    if knobs.method == "lca":
        return groups_at(knobs, n) * knobs.group
    gone = n - knobs.window - knobs.sink if knobs.method == "window" else n * 0
    return gone.clamp(min=0) if isinstance(gone, Tensor) else max(gone, 0)


def summary_end(knobs, j, prompt=0):
    """The last of the queries that score group j: as it leaves the window, or at the prompt's end if later."""
    leaves = knobs.sink + (j + 1) * knobs.group + knobs.window - 1
    return max(leaves, prompt - 1) if knobs.summary == "prompt" else leaves


def rotate(x: Tensor, by: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """Turns rows x [rows, heads, d] on by `by` [rows] positions; channels beyond the frequencies stay."""
    pairs = frequencies.numel()
    angle = by.to(torch.float64)[:, None, None] * frequencies.to(torch.float64)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if layout == "half":
        a, b = turned[..., :pairs], turned[..., pairs:]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


# --- condensation -------------------------------------------------------------------------------------------


def scores_of(query: Tensor, keys: Tensor, scale: float, reduce: str) -> Tensor:
    """Scores [m, KV, rows] of keys [m, rows, KV, d] by one query [m, H, d] for each group."""
    heads, kv = query.shape[1], keys.shape[2]
    each = scale * torch.einsum("mkhd,mrkd->mkhr", query.unflatten(1, (kv, heads // kv)), keys)
    return {"mean": each.mean(2), "sum": each.sum(2), "max": each.amax(2)}[reduce]


def pool(rows: Tensor, weights: Tensor, how: str) -> Tensor:
    """Pools rows [m, g, KV, d] with weights [m, KV, g] to [m, KV, d]."""
    if how == "weighted":
        return torch.einsum("mkg,mgkd->mkd", weights, rows)
    if how == "mean":
        return rows.mean(1)
    if how == "max":
        return rows.amax(1)
    best = weights.argmax(-1)[:, None, :, None].expand(-1, 1, -1, rows.shape[-1])
    return rows.gather(1, best).squeeze(1)


def condense_groups(knobs, scale, query, semantic, positional, score_key, first_group=0, frequencies=None):
    """Condenses m groups: rows [m, g, KV, d] to representatives [m, KV, d] and biases [m, KV].

    `query` [m, H, D] is each group's mean summary query and `score_key(semantic, positional)` the key it
    scores, both as they are before any rotation to entry positions. Group 0 is number `first_group`.
    """
    m, g = semantic.shape[:2]
    scores = scores_of(query, score_key(semantic, positional), scale, knobs.head_reduce)
    weights = scores.softmax(-1)
    rep_semantic = pool(semantic, weights, knobs.semantic_pool)
    rep_positional = pool(positional, weights, knobs.positional_pool)
    bias = torch.full_like(scores[..., 0], math.log(g) if knobs.mass == "count" else 0.0)
    if knobs.mass == "score":
        own = score_key(rep_semantic[:, None], rep_positional[:, None])
        bias = scores.logsumexp(-1) - scores_of(query, own, scale, knobs.head_reduce)[..., 0]
    if knobs.positions == "entry":
        j = first_group + torch.arange(m, device=semantic.device)
        token = knobs.sink + j[:, None] * g + torch.arange(g, device=semantic.device)
        by = (knobs.sink + j[:, None] - token).flatten()
        turned = rotate(positional.flatten(0, 1), by, frequencies, knobs.rope_layout)
        rep_positional = pool(turned.view_as(positional), weights, knobs.positional_pool)
    return rep_semantic, rep_positional, bias


def summary_means(knobs, queries: Tensor, groups: range, prompt: int, first: int = 0) -> Tensor:
    """The mean summary query [m, H, D] of each group; queries[0] is at position `first`."""
    ends = torch.tensor([summary_end(knobs, j, prompt) for j in groups], dtype=torch.long, device=queries.device)
    at = ends[:, None] - torch.arange(knobs.summary_queries, device=queries.device)
    real = (at >= 0).to(queries.dtype)[..., None, None]
    return (queries[(at - first).clamp(min=0)] * real).sum(1) / real.sum(1)


def _condense(knobs, scale, queries, semantic, positional, score_key, frequencies):
    n = queries.shape[0]
    m, g, s = groups_at(knobs, n), knobs.group, knobs.sink
    query = summary_means(knobs, queries, range(m), n)
    split = lambda rows: rows[s : s + m * g].unflatten(0, (m, g))
    return condense_groups(knobs, scale, query, split(semantic), split(positional), score_key,
                           frequencies=frequencies)


def condense(q, k, v, *, scale=None, rope_frequencies=None, **knobs):
    """GQA: rep_k [m, KV, d], rep_v [m, KV, d_v], rep_bias [m, KV] of q [n, H, d], k and v [n, KV, …]."""
    scale = scale or q.shape[-1] ** -0.5
    rep_v, rep_k, bias = _condense(knobs_of(**knobs), scale, q, v, k, lambda _, key: key, rope_frequencies)
    return rep_k, rep_v, bias


def latent_key(semantic: Tensor, positional: Tensor) -> Tensor:
    """The key that an absorbed query scores in MLA."""
    return torch.cat([semantic, positional], -1)


def absorb(q_nope: Tensor, q_rope: Tensor, w_uk: Tensor) -> Tensor:
    """Queries [n, H, d_c + d_r] whose product with (c, k_rope) is that of the given ones with the keys."""
    return torch.cat([torch.einsum("nhd,hdc->nhc", q_nope, w_uk), q_rope], -1)


def mla_condense(q_nope, q_rope, c, k_rope, w_uk, *, scale=None, rope_frequencies=None, **knobs):
    """MLA: rep_c [m, d_c], rep_k_rope [m, d_r], rep_bias [m] of c [n, d_c] and k_rope [n, d_r]."""
    scale = scale or (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    queries = absorb(q_nope, q_rope, w_uk)
    reps = _condense(knobs_of(**knobs), scale, queries, c[:, None], k_rope[:, None], latent_key, rope_frequencies)
    return tuple(x.squeeze(1) for x in reps)


# --- attention ----------------------------------------------------------------------------------------------


def attend_rows(knobs, scale, q, positions, k, v, tokens, rep_k, rep_v, rep_bias, frequencies=None):
    """Attention of queries at `positions` [L] to exact rows at `tokens` [R] and to representatives.

    q [L, H, d]; k, v [R, KV, …]; rep_k, rep_v [m, KV, …]; rep_bias [m, KV]. Rows and representatives that a
    query does not see are masked. Returns out [L, H, d_v] and lse [L, H].
    """
    heads, kv = q.shape[1], k.shape[1]
    seen = positions + 1
    gone, m = dropped_at(knobs, seen), groups_at(knobs, seen)
    far = q
    if knobs.positions == "entry":
        far = rotate(q, -(gone - m), frequencies, knobs.rope_layout)

    def logits(query, key):
        return scale * torch.einsum("lkhd,rkd->khlr", query.unflatten(1, (kv, heads // kv)), key)

    hidden = float("-inf")
    sink = tokens[None] < knobs.sink
    row = torch.where(sink, logits(far, k), logits(q, k))
    visible = (tokens[None] < seen[:, None]) & (sink | (tokens[None] >= (knobs.sink + gone)[:, None]))
    row = row.masked_fill(~visible, hidden)
    rep = logits(far, rep_k) + rep_bias.T[:, None, None]
    rep = rep.masked_fill(torch.arange(rep_k.shape[0], device=q.device)[None] >= m[:, None], hidden)
    joint = torch.cat([rep, row], -1)
    weights = joint.softmax(-1)
    out = torch.einsum("khlr,rkd->lkhd", weights, torch.cat([rep_v, v]))
    return out.flatten(1, 2), joint.logsumexp(-1).flatten(0, 1).T


def attend(q, k, v, rep_k, rep_v, rep_bias, *, scale=None, rope_frequencies=None, **knobs):
    """out [n, H, d_v] and lse [n, H] of one document with its representatives."""
    at = torch.arange(q.shape[0], device=q.device)
    return attend_rows(knobs_of(**knobs), scale or q.shape[-1] ** -0.5, q, at, k, v, at, rep_k, rep_v, rep_bias,
                       rope_frequencies)


def mla_attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias, **options):
    """The same with per-head keys of which all heads share the RoPE part; k_rope [n, d_r], rep_bias [m]."""
    heads = q_nope.shape[1]

    def keys(nope, rope):  # the RoPE part first: it is what positions turn
        return torch.cat([rope[:, None].expand(-1, heads, -1), nope], -1)

    bias = rep_bias[:, None].expand(-1, heads)
    return attend(torch.cat([q_rope, q_nope], -1), keys(k_nope, k_rope), v, keys(rep_k_nope, rep_k_rope), rep_v,
                  bias, **options)


def _documents(one, tensors, cu_seqlens, return_lse):
    """Runs `one` on every document of a batch, or of one packed sequence."""
    if cu_seqlens is None:
        parts = [one(*(x[b] for x in tensors)) for b in range(tensors[0].shape[0])]
        out, lse = (torch.stack(x) for x in zip(*parts))
    else:
        cuts = [int(i) for i in cu_seqlens]
        parts = [one(*(x[0, a:b] for x in tensors)) for a, b in zip(cuts, cuts[1:])]
        out, lse = (torch.cat(x)[None] for x in zip(*parts))
    return (out, lse) if return_lse else out


def attention(q, k, v, *, cu_seqlens=None, return_lse=False, **options):
    """out [B, n, H, d_v] of q [B, n, H, d], k and v [B, n, KV, …]."""

    def one(q, k, v):
        return attend(q, k, v, *condense(q, k, v, **options), **options)

    return _documents(one, (q, k, v), cu_seqlens, return_lse)


def mla_attention(q_nope, q_rope, c, k_rope, w_uk, w_uv, *, cu_seqlens=None, return_lse=False, **options):
    """out [B, n, H, d_v] of queries [B, n, H, …], latents c [B, n, d_c] and RoPE keys [B, n, d_r]."""

    def heads(latents):
        return torch.einsum("nc,hdc->nhd", latents, w_uk), torch.einsum("nc,hdc->nhd", latents, w_uv)

    def one(q_nope, q_rope, c, k_rope):
        rep_c, rep_k_rope, bias = mla_condense(q_nope, q_rope, c, k_rope, w_uk, **options)
        (k_nope, v), (rep_k_nope, rep_v) = heads(c), heads(rep_c)
        return mla_attend(q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, bias, **options)

    return _documents(one, (q_nope, q_rope, c, k_rope), cu_seqlens, return_lse)
