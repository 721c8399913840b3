#!/usr/bin/env python3
"""One attention layer as training runs it, forward and backward, ours and its peers in one run on one GPU.

    bench/gpu/training.py OUT.json [--lengths 8192,32768,65536] [--shapes smollm2,deepseek-v2-lite] [--triton FILE]
                          [--no-flex]

Rows: our kernels (condense + attend), the same mechanism in eager PyTorch, FlexAttention compiled with LCA's
mask over representatives and tokens (our condensation counted on its side too), a Triton kernel (forward
only; FILE defines `fwd`), dense attention by every SDPA backend there is. DeepSeek-V2-Lite's layer without the
products that make keys and values of tokens; then SmolLM2's, 8K tokens, batch 8. Times are medians in ms, as
launched from Python, (gpu) replayed as a CUDA graph, and (host) until a call on an idle GPU returns; memory is the
peak in GiB with inputs and gradients. OUT.json is written after every row. Needs the lca package and PyTorch."""
import argparse
import gc
import importlib.util
import json
import pathlib
import statistics
import time

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import lca
from lca import reference

GROUP, WINDOW = 16, 1024
HEADS, NOPE, ROPE, VALUE, LATENT = 16, 128, 64, 128, 512
KNOBS = {"group": GROUP, "window": WINDOW}


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_()


