#!/usr/bin/env python3
"""Writes quants/quants.safetensors: random blocks of every storage type, and the float32 values
that the `gguf` package (pip install gguf safetensors) unpacks from them. NAME.bytes is U8,
NAME.values F32."""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from safetensors.numpy import save_file

import golden_files

FILE = "quants/quants.safetensors"
# Scales at the edges of binary16: zeros, subnormals, the least normal, ones, the largest.
EDGES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF],
                 dtype=np.uint16)
# Byte offsets of the binary16 numbers in a block, and blocks to make.
LAYOUTS = {
    Type.Q4_0: ([0], 72), Type.Q4_1: ([0, 2], 72), Type.Q5_0: ([0], 72), Type.Q5_1: ([0, 2], 72),
    Type.Q8_0: ([0], 72), Type.Q4_K: ([0, 2], 24), Type.Q5_K: ([0, 2], 24), Type.Q6_K: ([208], 24),
}
QUANTISED = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)  # what the package can make


def random_blocks(rng, kind, count):
    """Raw blocks: every byte pattern, ordinary and extreme scales, all finite."""
    offsets, _ = LAYOUTS[kind]
    size = quants.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[0] = 0
    blocks[1] = 255
    blocks[2] = np.arange(size) * 37 % 256  # each byte value once, where there is room
    for column, offset in enumerate(offsets):
        scales = (rng.standard_normal(count) * 0.01).astype(np.float16).view(np.uint16)
        edges = np.roll(EDGES, column * 3)
        scales[3:3 + len(edges)] = edges
        blocks[:, offset:offset + 2] = scales.reshape(-1, 1).view(np.uint8)
    return blocks


def make(root):
    rng = np.random.default_rng(20240914)
    tensors = {}

    def add(name, raw, values):
        tensors[f"{name}.bytes"] = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        tensors[f"{name}.values"] = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        assert np.isfinite(tensors[f"{name}.values"]).all(), name

    for kind, (_, count) in LAYOUTS.items():
        raw = random_blocks(rng, kind, count)
        if kind in QUANTISED:
            plain = rng.standard_normal((8, 32)).astype(np.float32)
            plain[7] = 0
            raw = np.concatenate([raw, quants.quantize(plain, kind).reshape(8, -1)])
        add(kind.name, raw, quants.dequantize(raw, kind))

    halves = rng.integers(0, 0x7C00, 1000).astype(np.uint16)
    halves[::2] |= 0x8000
    halves = np.concatenate([halves, EDGES])
    add("F16", halves, halves.view(np.float16).astype(np.float32))
    brains = rng.integers(0, 0x7F80, 1000).astype(np.uint16)
    brains[::2] |= 0x8000
    add("BF16", brains, (brains.astype(np.uint32) << 16).view(np.float32))
    plain = rng.standard_normal(1000).astype(np.float32)
    add("F32", plain, plain)

    (root / FILE).parent.mkdir(exist_ok=True)
    save_file(tensors, root / FILE)


if __name__ == "__main__":
    golden_files.main(__doc__, make, [FILE])
