"""Tiny llama and qwen2 checkpoints with golden logits."""

import torch
from transformers import LlamaConfig, Qwen2Config

from make_models_common import (MODELS, draw_tokens, golden_logits, new_model, save_model, say,
                                write_golden, write_twin)

THETA = {"rope_theta": 10000.0}
# Rope cases: two heads of 16 channels, so eight frequency pairs.
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=16, vocab_size=96, max_position_embeddings=128,
             rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
# The base of the GGUF, adapter and LCA cases: every row a multiple of 32.
BASE = {**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2}


def factors(start, step):
    return [round(start + step * i, 3) for i in range(8)]


def rope(kind, theta=10000.0, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **fields}}


YARN = dict(factor=4.0, original_max_position_embeddings=24)
LONG = dict(short_factor=factors(1.0, 0.07), long_factor=factors(1.1, 0.9),
            original_max_position_embeddings=24)

# name: (config, n, lengths of further goldens, dtype, shard size, key of the twin's rope type)
LLAMA = {
    "llama": (BASE, 64, [], torch.float32, None, "type"),
    "llama_linear": ({**SMALL, **rope("linear", factor=2.5)}, 50, [], torch.float32, None, "type"),
    "llama_dynamic": ({**SMALL, "max_position_embeddings": 24, **rope("dynamic", factor=3.0)},
                      50, [20], torch.float32, None, "type"),
    "llama_yarn": ({**SMALL, "max_position_embeddings": 96, **rope("yarn", **YARN)},
                   60, [20], torch.float32, None, "type"),
    "llama_yarn_attention_factor": (
        {**SMALL, "max_position_embeddings": 96,
         **rope("yarn", theta=50.0, attention_factor=0.85, beta_fast=2.0, beta_slow=0.25, **YARN)},
        60, [], torch.float32, None, "rope_type"),
    "llama_yarn_mscale": (
        {**SMALL, "max_position_embeddings": 96,
         **rope("yarn", mscale=1.3, mscale_all_dim=0.6, **YARN)}, 60, [], torch.float32, None, "type"),
    "llama_yarn_untruncated": (
        {**SMALL, "max_position_embeddings": 96,
         **rope("yarn", theta=50.0, truncate=False, beta_fast=2.0, beta_slow=0.25, **YARN)},
        60, [], torch.float32, None, "rope_type"),
    "llama_longrope": ({**SMALL, "max_position_embeddings": 96, **rope("longrope", **LONG)},
                       60, [24, 25], torch.float32, None, "both"),
    "llama_longrope_factor": (
        {**SMALL, "max_position_embeddings": 96, **rope("longrope", factor=7.0, **LONG)},
        40, [], torch.float32, None, "type"),
    "llama_longrope_attention_factor": (
        {**SMALL, "max_position_embeddings": 96,
         **rope("longrope", attention_factor=1.4, **LONG)}, 40, [], torch.float32, None, "type"),
    "llama_llama3": (
        {**SMALL, "max_position_embeddings": 128,
         **rope("llama3", theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=24)}, 60, [], torch.float32, None, "rope_type"),
    "llama_head_dim": ({**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
                        **rope("default", theta=300.0)}, 48, [], torch.float32, None, "type"),
    "llama_bias": ({**SMALL, "attention_bias": True, "mlp_bias": True}, 48, [], torch.float32, None, "type"),
    "llama_tied": ({**SMALL, "tie_word_embeddings": True}, 48, [], torch.float32, None, None),
    "llama_mha": ({**SMALL, "num_key_value_heads": 2}, 48, [], torch.float32, None, None),
    "llama_gqa3": ({**SMALL, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
                    "head_dim": 8}, 48, [], torch.float32, None, None),
    "llama_bf16": (SMALL, 48, [], torch.bfloat16, None, "type"),
    "llama_f16": (SMALL, 48, [], torch.float16, None, "type"),
    "llama_sharded": ({**SMALL, "num_hidden_layers": 3}, 48, [], torch.float32, "40KB", None),
    "llama_sharded_bf16": (SMALL, 48, [], torch.bfloat16, "20KB", None),
}

QWEN = {**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": None, "max_window_layers": 1,
        "use_sliding_window": False, "sliding_window": 8}
QWEN2 = {
    "qwen2": (QWEN, 64, [], torch.float32, None, "type"),
    "qwen2_bf16": ({**QWEN, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
                    **rope("default", theta=1000000.0)}, 48, [], torch.bfloat16, None, "type"),
    "qwen2_tied_yarn": ({**QWEN, "tie_word_embeddings": True, "max_position_embeddings": 96,
                         **rope("yarn", **YARN)}, 60, [], torch.float32, None, "type"),
}


def make(name, config_class, fields, n, more, dtype, shard, twin):
    fields = {k: v for k, v in fields.items() if v is not None}
    config = config_class(**fields)
    model = new_model(config, name, dtype)
    folder = MODELS / name
    save_model(model, folder, **({"max_shard_size": shard} if shard else {}))
    tokens = draw_tokens(name, n, config.vocab_size)
    logits, noise = golden_logits(model, tokens)
    write_golden(folder, tokens, logits)
    say(name, logits, noise)
    for short in more:
        part, noise = golden_logits(model, tokens[:short])
        write_golden(folder, tokens[:short], part, f"golden_{short}.safetensors")
        say(f"{name} [{short}]", part, noise, f"differs from the longer run by {(part - logits[:short]).abs().max():.2g}")
    if twin:
        # Published Qwen2 files name a window that they do not use.
        extra = {"sliding_window": 8, "layer_types": None} if config.model_type == "qwen2" else None
        write_twin(folder, model, tokens, logits, twin, extra)
    return model


def make_all(only=""):
    for config_class, cases in ((LlamaConfig, LLAMA), (Qwen2Config, QWEN2)):
        for name, case in cases.items():
            if only in name:
                make(name, config_class, *case)


if __name__ == "__main__":
    make_all()
