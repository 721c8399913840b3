"""A plain float64 implementation of latent-condensed attention.

It is written to be read: every query gathers its own explicit set of keys and takes one
softmax over them.  No chunking, no cache, no absorbed weights and no streaming, because
those are what the golden files are there to check.
"""

import math

import torch

# Defaults of preset `training`; `scale` and `prefill` depend on the tensors.
DEFAULTS = {
    "method": "lca",
    "group": 16,
    "window": 1024,
    "sink": 0,
    "summary_queries": 16,
    "summary": "streaming",
    "head_reduce": "mean",
    "semantic_pool": "weighted",
    "positional_pool": "select",
    "mass": "none",
    "positions": "token",
}


# --------------------------------------------------------------------------------------
# Index law
# --------------------------------------------------------------------------------------

def condensed_groups(n, g, w, s):
    """m(n): how many groups the prefix of n tokens has condensed."""
    return (n - w - s) // g if n >= s + w + g else 0


def visible(t, o):
    """Keys of the query at position t: (positions of plain tokens, number of representatives)."""
    g, w, s = o["group"], o["window"], o["sink"]
    n = t + 1
    if o["method"] == "dense":
        return list(range(n)), 0
    if o["method"] == "window":
        return list(range(min(s, n))) + list(range(max(s, n - w), n)), 0
    m = condensed_groups(n, g, w, s)
    head = min(s, n)
    return list(range(head)) + list(range(head + m * g, n)), m


def summary_range(j, prompt, o):
    """First and last position of the queries whose mean scores group j."""
    end = o["sink"] + (j + 1) * o["group"] + o["window"] - 1
    if o["summary"] == "prompt":
        end = max(end, prompt - 1)
    return max(0, end + 1 - o["summary_queries"]), end


# --------------------------------------------------------------------------------------
# Positions
# --------------------------------------------------------------------------------------

class Rotary:
    """Rotates the last `width` channels of rows by positions: pairs of channels as complex
    numbers, times exp(i * position * frequency)."""

    def __init__(self, frequencies, layout, width):
        self.frequencies, self.layout, self.width = frequencies, layout, width

    def __call__(self, rows, positions):
        """rows [i, ..., d], positions [i]"""
        pairs = len(self.frequencies)
        head, rows = rows[..., :-self.width], rows[..., -self.width:]
        turned, rest = rows[..., :2 * pairs], rows[..., 2 * pairs:]
        shape = (2, pairs) if self.layout == "half" else (pairs, 2)
        axis = -2 if self.layout == "half" else -1
        x, y = turned.unflatten(-1, shape).unbind(axis)
        angles = torch.as_tensor(positions, dtype=torch.float64)[:, None] * self.frequencies
        angles = angles.reshape(angles.shape[:1] + (1,) * (rows.dim() - 2) + (pairs,))
        z = torch.complex(x, y) * torch.polar(torch.ones_like(angles), angles)
        turned = torch.stack([z.real, z.imag], dim=axis).flatten(-2)
        return torch.cat([head, turned, rest], dim=-1)


# --------------------------------------------------------------------------------------
# The two forms, seen through one interface
#
# A "store" is what one representative belongs to: MLA has one store that all heads share,
# GQA has one per KV head, shared by H/KV query heads.  A store holds two rows per token: a
# semantic one (latent / value) and a positional one (RoPE key / whole key).  `expand` turns
# rows of either tokens or representatives into the keys and values of the store's heads.
# --------------------------------------------------------------------------------------

class MlaStore:
    def __init__(self, x, b):
        self.q = torch.cat([x["q_nope"][b], x["q_rope"][b]], dim=-1)  # [n, H, d_n + d_r]
        self.semantic, self.positional = x["c"][b], x["k_rope"][b]
        self.w_uk, self.w_uv = x["w_uk"], x["w_uv"]

    def expand(self, semantic, positional):
        k_nope = torch.einsum("hdc,ic->ihd", self.w_uk, semantic)
        k_rope = positional[:, None, :].expand(-1, k_nope.shape[1], -1)
        values = torch.einsum("hvc,ic->ihv", self.w_uv, semantic)
        return torch.cat([k_nope, k_rope], dim=-1), values

    def slice(self, a, z):
        part = object.__new__(MlaStore)
        part.q, part.semantic, part.positional = self.q[a:z], self.semantic[a:z], self.positional[a:z]
        part.w_uk, part.w_uv = self.w_uk, self.w_uv
        return part


