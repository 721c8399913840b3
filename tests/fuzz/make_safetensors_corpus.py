#!/usr/bin/env python3
"""Writes corpus/safetensors/: small operator files, right ones and wrong ones, to start from."""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "safetensors"
SIZES = {"F64": 8, "F32": 4, "BF16": 2, "I32": 4, "I64": 8, "U8": 1}


def data_of(dtype, count):
    values = [(i * 37 % 11 - 5) / 4 for i in range(count)]
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    code = {"F64": "d", "F32": "f"}[dtype]
    return struct.pack(f"<{count}{code}", *values)


def assemble(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def build(tensors, settings=None):
    """tensors: name → (dtype, shape) or (dtype, shape, bytes)."""
    header, data = {}, b""
    if settings is not None:
        header["__metadata__"] = {"lca": settings if isinstance(settings, str) else json.dumps(settings)}
    for name, (dtype, shape, *given) in tensors.items():
        count = 1
        for dim in shape:
            count *= dim
        piece = given[0] if given else data_of(dtype, count)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    return assemble(header, data)


def mla(b=1, n=4, h=2, dn=2, dr=2, dc=3, dv=2, dtype="F32", cached=None):
    cached = cached or dtype
    return {
        "q_nope": (dtype, [b, n, h, dn]),
        "q_rope": (dtype, [b, n, h, dr]),
        "c": (cached, [b, n, dc]),
        "k_rope": (cached, [b, n, dr]),
        "w_uk": (dtype, [h, dn, dc]),
        "w_uv": (dtype, [h, dv, dc]),
    }


def gqa(b=1, n=4, h=2, kv=1, d=2, dv=3, dtype="F32"):
    return {"q": (dtype, [b, n, h, d]), "k": (dtype, [b, n, kv, d]), "v": (dtype, [b, n, kv, dv])}


def int32(*values):
    return ("I32", [len(values)], struct.pack(f"<{len(values)}i", *values))


ALL = {
    "method": "lca", "group": 2, "window": 1, "sink": 1, "summary_queries": 2, "summary": "prompt",
    "head_reduce": "sum", "semantic_pool": "max", "positional_pool": "mean", "mass": "score",
    "scale": 0.5, "prefill": [2, 1],
}
ONE = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}

FILES = {
    "mla": build(mla()),
    "mla_all_settings": build(mla(), ALL),
    "mla_bf16": build(mla(dtype="BF16"), {"method": "dense"}),
    "mla_mixed": build(mla(b=2, dtype="F32", cached="BF16"), {"group": 1, "window": 1, "mass": "count"}),
    "mla_documents": build({**mla(), "cu_seqlens": int32(0, 1, 4)}, {"group": 1, "window": 1}),
    "mla_entry_positions": build(
        {**mla(), "rope_frequencies": ("F32", [1])},
        {**ALL, "positions": "entry", "rope_layout": "adjacent"},
    ),
    "gqa_entry_positions": build(
        {**gqa(d=4), "rope_frequencies": ("F32", [2])},
        {"group": 1, "window": 1, "positions": "entry", "rope_layout": "half"},
    ),
    "bad_entry_without_layout": build({**gqa(), "rope_frequencies": ("F32", [1])}, {"positions": "entry"}),
    "bad_token_with_frequencies": build({**gqa(), "rope_frequencies": ("F32", [1])}),
    "gqa": build(gqa()),
    "gqa_bf16": build(gqa(b=2, h=4, kv=2, dtype="BF16"), {"method": "window", "semantic_pool": "select"}),
    "gqa_documents": build({**gqa(), "cu_seqlens": int32(0, 2, 4)}, {"head_reduce": "max"}),
    "empty": assemble({}),
    "scalar": build({"a": ("F64", [])}),
    "zero_size": build({"a": ("F32", [2, 0])}),
    "bad_both_forms": build({**mla(), **gqa()}),
    "bad_missing": build({k: v for k, v in mla().items() if k != "c"}),
    "bad_unknown": build({**gqa(), "mask": ("F32", [1])}),
    "bad_heads": build(gqa(h=3, kv=2)),
    "bad_documents": build({**mla(), "cu_seqlens": int32(0, 3, 3, 4)}),
    "bad_prefill": build(gqa(), {"prefill": [4, 1]}),
    "bad_settings": build(gqa(), '{"group":1e999,"window":null}'),
    "bad_settings_twice": build(gqa(), '{"group":1,"group":2}'),
    "bad_settings_deep": build(gqa(), '{"prefill":' + "[" * 50),
    "bad_overlap": assemble({"a": ONE, "b": ONE}, b"xy"),
    "bad_hole": assemble({"a": ONE}, b"xyz"),
    "bad_offsets": assemble({"a": {**ONE, "data_offsets": [2, 0]}}, b"xy"),
    "bad_overflow": assemble({"a": {**ONE, "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}}),
    "bad_type": assemble({"a": {**ONE, "dtype": "F8_E4M3"}}, b"xy"),
    "bad_name": assemble({"\x1b[2J\n\u2028": 1}),
    "bad_utf8": assemble(b'{"\xff\xc0":1}'),
    "bad_deep": assemble(b'{"a":' + b"[" * 100),
    "bad_length": struct.pack("<Q", 1 << 63) + b"{}",
    "bad_truncated": build(mla())[:-3],
}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (FOLDER / name).write_bytes(content)
