#!/usr/bin/env python3
"""Writes a tiny checkpoint with a tokenizer and a chat template, and a document to ask about.

    make_model.py TOKENIZER.json FOLDER

Two layers of random weights (a fixed generator, so that every run writes the same bytes), the
vocabulary of TOKENIZER.json, and settings under which the document is condensed. The document is
FOLDER/document.txt.
"""

import array
import json
import pathlib
import struct
import sys

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FEED_FORWARD, VOCABULARY = 2, 32, 2, 1, 16, 48, 807

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 801,
    "eos_token_id": 802,
    "torch_dtype": "float32",
    "lca": {"method": "lca", "group": 4, "window": 32, "sink": 2, "summary_queries": 4},
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def noise(count, seed, size):
    state = (seed * 0x9E3779B97F4A7C15 + 1) % 2**64
    values = array.array("f")
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append(size * ((state >> 40) / 8388608.0 - 1))
    return values


def tensors():
    """Yields (name, shape, values)."""
    seed = 0

    def matrix(name, rows, columns, size):
        nonlocal seed
        seed += 1
        return name, [rows, columns], noise(rows * columns, seed, size)

    def norm(name):
        return name, [HIDDEN], array.array("f", [1.0] * HIDDEN)

    yield matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN, 1)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield norm(at + "input_layernorm.weight")
        yield matrix(at + "self_attn.q_proj.weight", HEADS * HEAD, HIDDEN, 0.4)
        yield matrix(at + "self_attn.k_proj.weight", KV_HEADS * HEAD, HIDDEN, 0.4)
        yield matrix(at + "self_attn.v_proj.weight", KV_HEADS * HEAD, HIDDEN, 0.4)
        yield matrix(at + "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD, 0.4)
        yield norm(at + "post_attention_layernorm.weight")
        yield matrix(at + "mlp.gate_proj.weight", FEED_FORWARD, HIDDEN, 0.4)
        yield matrix(at + "mlp.up_proj.weight", FEED_FORWARD, HIDDEN, 0.4)
        yield matrix(at + "mlp.down_proj.weight", HIDDEN, FEED_FORWARD, 0.4)
    yield norm("model.norm.weight")
    yield matrix("lm_head.weight", VOCABULARY, HIDDEN, 0.5)


def safetensors():
    header, body = {}, b""
    for name, shape, values in tensors():
        if sys.byteorder == "big":
            values.byteswap()
        data = values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def main():
    tokenizer, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    (folder / "model.safetensors").write_bytes(safetensors())
    lines = [f"On day {day} the keeper counted {day * 37 % 101} ships." for day in range(1, 25)]
    (folder / "document.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
