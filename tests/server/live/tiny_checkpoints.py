"""Tiny checkpoints with random weights, written by hand.

    llama   one token a byte, ChatML
    qwen2   the small vocabulary of tests/golden/tokenizers/qwen2.json, Qwen2.5's template with tools
"""

import json
import pathlib
import struct

import numpy

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
          "'<|im_end|>' + '\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
# Sizes of a checkpoint that reads some thousand tokens a second on one core.
SLOW = {"hidden": 128, "layers": 4, "heads": 4, "kv_heads": 1, "head": 32, "feed_forward": 256}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_letters():
    """The letter that byte-level vocabularies write for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def tokenizer_of_bytes():
    """A tokenizer.json with one token a byte, then the special ones."""
    tokenizer = json.loads((GOLDEN / "tokenizers" / "qwen2.json").read_text())
    tokenizer["model"]["vocab"] = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokenizer["model"]["merges"] = []
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [{**like, "id": 256 + at, "content": text} for at, text in enumerate(SPECIAL)]
    return tokenizer


def tokenizer_of_qwen():
    return json.loads((GOLDEN / "tokenizers" / "qwen2.json").read_text())


def template_of_qwen():
    styles = json.loads((GOLDEN / "tools" / "expected.json").read_text())["styles"]
    return next(style["template"] for style in styles if style["name"] == "qwen2.5")


def safetensors_bytes(tensors):
    header, data, at = {}, [], 0
    for name, values in tensors.items():
        raw = numpy.ascontiguousarray(values, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def safetensors_read(path):
    """The float32 tensors of a file."""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(raw, "<f4", offset=8 + length + at["data_offsets"][0],
                                   count=(at["data_offsets"][1] - at["data_offsets"][0]) // 4).reshape(at["shape"])
            for name, at in header.items()}


def checkpoint_make(folder, family="llama", context=4096, hidden=32, layers=2, heads=2, kv_heads=1, head=16,
                    feed_forward=48, seed=1):
    """Writes a checkpoint into a folder and returns it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of_bytes() if family == "llama" else tokenizer_of_qwen()
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    words = len(tokenizer["model"]["vocab"]) + len(special)
    random = numpy.random.default_rng(seed)

    def matrix(rows, columns, size):
        return (random.random((rows, columns), dtype=numpy.float32) * 2 - 1) * size

    inner = 0.4 * (32 / hidden) ** 0.5  # about the same spread of values for every width
    tensors = {"model.embed_tokens.weight": matrix(words, hidden, 1)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = numpy.ones(hidden)
        for name, width in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[at + f"self_attn.{name}_proj.weight"] = matrix(width * head, hidden, inner)
            if family == "qwen2":
                tensors[at + f"self_attn.{name}_proj.bias"] = matrix(1, width * head, 0.2)[0]
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, heads * head, inner)
        tensors[at + "post_attention_layernorm.weight"] = numpy.ones(hidden)
        tensors[at + "mlp.gate_proj.weight"] = matrix(feed_forward, hidden, inner)
        tensors[at + "mlp.up_proj.weight"] = matrix(feed_forward, hidden, inner)
        tensors[at + "mlp.down_proj.weight"] = matrix(hidden, feed_forward, inner)
    tensors["model.norm.weight"] = numpy.ones(hidden)
    tensors["lm_head.weight"] = matrix(words, hidden, 0.5 * (32 / hidden) ** 0.5)
    config = {"architectures": ["LlamaForCausalLM" if family == "llama" else "Qwen2ForCausalLM"], "model_type": family,
              "hidden_size": hidden, "intermediate_size": feed_forward, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": words,
              "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "use_sliding_window": False,
              "bos_token_id": special["<|endoftext|>"], "eos_token_id": special["<|im_end|>"],
              "torch_dtype": "float32"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                "chat_template": CHATML if family == "llama" else template_of_qwen()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder
