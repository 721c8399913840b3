#!/usr/bin/env python3
"""Attention over a whole prompt on one GPU: lca, cuDNN's dense attention (through PyTorch) and LCA in
Triton, at the same shapes and lengths, in one call.

    bench/peers/gpu_attention.py --lca build/cuda/bin/lca --lengths 8192,32768,131072 --json gpu.json

Prints a table in Markdown; --json keeps all numbers. Attention alone is compared: queries, keys, values
and representatives lie in memory. Medians between CUDA events; TFLOP/s count visible pairs only; g is
16, w is 1024."""

import argparse
import functools
import json
import math
import pathlib
import subprocess

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

# Heads, no-position width, RoPE width, value width; queries and keys of a block, warps, stages.
SHAPES = {"deepseek-v2-lite": (16, 128, 64, 128), "minicpm3": (40, 64, 32, 64)}
CONFIGS = [(128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3)]


@triton.jit
def sweep(acc, top, total, query_n, query_r, key_n, key_r, value, head, begin, end, rows, low, high,
          scale, H: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
          BN: tl.constexpr, MASKED: tl.constexpr):
    """The softmax goes on over keys [begin, end); query i sees those in [low[i], high[i])."""
    n, r, v = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    for start in range(begin, end, BN):
        column = start + tl.arange(0, BN)
        there = column < rows
        at = column.to(tl.int64)
        k_n = tl.load(key_n + (at * H + head)[None, :] * DN + n[:, None], mask=there[None, :], other=0.0)
        k_r = tl.load(key_r + at[None, :] * DR + r[:, None], mask=there[None, :], other=0.0)
        logit = tl.dot(query_r, k_r, tl.dot(query_n, k_n)) * scale
        if MASKED:
            seen = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
            logit = tl.where(seen, logit, -1.0e30)
        new_top = tl.maximum(top, tl.max(logit, 1))
        weight = tl.exp2(logit - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weight, 1)
        values = tl.load(value + (at * H + head)[:, None] * DV + v[None, :], mask=there[:, None], other=0.0)
        acc = tl.dot(weight.to(tl.bfloat16), values, acc * fade[:, None])
        top = new_top
    return acc, top, total