def groups(length):
    return max(0, (length - WINDOW) // GROUP)


def pairs(length):
    """Query-key pairs of one head."""
    n = torch.arange(1, length + 1, dtype=torch.float64)
    m = ((n - WINDOW) // GROUP).clamp(min=0)
    return float((m + n - m * GROUP).sum())


def timed(call, seconds=1.0):
    """Median of repeated calls in ms, after two to warm up."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    times, until = [], time.time() + seconds
    while len(times) < 3 or (time.time() < until and len(times) < 50):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def replayed(call):
    """The same calls as one CUDA graph: what the GPU alone takes, without the time to launch from Python."""
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return timed(graph.replay, 0.5)


def returned(call):
    """How long the host takes to enqueue the call on an idle GPU: median in ms until it returns."""
    times = []
    for _ in range(32):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(times[2:])


class Mla:
    """DeepSeek-V2-Lite's layer; keys and values of tokens are given."""

    name, per_pair, batch = "deepseek-v2-lite", HEADS * 2 * (NOPE + ROPE + VALUE), 1

    def __init__(self, length):
        self.length = length
        self.q_nope, self.q_rope = random(1, length, HEADS, NOPE), random(1, length, HEADS, ROPE)
        self.c, self.k_rope = random(1, length, LATENT), random(1, length, ROPE)
        self.k_nope, self.v = random(1, length, HEADS, NOPE), random(1, length, HEADS, VALUE)
        self.w_uk = (random(HEADS, NOPE, LATENT) / 23).detach().requires_grad_()
        self.w_uv = (random(HEADS, VALUE, LATENT) / 23).detach().requires_grad_()
        self.inputs = [self.q_nope, self.q_rope, self.c, self.k_rope, self.k_nope, self.v, self.w_uk, self.w_uv]
        self.out_grad = random(1, length, HEADS, VALUE).detach()

    def up(self, rep_c):
        return torch.einsum("bmc,hdc->bmhd", rep_c, self.w_uk), torch.einsum("bmc,hdc->bmhd", rep_c, self.w_uv)

    def reps(self):
        rep_c, rep_k_rope, bias = lca.mla_condense(self.q_nope, self.q_rope, self.c, self.k_rope, self.w_uk, **KNOBS)
        rep_k_nope, rep_v = self.up(rep_c)
        return rep_k_nope, rep_k_rope, rep_v, bias

    def ours(self):
        return lca.mla_attention(self.q_nope, self.q_rope, self.c, self.k_rope, self.w_uk, self.w_uv,
                                 k_nope=self.k_nope, v=self.v, **KNOBS)

    def halves(self):
        rep_k_nope, rep_k_rope, rep_v, bias = self.reps()
        return lca.mla_attend(self.q_nope, self.q_rope, self.k_nope, self.k_rope, self.v, rep_k_nope, rep_k_rope,
                              rep_v, bias, **KNOBS)

    def eager(self):
        one = [x[0] for x in (self.q_nope, self.q_rope, self.c, self.k_rope)]
        rep_c, rep_k_rope, bias = reference.mla_condense(*one, self.w_uk, **KNOBS)
        rep_k_nope, rep_v = (x[0] for x in self.up(rep_c[None]))
        return reference.mla_attend(one[0], one[1], self.k_nope[0], one[3], self.v[0], rep_k_nope, rep_k_rope, rep_v,
                                    bias, **KNOBS)[0][None]

    def expanded(self):
        """Representatives and tokens side by side, per head: [1, H, m + n, …]."""
        rep_k_nope, rep_k_rope, rep_v, _ = self.reps()
        nope = torch.cat([rep_k_nope, self.k_nope], 1)
        rope = torch.cat([rep_k_rope, self.k_rope], 1)[:, :, None].expand(-1, -1, HEADS, -1)
        k, v = torch.cat([nope, rope], -1), torch.cat([rep_v, self.v], 1)
        q = torch.cat([self.q_nope, self.q_rope], -1)
        return [x.transpose(1, 2) for x in (q, k, v)]

    def dense_inputs(self):
        return [random(1, HEADS, self.length, NOPE + ROPE), random(1, HEADS, self.length, NOPE + ROPE),
                random(1, HEADS, self.length, VALUE)]


class Gqa:
    """SmolLM2's layer: 9 query heads, 3 KV heads, width 64."""

    name, per_pair = "smollm2", 9 * 2 * (64 + 64)

    def __init__(self, length, batch=8):
        self.length, self.batch = length, batch
        self.q = random(batch, length, 9, 64)
        self.k, self.v = random(batch, length, 3, 64), random(batch, length, 3, 64)
        self.inputs = [self.q, self.k, self.v]
        self.out_grad = random(batch, length, 9, 64).detach()

    def ours(self):
        return lca.attention(self.q, self.k, self.v, **KNOBS)

    def halves(self):
        return lca.attend(self.q, self.k, self.v, *lca.condense(self.q, self.k, self.v, **KNOBS), **KNOBS)

    def eager(self):
        return reference.attention(self.q, self.k, self.v, **KNOBS)

    def expanded(self):
        rep_k, rep_v, _ = lca.condense(self.q, self.k, self.v, **KNOBS)
        k, v = torch.cat([rep_k, self.k], 1), torch.cat([rep_v, self.v], 1)
        return [x.transpose(1, 2) for x in (self.q, k, v)]

    def dense_inputs(self):
        return [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (self.q, self.k, self.v)]


def block_mask_of(length, reps, size=128):
    """LCA's mask over [representatives, tokens] as FlexAttention's table of blocks, written down from the law itself:
    create_block_mask would look at every pair, which at 128K are 18 billion."""
    from torch.nn.attention.flex_attention import BlockMask

    def held(query):
        return torch.clamp((query + 1 - WINDOW) // GROUP, min=0)

    def sees(batch, head, query, key):
        token = key - reps
        return torch.where(key < reps, key < held(query), (token <= query) & (token >= held(query) * GROUP))

    first = torch.arange(0, length, size, device="cuda")[:, None]
    last = (first + size - 1).clamp(max=length - 1)
    rep = torch.arange(0, reps, size, device="cuda")[None]
    token = torch.arange(0, length, size, device="cuda")[None]
    end = (token + size - 1).clamp(max=length - 1)
    full = torch.cat([rep + size <= held(first), (end <= first) & (token >= held(last) * GROUP)], 1)
    some = torch.cat([rep < held(last), (token <= last) & (end >= held(first) * GROUP)], 1) & ~full

    def listed(blocks):
        """How many blocks each row of queries has, and their numbers in order, before all others."""
        return blocks.sum(1, dtype=torch.int32)[None, None], torch.argsort(
            (~blocks).to(torch.int8), dim=1, stable=True).to(torch.int32)[None, None]

    return BlockMask.from_kv_blocks(*listed(some), *listed(full), BLOCK_SIZE=size, mask_mod=sees,
                                    seq_lengths=(length, reps + length))


def flex_of(layer):
    """FlexAttention, compiled, with LCA's mask over [representatives, tokens]; representatives fill whole blocks."""
    from torch.nn.attention.flex_attention import flex_attention
    m, n = groups(layer.length), layer.length
    room = -(-m // 128) * 128

    def filled(x):
        return torch.cat([x[:, :, :m], x.new_zeros(*x.shape[:2], room - m, x.shape[3]), x[:, :, m:]], 2)

    mask = block_mask_of(n, room)
    attend = torch.compile(flex_attention, dynamic=False)

    def run():
        q, k, v = layer.expanded()
        if room > m:
            k, v = filled(k), filled(v)
        return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)

    return run


def dense_of(layer, backend):
    inputs = layer.dense_inputs()
    gqa = inputs[0].shape[1] != inputs[1].shape[1]

    def run():
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=gqa).transpose(1, 2)

    return run, inputs


def triton_of(layer, path):
    spec = importlib.util.spec_from_file_location("triton_peer", path)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    n, m = layer.length, groups(layer.length)
    q, k_nope, v = random(HEADS, n, NOPE + ROPE), random(HEADS, n, NOPE), random(HEADS, n, VALUE)
    k_rope, rep_rope = random(n, ROPE), random(m, ROPE)
    rep_nope, rep_v = random(HEADS, m, NOPE), random(HEADS, m, VALUE)
    out = torch.empty_like(v)

    def run():
        peer.fwd[((n + 127) // 128, HEADS)](q, k_nope, k_rope, v, rep_nope, rep_rope, rep_v, out, n, m,
                                            (NOPE + ROPE) ** -0.5, GROUP, WINDOW, 128, 64, NOPE, ROPE, VALUE,
                                            num_warps=8, num_stages=2)

    return run


class Table:
    def __init__(self, path):
        self.path = path
        self.result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "group": GROUP,
                       "window": WINDOW, "rows": []}

    def add(self, layer, name, make, backward=True):
        """Measures one row; what does not fit, or does not exist there, is a row that says so."""
        ours = name.startswith("ours")
        row = {"layer": layer.name, "length": layer.length, "batch": layer.batch, "name": name}
        gc.collect()
        torch.cuda.empty_cache()
        began = time.time()
        try:
            made = make()
            run, inputs = made if isinstance(made, tuple) else (made, layer.inputs)
            torch.cuda.reset_peak_memory_stats()
            with torch.no_grad():
                row["forward_ms"] = timed(run)
                if ours:
                    row["forward_host_ms"] = returned(run)
            if backward:
                def both():
                    for x in inputs:
                        x.grad = None
                    run().backward(layer.out_grad)
                row["both_ms"] = timed(both)
                if ours:
                    row["both_host_ms"] = returned(both)
            row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            try:
                with torch.no_grad():
                    row["forward_gpu_ms"] = replayed(run)
                if backward:
                    row["both_gpu_ms"] = replayed(both)
            except RuntimeError as error:  # what copies from the host cannot be captured
                row["graph"] = str(error).splitlines()[0][:160]
            best = min(row["forward_ms"], row.get("forward_gpu_ms", row["forward_ms"]))
            row["tflops"] = layer.batch * layer.per_pair * pairs(layer.length) / best / 1e9
            for x in inputs:
                x.grad = None
        except Exception as error:  # a peer that fails is a result
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        row["spent_s"] = round(time.time() - began, 1)
        self.result["rows"].append(row)
        self.path.write_text(json.dumps(self.result, indent=1) + "\n")
        figures = ", ".join(f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float))
        print(f"{layer.name} {layer.length} × {layer.batch} {name}: {row.get('error', figures)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--lengths", default="8192,32768,65536")
    parser.add_argument("--forward-lengths", default="131072,1048576", help="forward only, ours and Triton")
    parser.add_argument("--shapes", default="smollm2,deepseek-v2-lite")
    parser.add_argument("--triton", type=pathlib.Path)
    parser.add_argument("--no-flex", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    table = Table(options.out)
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION}

    def peers(layer, dense):
        table.add(layer, "ours", lambda: layer.ours)
        if layer.length <= 8192:
            table.add(layer, "ours, by halves", lambda: layer.halves)
        for name in dense:
            table.add(layer, f"dense {name}", lambda: dense_of(layer, backends[name]))
        if layer.length <= 8192 and layer.batch == 1:
            table.add(layer, "eager", lambda: layer.eager)
        if options.triton and isinstance(layer, Mla):
            table.add(layer, "triton", lambda: triton_of(layer, options.triton), backward=False)

    shapes = options.shapes.split(",")
    lengths = [int(x) for x in options.lengths.split(",")] if Mla.name in shapes else []
    if Gqa.name in shapes:
        peers(Gqa(8192), ["cudnn", "flash", "efficient"])
    for length in lengths:
        peers(Mla(length), ["cudnn"])
    for length in (int(x) for x in options.forward_lengths.split(",") if x and lengths):
        layer = Mla(length)
        table.add(layer, "ours", lambda: layer.ours, backward=length <= 131072)
        if options.triton:
            table.add(layer, "triton", lambda: triton_of(layer, options.triton), backward=False)
        del layer
    if not options.no_flex:  # last: compiling takes minutes
        for make in [lambda: Gqa(8192)] * (Gqa.name in shapes) + [lambda n=n: Mla(n) for n in lengths]:
            layer = make()
            table.add(layer, "flex", lambda: flex_of(layer))
            del layer
            gc.collect()


if __name__ == "__main__":
    main()
