#!/usr/bin/env python3
"""Golden files of gradients: automatic differentiation of op_attention.py.

Written are, for each case,
    backward/NAME.safetensors           an input file of `lca op backward`
    backward/NAME.expected.safetensors  the gradients that must come out, in float64

    python make_backward.py            (re)write all files and the table in backward/README.md
    python make_backward.py --check    make everything again in memory and compare
    python make_backward.py --list     print the table of cases
"""

import json
import sys
import zlib

import torch
from safetensors.torch import save

import make_op
import op_attention
from op_cases import Case, Draw, MASSES, POOLS, REDUCES

MARGIN = 1e-3


class Choices:
    """Notes, while attention runs, how far every choice is from its runner-up."""

    def __enter__(self):
        self.margin = float("inf")
        self.kept = op_attention.scores, op_attention.pool

        def scores(q_bar, keys, scale, how):
            if how == "max":
                self.note(scale * torch.einsum("hd,ihd->ih", q_bar, keys), 1)
            return self.kept[0](q_bar, keys, scale, how)

        def pool(rows, s, how):
            if how == "max":
                self.note(rows, 0)
            if how == "select":
                self.note(s, 0)
            return self.kept[1](rows, s, how)

        op_attention.scores, op_attention.pool = scores, pool
        return self

    def __exit__(self, *_):
        op_attention.scores, op_attention.pool = self.kept

    def note(self, values, dim):
        if values.shape[dim] > 1:
            best = values.detach().topk(2, dim).values
            self.margin = min(self.margin, (best.select(dim, 0) - best.select(dim, 1)).min().item())


class BackwardCase(Case):
    def make(self):
        """(bytes of the input file, bytes of the expected file)"""
        for attempt in range(1000):
            stored = self.inputs(attempt)
            x = {k: v if k in ("cu_seqlens", "rope_frequencies") else v.to(torch.float64).requires_grad_()
                 for k, v in stored.items()}
            with Choices() as choices:
                result, _ = op_attention.attention(x, self.options)
            if choices.margin > MARGIN:
                break
        else:
            raise RuntimeError(f"{self.name}: no draw fits")
        seed = zlib.crc32(f"{self.name}/grad_out/{attempt}".encode())
        stored["grad_out"] = Draw(seed, self.dtype)(*result["out"].shape)
        (result["out"] * stored["grad_out"].to(torch.float64)).sum().backward()
        expected = {f"d_{k}": v.grad for k, v in x.items() if v.requires_grad}
        for k, v in expected.items():
            assert torch.isfinite(v).all() and v.abs().max() > 1e-3, (self.name, k)
        metadata = {"lca": json.dumps(self.options, separators=(",", ":"))}
        return save(stored, metadata=metadata), save(expected)


def cases():
    out = []

    def both(name, why, n, options, **more):
        for form, dims in (("mla", (2, 3, 4, 6, 3)), ("gqa", (4, 2, 4, 3))):
            mine = options
            if options.get("positions") == "entry":
                layout = ("half", "adjacent")[(len(out) // 2 + len(out)) % 2]  # each form meets both
                mine = {**options, "rope_layout": layout}
            out.append(BackwardCase(f"{form}_{name}", why, form, dims, n, mine, **more))

    # Pooling pairs; mass, reduction, sink, summary and positions go round with them.
    for i, sem in enumerate(POOLS):
        for j, pos in enumerate(POOLS):
            both(f"pool_{sem}_{pos}", "pooling pair", 16,
                 {"group": 3, "window": 3, "sink": (i + j) % 2, "summary_queries": 2, "semantic_pool": sem,
                  "positional_pool": pos, "head_reduce": REDUCES[(i + 2 * j) % 3],
                  "mass": MASSES[(i + j + 2) % 3], "summary": ("streaming", "prompt")[(2 * i + j) % 3 == 1],
                  "positions": ("token", "entry")[(i + j // 2) % 2]})
    for i, red in enumerate(REDUCES):
        both(f"score_{red}", "mass by scores: the representative's own score", 15,
             {"group": 4, "window": 2, "summary_queries": 3, "head_reduce": red, "mass": "score",
              "positions": ("token", "entry")[i % 2]})
    both("packed", "packed documents", 26, {"group": 3, "window": 3, "sink": 1, "summary_queries": 3, "mass": "score"},
         cu=[0, 9, 11, 12, 26])
    both("packed_entry", "every document counts from 0", 26,
         {"group": 3, "window": 3, "sink": 1, "summary_queries": 3, "positions": "entry"}, cu=[0, 13, 26])
    both("batch", "two sequences share the weights", 13, {"group": 3, "window": 2, "summary_queries": 20}, batch=2)
    both("scale", "softmax scale of its own", 14, {"group": 2, "window": 2, "mass": "count", "scale": 0.9})
    both("short", "nothing condensed", 8, {"group": 4, "window": 6, "mass": "score"})
    both("g1", "g = 1", 9, {"group": 1, "window": 2, "sink": 1, "mass": "score"})
    both("dense", "dense", 9, {"method": "dense"})
    both("window", "window", 12, {"method": "window", "window": 3, "sink": 2, "positions": "entry"})
    both("bf16", "bfloat16 inputs", 18, {"group": 4, "window": 3, "sink": 1, "mass": "score"}, dtype=torch.bfloat16)
    return out


if __name__ == "__main__":
    sys.exit(make_op.main(make_op.HERE / "backward", cases()))
