#!/usr/bin/env python3
"""Writes corpus/gguf/: small GGUF files, valid and invalid, as seeds."""

import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "gguf"
U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, LIST, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
         I64: "q", F64: "d"}
# Number in the file → (values in a block, bytes of a block).
TYPES = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
         8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210)}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    return text(value) if kind == TEXT else struct.pack("<" + CODES[kind], value)


def value(kind, content):
    if isinstance(content, list):
        head = struct.pack("<IIQ", LIST, kind, len(content))
        return head + b"".join(scalar(kind, one) for one in content)
    return struct.pack("<I", kind) + scalar(kind, content)


def tensor(name, kind, dims, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(values, tensors=(), alignment=32, version=3, counts=None, data=None):
    """values: key → (type, content) or raw bytes; tensors: (name, type, dimensions)."""
    table, content = b"", b""
    for name, kind, dims in tensors:
        content += bytes(-len(content) % alignment)
        table += tensor(name, kind, dims, len(content))
        size = 1
        for dim in dims:
            size *= dim
        block, size_of_block = TYPES[kind]
        content += bytes((i * 37 + 11) % 120 for i in range(size // block * size_of_block))
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    for key, item in values.items():
        head += text(key) + (item if isinstance(item, bytes) else value(*item))
    head += table
    if tensors:
        head += bytes(-len(head) % alignment)
    return head + (content if data is None else data)


def model(arch, extra=None, **more):
    values = {
        "general.architecture": (TEXT, arch),
        f"{arch}.block_count": (U32, 2), f"{arch}.context_length": (U32, 128),
        f"{arch}.embedding_length": (U32, 32), f"{arch}.feed_forward_length": (U32, 48),
        f"{arch}.attention.head_count": (U32, 2),
        f"{arch}.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    }
    values.update({f"{arch}.{key}": item for key, item in (extra or {}).items()})
    values.update(more)
    return values


EMBEDDING = [("token_embd.weight", 8, [32, 6]), ("output_norm.weight", 0, [32])]
TOKENIZER = {
    "tokenizer.ggml.model": (TEXT, "gpt2"), "tokenizer.ggml.pre": (TEXT, "smollm"),
    "tokenizer.ggml.tokens": (TEXT, ["a", "b", "ab", "c", "<|e|>", "<0x0A>"]),
    "tokenizer.ggml.scores": (F32, [0.0, 0.0, -1.0, 0.0, 0.0, 0.0]),
    "tokenizer.ggml.token_type": (I32, [1, 1, 1, 1, 3, 6]),
    "tokenizer.ggml.merges": (TEXT, ["a b"]), "tokenizer.ggml.bos_token_id": (U32, 4),
    "tokenizer.ggml.eos_token_id": (U32, 4), "tokenizer.ggml.add_bos_token": (BOOL, True),
    "tokenizer.chat_template": (TEXT, "{{ messages }}"),
}
LLAMA = {"attention.head_count_kv": (U32, 1), "rope.freq_base": (F32, 1e5)}
LATENT = {"attention.kv_lora_rank": (U32, 16), "rope.dimension_count": (U32, 8)}
DEEPSEEK = {
    **LATENT, "attention.head_count_kv": (U32, 1), "attention.key_length": (U32, 24),
    "attention.value_length": (U32, 16), "attention.key_length_mla": (U32, 16),
    "attention.value_length_mla": (U32, 8), "rope.scaling.type": (TEXT, "yarn"),
    "rope.scaling.factor": (F32, 40.0), "rope.scaling.original_context_length": (U32, 32),
    "rope.scaling.yarn_log_multiplier": (F32, 0.0707), "leading_dense_block_count": (U32, 1),
    "expert_count": (U32, 4), "expert_used_count": (U32, 2), "expert_shared_count": (U32, 1),
    "expert_feed_forward_length": (U32, 32), "expert_gating_func": (U32, 1),
    "expert_weights_scale": (F32, 1.0), "expert_weights_norm": (BOOL, False),
}
OLD = {**{k: v for k, v in DEEPSEEK.items() if not k.endswith("_mla")},
       "attention.head_count_kv": (U32, 2), "attention.key_length": (U32, 16)}
MINICPM = {**LATENT, "attention.q_lora_rank": (U32, 16), "attention.key_length": (U32, 16)}
ONE = [("t", 0, [8])]

FILES = {
    "empty": build({}),
    "values": build({"a": (U8, 1), "b": (I8, -1), "c": (U16, 2), "d": (I16, -2), "e": (U32, 3),
                     "f": (I32, -3), "g": (F32, 0.5), "h": (BOOL, True), "i": (TEXT, "x"),
                     "j": (U64, 1 << 63), "k": (I64, -4), "l": (F64, 0.1), "m": (TEXT, ["", "y"]),
                     "n": (U64, [1, 1 << 63]), "o": (BOOL, [True, False]), "p": (I8, [])}),
    "tensors": build({}, [(f"t{kind}", kind, [block, 2]) for kind, (block, _) in TYPES.items()
                          if block < 256]),
    "tensors_k": build({}, [("q4", 12, [256]), ("q5", 13, [256]), ("q6", 14, [256])]),
    "alignment": build({"general.alignment": (U32, 8)}, [("a", 1, [3]), ("b", 1, [1])], 8),
    "llama": build(model("llama", LLAMA, **TOKENIZER), EMBEDDING),
    "llama_biases": build(model("llama", LLAMA), EMBEDDING + [
        ("blk.0.attn_q.bias", 0, [32]), ("output.weight", 8, [32, 6]),
        ("rope_freqs.weight", 0, [8])]),
    "llama_lists": build(model("llama", {"attention.head_count_kv": (U32, [1, 1])}), EMBEDDING),
    "llama_linear": build(model("llama", {"rope.scaling.type": (TEXT, "linear"),
                                          "rope.scaling.factor": (F32, 2.0)}), EMBEDDING),
    "qwen2": build(model("qwen2", LLAMA, **TOKENIZER), EMBEDDING),
    "deepseek2": build(model("deepseek2", DEEPSEEK), EMBEDDING),
    "deepseek2_old": build(model("deepseek2", OLD), EMBEDDING),
    "minicpm3": build(model("minicpm3", MINICPM), EMBEDDING + [
        ("rope_factors_long.weight", 0, [4]), ("rope_factors_short.weight", 0, [4])]),
    "tokenizer": build(TOKENIZER),
    "bad_magic": b"GGML" + build({})[4:],
    "bad_version": build({}, version=2),
    "bad_endian": build({}, version=0x03000000),
    "bad_counts": build({}, counts=(1 << 60, 1 << 60)),
    "bad_alignment": build({"general.alignment": (U32, 48)}),
    "bad_twice": build({"a": value(U8, 1) + text("a") + value(U8, 1)}, counts=(0, 2)),
    "bad_nested": build({"a": struct.pack("<IIQ", LIST, LIST, 1)}),
    "bad_list": build({"a": struct.pack("<IIQ", LIST, TEXT, 1 << 60)}),
    "bad_bool": build({"a": struct.pack("<IB", BOOL, 7)}),
    "bad_type": build({"a": struct.pack("<I", 99)}),
    "bad_name": build({"\x1b[2J\n": b"\xff" * 4}),
    "bad_utf8": build({"general.architecture": (TEXT, b"\xff\n")}, EMBEDDING),
    "bad_quant": build({}, counts=(1, 0)) + tensor("t", 10, [256], 0) + bytes(96),
    "bad_dims": build({}, counts=(1, 0)) + tensor("t", 0, [1 << 32, 1 << 32], 0),
    "bad_overlap": build({}, counts=(2, 0)) + tensor("a", 0, [8], 0) + tensor("b", 0, [8], 0) + bytes(96),
    "bad_offset": build({}, counts=(1, 0)) + tensor("a", 0, [8], 7) + bytes(96),
    "bad_architecture": build(model("gemma"), EMBEDDING),
    "bad_window": build(model("llama", {"attention.sliding_window": (U32, 8)}), EMBEDDING),
    "bad_split": build({"split.count": (U16, 3), "split.no": (U16, 1)}, ONE),
    "bad_truncated": build(model("llama", LLAMA), EMBEDDING)[:-5],
}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (FOLDER / name).write_bytes(content)