@triton.jit
def groups_at(n, G: tl.constexpr, W: tl.constexpr):
    return tl.where(n >= W + G, (n - W) // G, 0)


@triton.jit
def lca_prefill(q, key_n, key_r, value, rep_n, rep_r, rep_v, out, length, groups, scale,
                H: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr,
                G: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the heaviest first
    head = tl.program_id(1)
    row = tile * BM + tl.arange(0, BM)
    exists = row < length
    n, r, v = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    place = (row.to(tl.int64) * H + head)[:, None]
    query_n = tl.load(q + place * (DN + DR) + n[None, :], mask=exists[:, None], other=0.0)
    query_r = tl.load(q + place * (DN + DR) + DN + r[None, :], mask=exists[:, None], other=0.0)
    seen = groups_at(row + 1, G, W)
    first_seen = groups_at(tile * BM + 1, G, W)
    last_token = tl.minimum((tile + 1) * BM, length)
    last_seen = groups_at(last_token, G, W)
    acc, top, total = tl.zeros([BM, DV], tl.float32), tl.full([BM], -1.0e30, tl.float32), tl.zeros([BM], tl.float32)
    whole = first_seen // BN * BN  # representatives that every query of the tile sees
    acc, top, total = sweep(acc, top, total, query_n, query_r, rep_n, rep_r, rep_v, head, 0, whole,
                            groups, seen, seen, scale, H, DN, DR, DV, BN, False)
    acc, top, total = sweep(acc, top, total, query_n, query_r, rep_n, rep_r, rep_v, head, whole,
                            last_seen, groups, seen * 0, seen, scale, H, DN, DR, DV, BN, True)
    acc, top, total = sweep(acc, top, total, query_n, query_r, key_n, key_r, value, head,
                            first_seen * G // BN * BN, last_token, length, seen * G, row + 1, scale,
                            H, DN, DR, DV, BN, True)
    tl.store(out + place * DV + v[None, :], (acc / total[:, None]).to(tl.bfloat16), mask=exists[:, None])


def median_ms(call, budget_ms=1000):
    def times(count):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * count)]
        for begin, end in zip(events[::2], events[1::2]):
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return sorted(a.elapsed_time(b) for a, b in zip(events[::2], events[1::2]))
    taken = times(2)[0]
    return (found := times(min(200, max(3, math.ceil(budget_ms / taken)))))[len(found) // 2]


normal = functools.partial(torch.randn, device="cuda", dtype=torch.bfloat16)


def triton_problem(shape, length, group, window):
    heads, dn, dr, dv = shape
    groups = (length - window) // group if length >= window + group else 0
    exact, reps = ((normal(rows, heads, dn), normal(rows, dr), normal(rows, heads, dv))
                   for rows in (length, max(groups, 1)))
    out = torch.full((length, heads, dv), float("nan"), device="cuda", dtype=torch.bfloat16)
    return normal(length, heads, dn + dr), exact, reps, groups, out


def triton_launch(shape, problem, group, window, config):
    (heads, dn, dr, dv), (bm, bn, warps, stages) = shape, config
    q, exact, reps, groups, out = problem
    lca_prefill[(triton.cdiv(len(q), bm), heads)](
        q, *exact, *reps, out, len(q), groups, (dn + dr) ** -0.5 * math.log2(math.e), heads, dn, dr, dv,
        group, window, bm, bn, num_warps=warps, num_stages=stages)
    return out


def triton_error(shape, group, window, config):
    """The kernel against attention with a mask, at a length where all kinds of blocks occur."""
    problem = triton_problem(shape, length := 2 * window + 301, group, window)
    got = triton_launch(shape, problem, group, window, config).float()
    q, (k_n, k_r, v), (r_n, r_r, r_v), groups, _ = problem
    key = torch.cat([torch.cat([r_n, k_n]), torch.cat([r_r, k_r])[:, None].expand(-1, shape[0], -1)], 2)
    tokens = torch.arange(1, length + 1, device="cuda")
    seen = ((tokens - window) // group).clamp(min=0)[:, None]
    column = torch.arange(groups + length, device="cuda")[None]
    mask = torch.where(column < groups, column < seen,
                       (column - groups < tokens[:, None]) & (column - groups >= seen * group))
    logit = torch.einsum("thd,shd->hts", q.float(), key.float()) * (shape[1] + shape[2]) ** -0.5
    weight = logit.masked_fill(~mask, float("-inf")).softmax(-1)
    want = torch.einsum("hts,shd->thd", weight, torch.cat([r_v, v]).float())
    return ((got - want).norm() / want.norm()).item()


def triton_measure(shape, length, group, window):
    problem, found = triton_problem(shape, length, group, window), []
    for config in CONFIGS:
        try:
            launch = lambda: triton_launch(shape, problem, group, window, config)
            found.append((median_ms(launch, 300), config))
        except triton.runtime.errors.OutOfResources:  # no room for it on this GPU
            pass
    return min(found)


def cudnn_measure(shape, length):
    heads, dn, dr, dv = shape
    q, k, v = (normal(1, heads, length, width) for width in (dn + dr, dn + dr, dv))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return median_ms(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def ratio(a, b, unit=""):
    return "–" if None in (a, b) else f"{a / b:.3g}{unit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lca", default="build/cuda/bin/lca", help="the program, built by make cuda")
    parser.add_argument("--shape", default="deepseek-v2-lite", choices=SHAPES)
    parser.add_argument("--lengths", default="8192,32768,65536,131072")
    parser.add_argument("--json", default="gpu_attention.json", help="where all numbers go")
    parser.add_argument("more", nargs="*", help="further flags of lca bench attention, after --")
    flags = parser.parse_args()
    shape, group, window = SHAPES[flags.shape], 16, 1024
    ours = json.loads(subprocess.run(
        [flags.lca, "bench", "attention", "--backend", "cuda", "--json", "--shape", flags.shape, "--lengths",
         flags.lengths, *flags.more, "--group", str(group), "--window", str(window)],
        check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows, error, checked = [], None, None
    print("| tokens | lca ms | TFLOP/s | LCA in Triton ms | TFLOP/s | lca is | dense, lca ms | dense, cuDNN ms |"
          " lca's dense is | LCA over cuDNN |\n|" + " ---: |" * 10)
    for row in ours["rows"]:
        length, lca = row["length"], row["prefill"]["lca"]
        dense = row["prefill"].get("dense", {}).get("ms")
        work = lca["tflops"] * lca["ms"]  # 1e9 operations
        triton_ms, config = triton_measure(shape, length, group, window)
        if config != checked:
            checked, error = config, triton_error(shape, group, window, config)
        cudnn = cudnn_measure(shape, length) if length <= 131072 else None
        torch.cuda.empty_cache()
        cells = [length, *(ratio(lca[key], 1) for key in ("ms", "tflops")), ratio(triton_ms, 1),
                 ratio(work, triton_ms), ratio(triton_ms, lca["ms"], "×"), ratio(dense, 1),
                 ratio(cudnn, 1), ratio(cudnn, dense, "×"), ratio(cudnn, lca["ms"], "×")]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        rows.append({"length": length, "lca": row, "triton_ms": triton_ms, "cudnn_dense_ms": cudnn,
                     "triton_config": config, "triton_relative_error": error})
    print(f"\n{ours['gpu']}, {ours['date']}; PyTorch {torch.__version__}, Triton {triton.__version__}, cuDNN"
          f" {torch.backends.cudnn.version()}; the Triton kernel's relative error is {ratio(error, 1)}.")
    pathlib.Path(flags.json).write_text(json.dumps(
        {**ours, "rows": rows, "torch": torch.__version__, "triton": triton.__version__}, indent=1))


if __name__ == "__main__":
    main()