class GqaStore:
    def __init__(self, x, b, kv):
        share = x["q"].shape[2] // x["k"].shape[2]
        self.q = x["q"][b, :, kv * share:(kv + 1) * share]            # [n, H/KV, d]
        self.semantic, self.positional = x["v"][b, :, kv], x["k"][b, :, kv]

    def expand(self, semantic, positional):
        heads = self.q.shape[1]
        return (positional[:, None, :].expand(-1, heads, -1),
                semantic[:, None, :].expand(-1, heads, -1))

    def slice(self, a, z):
        part = object.__new__(GqaStore)
        part.q, part.semantic, part.positional = self.q[a:z], self.semantic[a:z], self.positional[a:z]
        return part


# --------------------------------------------------------------------------------------
# Condensation and attention of one store over one document
# --------------------------------------------------------------------------------------

def scores(q_bar, keys, scale, how):
    """q_bar [h, d], keys [i, h, d] -> one score per key, reduced over the store's heads."""
    per_head = scale * torch.einsum("hd,ihd->ih", q_bar, keys)
    if how == "mean":
        return per_head.mean(dim=1)
    if how == "sum":
        return per_head.sum(dim=1)
    return per_head.amax(dim=1)


def first_argmax(s):
    """Index of the maximum, the lowest one on ties."""
    return int((s == s.max()).nonzero()[0])


def pool(rows, s, how):
    if how == "weighted":
        return torch.softmax(s, dim=0) @ rows
    if how == "mean":
        return rows.mean(dim=0)
    if how == "max":
        return rows.amax(dim=0)
    return rows[first_argmax(s)]


def attend_entries(store, o, scale, reps, rotary):
    """Dense attention of every query over the entries it sees, which stand at positions
    0, 1, 2, ...: sink, representatives, window.  The last of them is the query's own token."""
    n, s = store.q.shape[0], o["sink"]
    bare_q = rotary(store.q, -torch.arange(n))
    bare_k = rotary(store.positional, -torch.arange(n))
    bare_rep = rotary(reps["positional"], -(s + torch.arange(len(reps["bias"]))))
    out, lse = [], []
    for t in range(n):
        tokens, m = visible(t, o)
        sink = [i for i in tokens if i < s]
        window = [i for i in tokens if i >= s]
        semantic = torch.cat([store.semantic[sink], reps["semantic"][:m], store.semantic[window]])
        positional = torch.cat([bare_k[sink], bare_rep[:m], bare_k[window]])
        k, v = store.expand(semantic, rotary(positional, torch.arange(len(positional))))
        q = rotary(bare_q[t:t + 1], [len(positional) - 1])[0]
        logits = scale * torch.einsum("hd,ihd->ih", q, k)
        logits[len(sink):len(sink) + m] += reps["bias"][:m, None]
        total = torch.logsumexp(logits, dim=0)
        out.append(torch.einsum("ih,ihv->hv", torch.exp(logits - total), v))
        lse.append(total)
    return torch.stack(out), torch.stack(lse)


