#!/usr/bin/env python3
"""Golden files for `lca op attention`.

The first half of this script is a plain float64 implementation of latent-condensed
attention.  It is written to be read: every query gathers its own explicit set of keys
and takes one softmax over them.  No chunking, no cache, no absorbed weights and no
streaming, because those are what the golden files are there to check.

The second half lists the cases and writes, for each,
    op/NAME.safetensors           an input file of `lca op attention`
    op/NAME.expected.safetensors  what must come out, in float64

    python make_op.py            (re)write all files and the table in op/README.md
    python make_op.py --check    make everything again in memory and compare
    python make_op.py --list     print the table of cases

Everything is seeded from the case's name, so a second run gives the same bytes.
"""

import argparse
import json
import math
import pathlib
import sys
import zlib

import numpy as np
import torch
from safetensors.torch import load, save

torch.set_num_threads(1)

HERE = pathlib.Path(__file__).resolve().parent / "op"

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


def attend_document(store, o, scale, prompt):
    """One store, one document.  `margin` is the smallest relative gap between the two best
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

    margin = math.inf
    per_batch = []
    for b in range(batch):
        stores = [MlaStore(x, b)] if mla else [GqaStore(x, b, kv) for kv in range(x["k"].shape[2])]
        per_store = []
        for store in stores:
            docs = [attend_document(store.slice(a, z), o, scale, prompt)
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


# --------------------------------------------------------------------------------------
# Drawing inputs
# --------------------------------------------------------------------------------------

class Draw:
    """Normal numbers rounded to the stored dtype.  numpy's RandomState stream is frozen by
    its maintainers, which torch's and numpy's newer generators do not promise."""

    def __init__(self, seed, dtype):
        self.rng, self.dtype = np.random.RandomState(seed), dtype

    def raw(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape))

    def __call__(self, *shape, gain=1.0):
        return (gain * self.raw(*shape)).to(torch.float32).to(self.dtype)

    def queries(self, batch, n, heads, width, gain=1.0):
        # A component common to all tokens keeps the mean of many queries from vanishing,
        # which would make every group's scores nearly equal.
        x = self.raw(batch, n, heads, width) + self.raw(batch, 1, heads, width)
        return (gain * x).to(torch.float32).to(self.dtype)


def draw_mla(seed, batch, n, heads, d_n, d_r, d_c, d_v, dtype=torch.float32, gain=1.0):
    r = Draw(seed, dtype)
    return {
        "q_nope": r.queries(batch, n, heads, d_n, gain),
        "q_rope": r.queries(batch, n, heads, d_r, gain),
        "c": r(batch, n, d_c),
        "k_rope": r(batch, n, d_r),
        "w_uk": r(heads, d_n, d_c, gain=d_c ** -0.5),
        "w_uv": r(heads, d_v, d_c, gain=d_c ** -0.5),
    }


def draw_gqa(seed, batch, n, heads, kv, d, d_v, dtype=torch.float32, gain=1.0):
    r = Draw(seed, dtype)
    return {
        "q": r.queries(batch, n, heads, d, gain),
        "k": r(batch, n, kv, d),
        "v": r(batch, n, kv, d_v),
    }


# --------------------------------------------------------------------------------------
# Cases
# --------------------------------------------------------------------------------------

class Case:
    """options=None writes no `lca` key.  `zero_queries` are set to zero up to that position,
    so that the scores of the groups they summarise are exactly equal and `select` must take
    the lowest index.  `wanted` says whether a draw shows what the case is about."""

    def __init__(self, name, why, form, dims, n, options=None, batch=1, cu=None,
                 dtype=torch.float32, gain=1.0, zero_queries=0, metadata=None, wanted=lambda expected: True):
        self.name, self.why, self.form, self.dims, self.n = name, why, form, dims, n
        self.options, self.batch, self.cu, self.dtype = options, batch, cu, dtype
        self.gain, self.zero_queries, self.metadata = gain, zero_queries, metadata
        self.wanted = wanted

    def inputs(self, attempt):
        seed = zlib.crc32(f"{self.name}/{attempt}".encode())
        maker = draw_mla if self.form == "mla" else draw_gqa
        x = maker(seed, self.batch, self.n, *self.dims, dtype=self.dtype, gain=self.gain)
        for k in ("q_nope", "q_rope", "q"):
            if k in x:
                x[k][:, :self.zero_queries] = 0
        if self.cu:
            x["cu_seqlens"] = torch.tensor(self.cu, dtype=torch.int32)
        return x

    def make(self):
        """(bytes of the input file, bytes of the expected file)"""
        for attempt in range(1000):
            x = self.inputs(attempt)
            expected, margin = attention(x, self.options)
            # Close scores would let rounding decide which row `select` copies: draw again.
            if margin > 1e-3 and self.wanted(expected):
                break
        else:
            raise RuntimeError(f"{self.name}: no draw fits")
        for k, v in expected.items():
            assert torch.isfinite(v).all(), (self.name, k)
        # At most one metadata key per file: safetensors does not fix the order of several.
        metadata = self.metadata
        if self.options is not None:
            metadata = {"lca": json.dumps(self.options, separators=(",", ":"))}
        return save(x, metadata=metadata), save(expected)

    def row(self):
        names = ("H", "d_n", "d_r", "d_c", "d_v") if self.form == "mla" else ("H", "KV", "d", "d_v")
        dims = " ".join(f"{k}={v}" for k, v in zip(names, self.dims))
        kind = "bf16" if self.dtype == torch.bfloat16 else "f32"
        if self.options is None:
            opts = "no `lca` key"
        else:
            opts = "`" + json.dumps(self.options).replace('"', "") + "`"
        if self.cu:
            opts += f", cu_seqlens {self.cu}"
        return (f"| {self.name} | {self.form}, {kind}, B={self.batch} n={self.n} {dims} "
                f"| {opts} | {self.why} |")


POOLS = ("weighted", "mean", "max", "select")
MASSES = ("none", "count", "score")
REDUCES = ("mean", "sum", "max")
BIG = 2 ** 31 - 1


def cases():
    bf16 = torch.bfloat16
    out = []

    def mla(name, why, n, options, dims=(2, 4, 3, 9, 5), **more):
        out.append(Case("mla_" + name, why, "mla", dims, n, options, **more))

    def gqa(name, why, n, options, dims=(4, 2, 6, 5), **more):
        out.append(Case("gqa_" + name, why, "gqa", dims, n, options, **more))

    # Every pair of poolings in both forms; mass, reduction and sink go round with them.
    for i, sem in enumerate(POOLS):
        for j, pos in enumerate(POOLS):
            o = {"group": 4, "window": 5, "sink": (i + j) % 2, "summary_queries": 3,
                 "semantic_pool": sem, "positional_pool": pos,
                 "head_reduce": REDUCES[(i + 2 * j) % 3]}
            mla(f"pool_{sem}_{pos}", "pooling pair", 26, {**o, "mass": MASSES[(i + j) % 3]})
            gqa(f"pool_{sem}_{pos}", "pooling pair", 26, {**o, "mass": MASSES[(i + j + 1) % 3]})

    # mass x head_reduce, streaming and prompt
    for i, mass in enumerate(MASSES):
        for j, red in enumerate(REDUCES):
            o = {"group": 3, "window": 4, "summary_queries": 5, "head_reduce": red, "mass": mass}
            a, b = ("streaming", "prompt") if (i + j) % 2 else ("prompt", "streaming")
            mla(f"mass_{mass}_{red}", "mass and reduction", 23, {**o, "summary": a}, dims=(3, 4, 2, 8, 4))
            gqa(f"mass_{mass}_{red}", "mass and reduction", 23, {**o, "summary": b}, dims=(6, 2, 5, 4))

    # Sizes of the layout
    base = {"group": 4, "window": 6, "mass": "score"}
    mla("g1", "g = 1: equal to dense", 19, {"group": 1, "window": 3, "mass": "score"})
    gqa("g1_window1", "g = 1, w = 1, all poolings trivial", 17,
        {"group": 1, "window": 1, "sink": 2, "semantic_pool": "max", "positional_pool": "mean",
         "mass": "count", "summary": "prompt"})
    mla("g5_sink3", "odd g", 41, {"group": 5, "window": 7, "sink": 3, "mass": "score"}, batch=2)
    gqa("g7_sink2", "odd g", 52, {"group": 7, "window": 5, "sink": 2, "mass": "count"}, batch=2)
    mla("window1", "w = 1", 30, {"group": 4, "window": 1, "mass": "score"})
    gqa("window1_sink1", "w = 1", 30, {"group": 5, "window": 1, "sink": 1, "mass": "score"})
    mla("short_by_one", "n = s + w + g - 1: nothing condensed", 12, {**base, "sink": 3})
    mla("just_enough", "n = s + w + g: one group, seen by the last query alone", 13, {**base, "sink": 3})
    gqa("short_by_one", "n = s + w + g - 1: nothing condensed", 12, {**base, "sink": 3})
    gqa("just_enough", "n = s + w + g: one group, seen by the last query alone", 13, {**base, "sink": 3})
    mla("n1", "one token", 1, base)
    gqa("n1", "one token", 1, base, batch=2)
    mla("n1_sink", "one token, inside the sink", 1, {**base, "sink": 4})
    mla("sink_beyond_n", "sink > n", 15, {**base, "sink": 20})
    gqa("sink_beyond_n", "sink > n", 15, {**base, "sink": 16, "summary": "prompt"})
    mla("huge_numbers", "largest sink, window, group: sums must not overflow", 14,
        {"group": BIG, "window": BIG, "sink": BIG, "summary_queries": BIG})
    gqa("huge_window", "largest window", 14, {"group": 2, "window": BIG, "sink": 1})
    mla("long", "many groups", 100, {"group": 3, "window": 8, "sink": 4, "mass": "score"})

    # Summary queries
    for name, q in (("1", 1), ("below_g", 3), ("above_g", 13), ("beyond_start", 40), ("huge", BIG)):
        mla(f"nq_{name}", f"summary_queries = {q}", 34,
            {"group": 6, "window": 4, "summary_queries": q, "mass": "score"})
    gqa("nq_1", "summary_queries = 1", 34, {"group": 6, "window": 4, "summary_queries": 1})
    gqa("nq_above_g_prompt", "summary_queries > g", 34,
        {"group": 4, "window": 4, "summary_queries": 11, "summary": "prompt", "mass": "score"})
    gqa("nq_beyond_start_prompt", "summary_queries > n", 20,
        {"group": 4, "window": 4, "summary_queries": 25, "summary": "prompt"})

    # Head counts and widths
    mla("h1", "H = 1", 31, {"group": 4, "window": 6, "mass": "score"}, dims=(1, 5, 2, 8, 3))
    mla("h5_odd", "H = 5, odd widths", 31, {"group": 5, "window": 6, "sink": 1, "head_reduce": "max"},
        dims=(5, 7, 3, 13, 5))
    mla("wide_latent", "d_c above d_n + d_r, d_r = 1", 33, {"group": 8, "window": 9, "mass": "score"},
        dims=(2, 3, 1, 24, 7))
    mla("narrow", "every width 1", 27, {"group": 3, "window": 4, "mass": "score"}, dims=(1, 1, 1, 1, 1))
    mla("wide_rope", "d_r above d_c", 29, {"group": 4, "window": 5, "mass": "count"}, dims=(3, 2, 16, 4, 11))
    gqa("h1", "H = KV = 1", 31, {"group": 4, "window": 6, "mass": "score"}, dims=(1, 1, 8, 8))
    gqa("kv1", "KV = 1", 31, {"group": 4, "window": 6, "mass": "score", "head_reduce": "max"},
        dims=(5, 1, 7, 7))
    gqa("kv_is_h", "KV = H", 31, {"group": 4, "window": 6, "mass": "score"}, dims=(5, 5, 6, 6))
    gqa("share7", "7 query heads per KV head", 37, {"group": 5, "window": 7, "sink": 2, "mass": "score"},
        dims=(14, 2, 6, 6))
    gqa("share7_sum", "7 query heads per KV head, sum", 37,
        {"group": 5, "window": 7, "mass": "score", "head_reduce": "sum"}, dims=(14, 2, 6, 4))
    gqa("dv_above_d", "d_v > d", 30, {"group": 4, "window": 5}, dims=(4, 2, 3, 11))
    gqa("dv_below_d", "d_v < d", 30, {"group": 4, "window": 5, "mass": "score"}, dims=(4, 2, 13, 2))

    # Batches
    mla("batch3", "B = 3", 28, {"group": 4, "window": 5, "sink": 1, "mass": "score"}, batch=3)
    gqa("batch3_prompt", "B = 3", 28, {"group": 4, "window": 5, "summary": "prompt"}, batch=3)

    # Chunks and decoding.  In streaming mode they change nothing; in prompt mode P matters.
    mla("chunks_streaming", "chunks, all prefilled", 40,
        {"group": 4, "window": 6, "mass": "score", "prefill": [1, 7, 13, 19]})
    mla("decode_streaming", "chunks, then 19 decoded", 40,
        {"group": 4, "window": 6, "sink": 2, "mass": "score", "prefill": [9, 1, 11]}, batch=2)
    gqa("decode_streaming", "chunks, then 20 decoded", 40,
        {"group": 5, "window": 4, "sink": 1, "mass": "score", "prefill": [3, 17]}, batch=2)
    mla("decode_all_streaming", "a prompt of one token", 30,
        {"group": 4, "window": 3, "mass": "score", "prefill": [1]})
    mla("chunks_prompt", "chunks, all prefilled", 40,
        {"group": 4, "window": 6, "summary": "prompt", "mass": "score", "prefill": [5, 16, 19]})
    mla("decode_prompt", "groups leave the window while decoding", 44,
        {"group": 4, "window": 6, "sink": 1, "summary": "prompt", "summary_queries": 7,
         "mass": "score", "prefill": [10, 14]})
    gqa("decode_prompt", "groups leave the window while decoding", 44,
        {"group": 5, "window": 4, "summary": "prompt", "summary_queries": 6, "mass": "score",
         "prefill": [23]}, batch=2)
    mla("decode_prompt_edge", "P ends where a group leaves the window (e_j = P - 1)", 30,
        {"group": 4, "window": 6, "summary": "prompt", "summary_queries": 5, "mass": "score",
         "prefill": [18]})
    gqa("decode_prompt_edge", "P ends one token before a group leaves the window (e_j = P)", 30,
        {"group": 4, "window": 6, "summary": "prompt", "summary_queries": 5, "mass": "score",
         "prefill": [10, 7]})
    mla("decode_prompt_short", "prompt too short to condense, decoding condenses", 30,
        {"group": 4, "window": 6, "summary": "prompt", "mass": "score", "prefill": [2, 1]})
    gqa("decode_prompt_one", "prompt of one token", 26,
        {"group": 3, "window": 4, "sink": 2, "summary": "prompt", "mass": "score", "prefill": [1]})

    # The other methods
    mla("dense", "dense", 24, {"method": "dense", "group": 2, "window": 3, "mass": "count"}, batch=2)
    gqa("dense", "dense, chunks and decoding", 24,
        {"method": "dense", "group": 2, "window": 3, "sink": 1, "prefill": [5, 6]})
    mla("window", "window, no sink", 24, {"method": "window", "window": 7, "group": 2})
    mla("window_sink", "window with sink", 24, {"method": "window", "window": 6, "sink": 3, "prefill": [4, 9]},
        batch=2)
    gqa("window", "window, w = 1, no sink", 24, {"method": "window", "window": 1})
    gqa("window_sink", "window with sink", 24, {"method": "window", "window": 5, "sink": 4})
    gqa("window_sink_beyond_n", "window, sink > n", 9, {"method": "window", "window": 2, "sink": 11})

    # Packed documents
    cu = [0, 3, 34, 35, 60, 71]
    mla("packed", "documents of 3, 31, 1, 25, 11 tokens", 71,
        {"group": 4, "window": 6, "sink": 2, "mass": "score"}, cu=cu)
    gqa("packed", "documents of 3, 31, 1, 25, 11 tokens", 71,
        {"group": 5, "window": 4, "sink": 1, "summary_queries": 20, "mass": "score"}, cu=cu)
    mla("packed_select", "summary queries clipped at document starts", 60,
        {"group": 4, "window": 2, "summary_queries": 9, "semantic_pool": "select", "mass": "score"},
        cu=[0, 20, 40, 60])
    mla("packed_one", "one document: as if not packed", 30, {"group": 4, "window": 5, "mass": "count"},
        cu=[0, 30])
    mla("packed_short", "no document long enough", 22, {"group": 4, "window": 6}, cu=[0, 9, 13, 22])
    gqa("packed_dense", "dense inside each document", 30, {"method": "dense"}, cu=[0, 11, 12, 30])
    mla("packed_window", "window and sink inside each document", 40,
        {"method": "window", "window": 5, "sink": 2}, cu=[0, 4, 23, 40])

    # Scale, and scores that overflow (or underflow) a careless exp
    mla("scale", "custom scale", 33, {"group": 4, "window": 6, "mass": "score", "scale": 0.0722})
    gqa("scale_integer", "custom scale, written as an integer", 33,
        {"group": 4, "window": 6, "mass": "score", "scale": 1})
    mla("large_scores", "scores of about +-200", 30,
        {"group": 5, "window": 4, "sink": 1, "mass": "score"}, gain=60.0)
    gqa("large_scores", "scores of about +-200", 30,
        {"group": 5, "window": 4, "mass": "score", "positional_pool": "weighted"}, gain=60.0)
    mla("large_bias", "members score far above the representative: b_j is large", 30,
        {"group": 5, "window": 4, "sink": 1, "mass": "score", "semantic_pool": "mean",
         "positional_pool": "mean", "head_reduce": "sum"}, gain=60.0)
    gqa("large_negative_bias", "the representative scores far above its members in some groups: b_j < -100", 30,
        {"group": 5, "window": 4, "mass": "score", "semantic_pool": "max", "positional_pool": "max"},
        dims=(4, 2, 2, 3), gain=60.0, wanted=lambda expected: expected["rep_bias"].min() < -100)
    mla("equal_scores", "zero queries: exact ties, lowest index", 26,
        {"group": 4, "window": 5, "summary_queries": 4, "semantic_pool": "select", "mass": "score"},
        zero_queries=26)
    gqa("equal_scores", "zero queries in the first half only", 26,
        {"group": 4, "window": 5, "summary_queries": 1, "mass": "score"}, zero_queries=13)

    # Defaults
    mla("no_metadata", "no metadata at all", 20, None)
    gqa("no_lca_key", "metadata without the key `lca`", 20, None, metadata={"format": "pt"})
    mla("empty_object", "`{}`: every field missing", 20, {})
    gqa("defaults_condensed", "no metadata, long enough for window 1024 and group 16", 1075, None,
        dims=(1, 1, 4, 2))
    mla("defaults_condensed", "only mass given, long enough for window 1024 and group 16", 1058,
        {"mass": "score"}, dims=(1, 2, 2, 4, 2))
    mla("preset_paper_small", "preset `paper` with a small window", 70,
        {"method": "lca", "group": 16, "window": 20, "sink": 0, "summary_queries": 16,
         "summary": "prompt", "head_reduce": "mean", "semantic_pool": "weighted",
         "positional_pool": "select", "mass": "none"}, dims=(4, 6, 4, 16, 6))
    gqa("preset_training_free_small", "preset `training-free` with a small window", 90,
        {"method": "lca", "group": 16, "window": 20, "sink": 16, "summary_queries": 16,
         "summary": "streaming", "head_reduce": "mean", "semantic_pool": "select",
         "positional_pool": "select", "mass": "score"}, dims=(4, 2, 8, 8))

    # bfloat16 inputs
    mla("bf16", "bfloat16", 41, {"group": 4, "window": 6, "sink": 2, "mass": "score"}, dtype=bf16,
        dims=(3, 6, 4, 16, 6))
    mla("bf16_prompt", "bfloat16", 41, {"group": 5, "window": 7, "summary": "prompt", "prefill": [12, 13],
                                        "semantic_pool": "select"}, dtype=bf16, batch=2)
    mla("bf16_packed", "bfloat16", 45, {"group": 4, "window": 4, "mass": "count"}, dtype=bf16,
        cu=[0, 5, 30, 45])
    gqa("bf16", "bfloat16", 41, {"group": 4, "window": 6, "sink": 2, "mass": "score"}, dtype=bf16,
        dims=(7, 1, 8, 6))
    gqa("bf16_max", "bfloat16", 41, {"group": 7, "window": 6, "head_reduce": "max", "mass": "score",
                                     "positional_pool": "max", "semantic_pool": "mean"}, dtype=bf16, batch=2)
    gqa("bf16_dense", "bfloat16", 20, {"method": "dense"}, dtype=bf16)
    return out


# --------------------------------------------------------------------------------------
# Writing and checking
# --------------------------------------------------------------------------------------

BEGIN, END = "<!-- cases: written by make_op.py -->", "<!-- end of cases -->"


def table(all_cases):
    head = ["| case | input | options | what it is for |", "| --- | --- | --- | --- |"]
    return "\n".join(head + [c.row() for c in all_cases])


def readme_with_table(text, all_cases):
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(all_cases)}\n{END}{after}"


def file_names(case):
    return HERE / f"{case.name}.safetensors", HERE / f"{case.name}.expected.safetensors"


def write(all_cases):
    wanted = set()
    total = 0
    for case in all_cases:
        for path, data in zip(file_names(case), case.make()):
            path.write_bytes(data)
            wanted.add(path)
            total += len(data)
    for path in HERE.glob("*.safetensors"):
        if path not in wanted:
            path.unlink()  # left from a case that no longer exists
    readme = HERE / "README.md"
    readme.write_text(readme_with_table(readme.read_text(), all_cases))
    print(f"{len(all_cases)} cases, {len(wanted)} files, {total} bytes")


def same_up_to_rounding(a, b):
    """Another processor or torch may round a float64 sum differently: same names, shapes and
    dtypes, and values within 1e-12 of the tensor's largest."""
    a, b = load(a), load(b)
    if {k: (v.shape, v.dtype) for k, v in a.items()} != {k: (v.shape, v.dtype) for k, v in b.items()}:
        return False
    return all((a[k] - b[k]).abs().max() <= 1e-12 * max(1.0, b[k].abs().max()) for k in a if a[k].numel())


