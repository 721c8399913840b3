"""The cases of op/: how their inputs are drawn, and what each is for."""

import json
import zlib

import numpy as np
import torch
from safetensors.torch import save

from op_attention import attention

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
                 dtype=torch.float32, gain=1.0, zero_queries=0, metadata=None, base=100.0, wanted=lambda expected: True):
        self.name, self.why, self.form, self.dims, self.n = name, why, form, dims, n
        self.options, self.batch, self.cu, self.dtype = options, batch, cu, dtype
        self.gain, self.zero_queries, self.metadata = gain, zero_queries, metadata
        self.wanted, self.base = wanted, base

    def inputs(self, attempt):
        seed = zlib.crc32(f"{self.name}/{attempt}".encode())
        maker = draw_mla if self.form == "mla" else draw_gqa
        x = maker(seed, self.batch, self.n, *self.dims, dtype=self.dtype, gain=self.gain)
        for k in ("q_nope", "q_rope", "q"):
            if k in x:
                x[k][:, :self.zero_queries] = 0
        if self.cu:
            x["cu_seqlens"] = torch.tensor(self.cu, dtype=torch.int32)
        if (self.options or {}).get("positions") == "entry":
            width = x["q_rope" if self.form == "mla" else "q"].shape[-1]
            x["rope_frequencies"] = torch.tensor([self.base ** (-2 * i / width) for i in range(width // 2)],
                                                 dtype=torch.float32)
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
    return out + entry_cases()


def entry_cases():
    """Positions of entries; layouts go round with the rest."""
    bf16 = torch.bfloat16
    out = []

    def add(form, name, why, n, options, **more):
        dims = more.pop("dims", (2, 4, 6, 9, 5) if form == "mla" else (4, 2, 6, 5))
        layout = ("half", "adjacent")[(len(out) // 2 + len(out)) % 2]  # each form meets both
        out.append(Case(f"{form}_entry_{name}", why, form, dims, n,
                        {**options, "positions": "entry", "rope_layout": layout}, **more))

    def both(name, why, n, options, **more):
        add("mla", name, why, n, options, **more)
        add("gqa", name, why, n, options, **more)

    for i, pos in enumerate(POOLS):
        for j, mass in enumerate(MASSES):
            both(f"pool_{pos}_{mass}", "positional pooling and mass", 34,
                 {"group": 4, "window": 5, "sink": (i + j) % 3, "summary_queries": 3, "mass": mass,
                  "semantic_pool": POOLS[(i + j) % 4], "positional_pool": pos,
                  "head_reduce": REDUCES[(i + 2 * j) % 3]})
    base = {"group": 4, "window": 6, "mass": "score"}
    both("short_by_one", "nothing condensed: as with token positions", 12, {**base, "sink": 3})
    both("just_enough", "one group, seen by the last query alone", 13, {**base, "sink": 3})
    both("g1", "g = 1: entries are tokens", 19, {"group": 1, "window": 3, "sink": 1, "mass": "score"})
    both("sink_beyond_n", "sink > n", 15, {**base, "sink": 20})
    both("long", "many groups: positions far behind the tokens'", 150,
         {"group": 7, "window": 8, "sink": 4, "mass": "score", "prefill": [40, 1, 61]})
    both("decode", "chunks, then decoded", 44, {"group": 5, "window": 4, "sink": 2, "prefill": [3, 17]}, batch=2)
    both("prompt", "summary `prompt`", 44, {"group": 5, "window": 4, "sink": 1, "summary": "prompt",
                                            "summary_queries": 6, "mass": "score", "prefill": [23]})
    both("window", "sink, then window", 30, {"method": "window", "window": 6, "sink": 3, "prefill": [4, 9]})
    both("window_no_sink", "window alone: as with token positions", 20, {"method": "window", "window": 5})
    both("dense", "dense: as with token positions", 20, {"method": "dense"})
    both("packed", "every document counts from 0", 71, {"group": 4, "window": 6, "sink": 2, "mass": "score"},
         cu=[0, 3, 34, 35, 60, 71])
    both("slow", "frequencies of a base of 1,000,000", 60, {"group": 8, "window": 6, "sink": 1}, base=1e6)
    add("gqa", "odd_width", "the last channel is not rotated", 40, {"group": 4, "window": 5, "sink": 1},
        dims=(4, 2, 7, 5))
    add("mla", "odd_width", "the last channel is not rotated", 40, {"group": 4, "window": 5, "sink": 1},
        dims=(2, 4, 5, 9, 5))
    add("gqa", "preset", "preset `training-free` with a small window", 150,
        {"method": "lca", "group": 16, "window": 20, "sink": 16, "summary_queries": 16, "summary": "streaming",
         "head_reduce": "mean", "semantic_pool": "select", "positional_pool": "select", "mass": "score"},
        dims=(4, 2, 8, 8))
    both("bf16", "bfloat16", 60, {"group": 4, "window": 6, "sink": 2, "mass": "score", "prefill": [40]}, dtype=bf16)
    both("bf16_weighted", "bfloat16", 60, {"group": 5, "window": 6, "sink": 2, "positional_pool": "weighted"},
         dtype=bf16)
    return out
