"""A tiny Llama and a little data for the tests of lca.finetune."""

import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lca.data import MixOptions, PackOptions, RowOptions, Source, mix, pack, tokenizer_open, words

VOCABULARY = 260  # of the bytes tokenizer, and one more
LENGTH = 512


def tiny_llama(seed: int = 0, tied: bool = True, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=256, eos_token_id=256, pad_token_id=256,
        tie_word_embeddings=tied, initializer_range=0.1))


def make(folder):
    """folder/base, folder/packed, folder/mixed."""
    tiny_llama().save_pretrained(folder / "base")
    draw = random.Random(4)
    (folder / "books").mkdir()
    for number in range(4):
        text = "\n".join(" ".join(draw.choices(words.WORDS, k=12)) + "." for _ in range(60))
        (folder / "books" / f"{number}.txt").write_text(text)
    pack([Source("books", str(folder / "books"))], str(folder / "packed"), tokenizer_open("bytes"),
         PackOptions(keep=1.0), False)
    rows = RowOptions(LENGTH, tasks={"fact": 1.0}, values={"number": 1.0}, chat_share=0.0)
    mix(str(folder / "packed"), str(folder / "mixed"), MixOptions(rows, 16), None, False)
    return folder


def settings(folder, output, **changes):
    """A run of six steps in two stages."""
    small = {"data": str(folder / "mixed"), "length": LENGTH, "batch": 2, "window": 32}
    return {"model": str(folder / "base"), "output": str(output), "device": "cpu", "seed": 5,
            "attention": {"summary_queries": 4}, "lora": {"rank": 4, "alpha": 8},
            "optimizer": {"rate": 0.01, "warmup": 2}, "checkpoint": {"every": 2},
            "stages": [{**small, "tokens": 3 * 2 * LENGTH, "group": {"random": [2, 4]}},
                       {**small, "tokens": 3 * 2 * LENGTH, "group": 4, "window": {"random": [32, 64]}, "sink": 2}],
            **changes}
