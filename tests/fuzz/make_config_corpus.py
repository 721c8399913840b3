#!/usr/bin/env python3
"""Writes corpus/config/ and corpus/adapter/: small seed files, valid and invalid."""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus"

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "vocab_size": 100, "max_position_embeddings": 256}
MOE = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": None,
       "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
FOUR = [1, 1.5, 2, 3.25]
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 64, "rope_theta": 500000.0}
CONFIGS = {
    "llama": {"model_type": "llama", **SMALL, "lca": {"group": [1, 2, 3], "method": "dense"}},
    "llama_llama3": {"model_type": "llama", **SMALL, "rope_parameters": LLAMA3},
    "llama_linear": {"model_type": "llama", **SMALL, "rope_scaling": {"type": "linear", "factor": 2}},
    "llama_dynamic": {"model_type": "llama", **SMALL, "rope_scaling": {"type": "dynamic", "factor": 2}},
    "llama_longrope": {"model_type": "llama", **SMALL, "rope_scaling": {
        "type": "longrope", "short_factor": FOUR, "long_factor": FOUR, "factor": 4,
        "original_max_position_embeddings": 64}},
    "qwen2": {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "layer_types": ["full_attention"] * 3,
              "eos_token_id": [1, 2], "bos_token_id": None},
    "deepseek_v2": {"model_type": "deepseek_v2", **SMALL, **MOE, "rope_theta": 10000, "rope_scaling": {
        "type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32,
        "beta_slow": 1, "truncate": False, "attention_factor": None, "original_max_position_embeddings": 64}},
    "minicpm3": {"model_type": "minicpm3", **SMALL, "num_key_value_heads": 4, "scale_depth": 1.4, "scale_emb": 12, "dim_model_base": 8},
    "settings": {"method": ["lca", "dense", "window"], "group": 4, "window": [8, 16, 32], "mass": "count"},
    "bad_sliding": {"model_type": "qwen2", "use_sliding_window": True, "head_dim": 1e300},
    "bad_type": {"model_type": "mistral", "hidden_act": "gelu", "partial_rotary_factor": 0.5},
}


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape) in tensors.items():
        count = shape[0] * shape[1]
        piece = struct.pack(f"<{count}f", *[i / 8 for i in range(count)])
        if dtype != "F32":
            piece = piece[: 2 * count]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def adapter(config, tensors, settings=None):
    a = json.dumps(config, separators=(",", ":")).encode()
    b = json.dumps(settings, separators=(",", ":")).encode() if settings is not None else b""
    return struct.pack("<HH", len(a), len(b)) + a + b + safetensors(tensors)


def pair(module, rank, dtype="F32", infix=""):
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A{infix}.weight": (dtype, [rank, 3]), f"{name}.lora_B{infix}.weight": (dtype, [2, rank])}


LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
ADAPTERS = {
    "plain": adapter(LORA, pair("model.layers.0.self_attn.q_proj", 2)),
    "patterns": adapter({**LORA, "use_rslora": True, "rank_pattern": {"q_proj": 1, "[kv]_(a|b)": 3},
                         "alpha_pattern": {r"layers\.\d+\.v": 8.5}},
                        {**pair("a.q_proj", 1, "BF16"), **pair("layers.1.v", 2, "F16"), **pair("x.k_a", 3)}),
    "settings": adapter(LORA, pair("q", 2, infix=".default"), {"group": [2, 4], "window": 16}),
    "bad_dora": adapter({**LORA, "use_dora": True, "bias": "all"}, pair("q", 2)),
    "bad_rank": adapter(LORA, pair("q", 3)),
    "bad_tensor": adapter(LORA, {"base_model.model.q.lora_embedding_A": ("F32", [2, 2])}),
    "bad_pattern": adapter({**LORA, "rank_pattern": {"(((": 1}}, pair("q", 2)),
}


def main():
    for folder, files in {
        "config": {name: json.dumps(config).encode() for name, config in CONFIGS.items()},
        "adapter": ADAPTERS,
    }.items():
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (FOLDER / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
