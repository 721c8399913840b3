#!/usr/bin/env python3
"""Writes rope/rope.json: what transformers makes of every kind of rotary positions.

Each case holds the config.json of a small model, and for some lengths the frequencies and the
multiplier of cosines and sines.
"""

import json

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import golden_files

FILE = "rope/rope.json"
WIDTH = 16
BASE = {
    "model_type": "llama",
    "hidden_size": 2 * WIDTH,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 16,
    "max_position_embeddings": 2048,
}
SHORT = [1 + i / 8 for i in range(WIDTH // 2)]
LONG = [1.5 + i * i / 4 for i in range(WIDTH // 2)]
CASES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "default_theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic_factor_3": {"rope_type": "dynamic", "factor": 3.5, "rope_theta": 1000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn_whole": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False},
    "yarn_betas": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 16, "beta_slow": 2},
    "yarn_mscale": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn_attention_factor": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "attention_factor": 1.25},
    "longrope": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 512},
    "longrope_factor": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 16.0, "original_max_position_embeddings": 1024},
    "longrope_attention_factor": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.5, "original_max_position_embeddings": 512},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0},
    "llama3_other": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 16.0, "original_max_position_embeddings": 1024, "rope_theta": 50000.0},
}


def make(root):
    (root / "rope").mkdir(exist_ok=True)
    out = []
    for name, rope in CASES.items():
        config = LlamaConfig(**{k: v for k, v in BASE.items() if k != "model_type"}, rope_parameters=dict(rope))
        lengths = []
        for length in (1, 512, 513, 2048, 2049, 10000):
            if rope["rope_type"] == "default":
                inv_freq, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
            else:
                inv_freq, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
            lengths.append({"length": length, "multiplier": float(scale), "frequencies": [float(f) for f in inv_freq]})
        if all(l["frequencies"] == lengths[0]["frequencies"] for l in lengths):
            lengths = [lengths[0], lengths[-1]]
        out.append({"name": name, "config": {**BASE, "rope_parameters": rope}, "lengths": lengths})
    lines = ",\n".join(json.dumps(case) for case in out)
    (root / FILE).write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    golden_files.main(__doc__, make, [FILE])