def attend_document(store, o, scale, prompt, rotary=None):
    """One store, one document; `rotary` where positions are those of entries.  `margin` is the smallest relative gap between the two best
    scores of any group: how far `select` is from being a matter of rounding."""
    n = store.q.shape[0]
    keys, values = store.expand(store.semantic, store.positional)

    g = o["group"]
    m = condensed_groups(n, g, o["window"], o["sink"]) if o["method"] == "lca" else 0
    rep_semantic, rep_positional, rep_bias = [], [], []
    margin = math.inf
    for j in range(m):
        lo, hi = summary_range(j, prompt, o)
        q_bar = store.q[lo:hi + 1].mean(dim=0)
        members = slice(o["sink"] + j * g, o["sink"] + (j + 1) * g)
        s = scores(q_bar, keys[members], scale, o["head_reduce"])
        sem = pool(store.semantic[members], s, o["semantic_pool"])
        pos = pool(store.positional[members], s, o["positional_pool"])
        if o["mass"] == "none":
            bias = torch.zeros((), dtype=torch.float64)
        elif o["mass"] == "count":
            bias = torch.tensor(math.log(g), dtype=torch.float64)
        else:
            rep_key, _ = store.expand(sem[None], pos[None])
            s_rep = scores(q_bar, rep_key, scale, o["head_reduce"])[0]
            bias = torch.logsumexp(s, dim=0) - s_rep
        if rotary:  # what is kept: the members moved to where the representative stands
            moved = rotary(rotary(store.positional, -torch.arange(n))[members], [o["sink"] + j] * g)
            pos = pool(moved, s, o["positional_pool"])
        rep_semantic.append(sem)
        rep_positional.append(pos)
        rep_bias.append(bias)
        # An all-zero mean query ties every score exactly, in any arithmetic: no doubt there.
        if g > 1 and q_bar.any():
            best, second = torch.sort(s, descending=True).values[:2].tolist()
            margin = min(margin, (best - second) / max(1.0, abs(best)))

    def stack(rows, like):
        return torch.stack(rows) if rows else like.new_zeros((0,) + like.shape[1:])

    rep_semantic = stack(rep_semantic, store.semantic)
    rep_positional = stack(rep_positional, store.positional)
    rep_bias = stack(rep_bias, keys[:, 0, 0])
    if rotary:
        reps = {"semantic": rep_semantic, "positional": rep_positional, "bias": rep_bias}
        out, lse = attend_entries(store, o, scale, reps, rotary)
        return {"out": out, "lse": lse, "margin": margin, **reps}
    rep_keys, rep_values = store.expand(rep_semantic, rep_positional)

    out, lse = [], []
    for t in range(n):
        tokens, reps = visible(t, o)
        k = torch.cat([rep_keys[:reps], keys[tokens]])
        v = torch.cat([rep_values[:reps], values[tokens]])
        logits = scale * torch.einsum("hd,ihd->ih", store.q[t], k)
        logits[:reps] += rep_bias[:reps, None]
        total = torch.logsumexp(logits, dim=0)
        out.append(torch.einsum("ih,ihv->hv", torch.exp(logits - total), v))
        lse.append(total)
    return {"out": torch.stack(out), "lse": torch.stack(lse), "semantic": rep_semantic,
            "positional": rep_positional, "bias": rep_bias, "margin": margin}


def attention(tensors, options):
    """The whole operator.  tensors: an input file's tensors, options: its `lca` object (or
    None).  Returns (expected tensors in float64, margin)."""
    x = {k: v if k == "cu_seqlens" else v.to(torch.float64) for k, v in tensors.items()}
    o = {**DEFAULTS, **(options or {})}
    mla = "c" in x
    queries = x["q_nope"] if mla else x["q"]
    batch, n = queries.shape[:2]
    width = x["q_nope"].shape[-1] + x["q_rope"].shape[-1] if mla else queries.shape[-1]
    scale = float(o.get("scale", width ** -0.5))
    prompt = sum(o.get("prefill", [n]))
    cu = x["cu_seqlens"].tolist() if "cu_seqlens" in x else [0, n]
    rotary = None
    if o["positions"] == "entry":
        rotary = Rotary(x["rope_frequencies"], o["rope_layout"], x["q_rope" if mla else "q"].shape[-1])

    margin = math.inf
    per_batch = []
    for b in range(batch):
        stores = [MlaStore(x, b)] if mla else [GqaStore(x, b, kv) for kv in range(x["k"].shape[2])]
        per_store = []
        for store in stores:
            docs = [attend_document(store.slice(a, z), o, scale, prompt, rotary)
                    for a, z in zip(cu[:-1], cu[1:])]
            margin = min([margin] + [d.pop("margin") for d in docs])
            # documents follow one another, tokens and representatives alike
            per_store.append({k: torch.cat([d[k] for d in docs]) for k in docs[0]})
        entry = {k: torch.cat([s[k] for s in per_store], dim=1) for k in ("out", "lse")}
        for k in ("semantic", "positional", "bias"):
            entry[k] = per_store[0][k] if mla else torch.stack([s[k] for s in per_store], dim=1)
        per_batch.append(entry)

    result = {k: torch.stack([e[k] for e in per_batch]) for k in per_batch[0]}
    names = {"semantic": "rep_c", "positional": "rep_k_rope"} if mla else \
            {"semantic": "rep_v", "positional": "rep_k"}
    names["bias"] = "rep_bias"
    return {names.get(k, k): v.contiguous() for k, v in result.items()}, margin
