#!/usr/bin/env python3
"""Writes quants/packing.safetensors: float32 values and the blocks that the `gguf` package
(pip install gguf safetensors) packs them into. `values` is F32; Q8_0 and Q4_0 are U8."""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from safetensors.numpy import save_file

import golden_files

FILE = "quants/packing.safetensors"
BLOCK = 32


def blocks(rng):
    """Ordinary blocks of many sizes, and those where rounding is delicate."""
    noise = rng.standard_normal((96, BLOCK))
    yield from noise * 2.0 ** rng.integers(-12, 6, (96, 1))
    yield from noise[:24].astype(np.float16)
    yield from (noise[:24].astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    yield from noise[:12] * 2.0 ** np.arange(-30, -18).reshape(-1, 1)  # scales below half precision
    yield np.zeros(BLOCK)
    yield -np.zeros(BLOCK)
    yield np.full(BLOCK, 0.3)
    yield np.where(np.arange(BLOCK) % 2, 1.0, -1.0)       # two of the largest: the first counts
    yield np.where(np.arange(BLOCK) % 2, -1.0, 1.0)
    halves = np.arange(BLOCK) - 15.5                      # halves, away from zero
    yield np.concatenate([halves[:-1], [127]])
    yield np.concatenate([halves[:-1], [-127]])
    yield np.concatenate([(np.arange(BLOCK - 1) - 15) / 2, [8]])
    yield np.concatenate([(np.arange(BLOCK - 1) - 15) / 2, [-8]])
    one = np.zeros(BLOCK)
    one[31] = -1e-3
    yield one
    yield noise[0] / abs(noise[0]).max() * 65504 * 8      # the largest scale of Q4_0
    yield noise[1] / abs(noise[1]).max() * 2.0 ** -14     # around the least normal half
    yield noise[2] / abs(noise[2]).max() * 2.0 ** -14 * 127


def edges(rng, wanted):
    """Blocks where Q4_0 would differ if a product were fused with the sum that follows it."""
    while wanted > 0:
        some = rng.standard_normal((4096, BLOCK)).astype(np.float16).astype(np.float32)
        largest = np.take_along_axis(some, abs(some).argmax(axis=1, keepdims=True), axis=1)
        factor = np.float32(1) / (largest / np.float32(-8))
        apart = np.trunc(some * factor + np.float32(8.5)) != np.trunc(
            (some.astype(np.float64) * factor.astype(np.float64) + 8.5).astype(np.float32))
        for block in some[apart.any(axis=1)][:wanted]:
            wanted -= 1
            yield block


def make(root):
    rng = np.random.default_rng(20240915)
    values = np.stack([np.asarray(block, dtype=np.float32)
                       for block in (*blocks(rng), *edges(rng, 8))])
    tensors = {"values": values.reshape(-1)}
    for kind in (Type.Q8_0, Type.Q4_0):
        tensors[kind.name] = np.ascontiguousarray(quants.quantize(values, kind)).reshape(-1)
    (root / FILE).parent.mkdir(exist_ok=True)
    save_file(tensors, root / FILE)


if __name__ == "__main__":
    golden_files.main(__doc__, make, [FILE])