def check(all_cases):
    """Inputs must be the same bytes.  Expected values too, or be equal up to float64 rounding,
    which is then said."""
    bad, rounded = [], []
    wanted = set()
    for case in all_cases:
        for path, data, exact in zip(file_names(case), case.make(), (True, False)):
            wanted.add(path)
            stored = path.read_bytes() if path.exists() else None
            if stored == data:
                continue
            if stored is not None and not exact and same_up_to_rounding(data, stored):
                rounded.append(path.name)
            else:
                bad.append(f"{path.name}: " + ("absent" if stored is None else "differs"))
    bad += [f"{p.name}: no such case" for p in sorted(HERE.glob("*.safetensors")) if p not in wanted]
    text = (HERE / "README.md").read_text()
    if readme_with_table(text, all_cases) != text:
        bad.append("README.md: table of cases is out of date")
    for line in bad:
        print(line)
    print(f"{len(wanted)} files: {len(wanted) - len(bad) - len(rounded)} identical, "
          f"{len(rounded)} equal up to float64 rounding, {len(bad)} wrong")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description="Make or check the golden files.")
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    parser.add_argument("--list", action="store_true", help="print the table of cases")
    args = parser.parse_args()
    all_cases = cases()
    assert len({c.name for c in all_cases}) == len(all_cases)
    if args.list:
        print(table(all_cases))
        return 0
    if args.check:
        return check(all_cases)
    write(all_cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
