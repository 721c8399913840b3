"""The default model as a Hugging Face folder, in float32.

    python -m lca.export smollm2 DIR

Reads a GGUF file of the Llama architecture (by name or path) whose weights are F32, F16, Q8_0, Q4_0 or Q4_1, and
writes config.json, model.safetensors, tokenizer.json, tokenizer_config.json and generation_config.json. The
weights are the file's own, so that transformers computes the same logits.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import struct
import sys

import numpy

from lca.engine import model_path

# GGUF's types of metadata: code -> struct format.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Types of tensors: code -> values in a block, bytes of a block.
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


class GgufFile:
    """Metadata and tensors of a GGUF file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        if self._bytes[:4] != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        self._at = 8  # magic and version
        tensors, fields = self._number("Q"), self._number("Q")
        self.fields = {}
        for _ in range(fields):
            name = self._string()
            self.fields[name] = self._value(self._number("I"))
        places = {}
        for _ in range(tensors):
            name = self._string()
            shape = [self._number("Q") for _ in range(self._number("I"))][::-1]
            places[name] = (shape, self._number("I"), self._number("Q"))
        alignment = self.fields.get("general.alignment", 32)
        start = -(-self._at // alignment) * alignment
        self._places = {name: (shape, kind, start + offset) for name, (shape, kind, offset) in places.items()}

    def names(self):
        return list(self._places)

    def tensor(self, name):
        """One tensor in float32."""
        shape, kind, start = self._places[name]
        if kind not in _BLOCKS:
            raise ValueError(f"{name} has type {kind}; this reads F32, F16, Q8_0, Q4_0 and Q4_1")
        values, size = _BLOCKS[kind]
        blocks = int(numpy.prod(shape)) // values
        raw = numpy.frombuffer(self._bytes, numpy.uint8, blocks * size, start).reshape(blocks, size)
        return _unpack(raw, kind).reshape(shape)

    def _number(self, code):
        value, = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self):
        length = self._number("Q")
        text = self._bytes[self._at:self._at + length]
        self._at += length
        return text.decode("utf-8")

    def _value(self, kind):
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._number("I"), self._number("Q")
            return [self._value(inner) for _ in range(count)]
        return self._number(_SCALARS[kind])


def _unpack(raw, kind):
    """Blocks [count, bytes] to float32 values, as ggml does."""
    if kind == 0:
        return raw.view("<f4").copy()
    if kind == 1:
        return raw.view("<f2").astype(numpy.float32)
    scale = raw[:, :2].copy().view("<f2").astype(numpy.float32)
    if kind == 8:
        return scale * raw[:, 2:].view(numpy.int8).astype(numpy.float32)
    packed = raw[:, 2:] if kind == 2 else raw[:, 4:]
    nibbles = numpy.concatenate([packed & 15, packed >> 4], axis=1).astype(numpy.float32)
    if kind == 2:
        return scale * (nibbles - 8)
    return scale * nibbles + raw[:, 2:4].copy().view("<f2").astype(numpy.float32)


_LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
          "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
          "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _tensor_name(name):
    stem = name.removesuffix(".weight")
    if stem in _TOP:
        return f"{_TOP[stem]}.weight"
    block, layer, part = stem.split(".")
    if block != "blk" or part not in _LAYER:
        raise ValueError(f"tensor {name} is none of a Llama model's")
    return f"model.layers.{layer}.{_LAYER[part]}.weight"


def _halves(weight, heads):
    """Rows of queries or keys from adjacent pairs, which GGUF keeps, to the halves of Hugging Face."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return numpy.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def config_of(fields, tied):
    """config.json."""
    take = lambda name: fields[f"llama.{name}"]
    heads = take("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "torch_dtype": "float32",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]), "hidden_size": take("embedding_length"),
        "intermediate_size": take("feed_forward_length"), "num_hidden_layers": take("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": take("embedding_length") // heads, "hidden_act": "silu",
        "max_position_embeddings": take("context_length"),
        "rms_norm_eps": float(f"{take('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": fields.get("llama.rope.freq_base", 10000.0), "rope_scaling": None,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def tokenizer_of(fields):
    """tokenizer.json of a byte-level BPE tokenizer that splits digits, and tokenizer_config.json."""
    if fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] not in ("smollm", "starcoder"):
        raise ValueError(f"the tokenizer is {fields['tokenizer.ggml.model']}/{fields['tokenizer.ggml.pre']}; "
                         "this writes byte-level BPE of SmolLM's kind")
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    special = [i for i, kind in enumerate(kinds) if kind in (3, 4)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": kinds[i] == 3} for i in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]},
    }
    name = lambda role: tokens[fields[f"tokenizer.ggml.{role}_token_id"]]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False,
              "clean_up_tokenization_spaces": False, "bos_token": name("bos"), "eos_token": name("eos"),
              "unk_token": name("unknown"), "pad_token": name("padding"),
              "model_max_length": fields["llama.context_length"],
              "chat_template": fields.get("tokenizer.chat_template")}
    return tokenizer, config


def write_safetensors(path, tensors):
    """Writes {name: (shape, function that makes the float32 array)} one tensor after another."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in tensors.items():
        size = 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, make in tensors.values():
            file.write(numpy.ascontiguousarray(make(), "<f4").data)


def export(model: str | os.PathLike, folder: str | os.PathLike) -> pathlib.Path:
    """Writes the model into `folder` and returns it."""
    file = GgufFile(model_path(model))
    fields = file.fields
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"the architecture is {fields.get('general.architecture')}; this writes Llama models")
    config = config_of(fields, "output.weight" not in file.names())
    tokenizer, tokenizer_config = tokenizer_of(fields)

    def maker(name):
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        count = heads.get(name.split(".")[-2])
        return (lambda: _halves(file.tensor(name), count)) if count else (lambda: file.tensor(name))

    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer),
                          ("tokenizer_config.json", tokenizer_config), ("generation_config.json", generation)):
        (target / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_safetensors(target / "model.safetensors",
                      {_tensor_name(name): (file._places[name][0], maker(name)) for name in file.names()})
    return target


def main(arguments=None):
    options = argparse.ArgumentParser(prog="python -m lca.export", description=__doc__.split("\n")[0])
    options.add_argument("model", help="smollm2, or the path of a .gguf file")
    options.add_argument("folder", metavar="DIR", help="where the folder is written")
    args = options.parse_args(arguments)
    try:
        print(export(args.model, args.folder))
    except (OSError, ValueError) as error:
        sys.exit(f"lca.export: {error}")


if __name__ == "__main__":
    main()
