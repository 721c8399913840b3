#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_tokenizer: tiny tokenizers that use every kind of step."""

import json
import pathlib

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus" / "tokenizer"


def base(**parts):
    tree = {
        "added_tokens": [
            {"id": 6, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True},
            {"id": 9, "content": "<x>", "single_word": True, "lstrip": True, "rstrip": True,
             "normalized": True, "special": False}],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "Ġ": 5, "<s>": 6,
                                           "▁": 7, "▁ab": 8},
                  "merges": ["a b", "ab c", "▁ ab"]}}
    tree["model"].update(parts.pop("model", {}))
    tree.update(parts)
    return tree


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}}
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}

SEEDS = {
    "byte_level": base(pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL, post_processor=BYTE_LEVEL),
    "qwen": base(normalizer={"type": "NFC"}, decoder=BYTE_LEVEL,
                 pre_tokenizer={"type": "Sequence", "pretokenizers": [
                     split({"Regex": QWEN2}), {"type": "Digits", "individual_digits": True},
                     dict(BYTE_LEVEL, use_regex=False, add_prefix_space=False)]},
                 post_processor={"type": "Sequence", "processors": [BYTE_LEVEL, TEMPLATE]},
                 model={"ignore_merges": True, "merges": [["a", "b"], ["ab", "c"]]}),
    "sentencepiece": base(
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE]},
        decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        post_processor=TEMPLATE, model={"unk_token": "<s>", "fuse_unk": True, "byte_fallback": True}),
    "metaspace": base(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                     "split": True},
                      decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}),
    "behaviours": base(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        split({"String": "b"}, "MergedWithPrevious"), split({"Regex": "[ac]"}, "MergedWithNext", True),
        split({"Regex": "\\s"}, "Removed"), split({"Regex": "x*"}, "Contiguous")]}),
    "forms": base(normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"},
        {"type": "Replace", "pattern": {"Regex": "[^\\S\\n]+"}, "content": " "}]},
        decoder={"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 1}]},
        bos_token="<s>", eos_token={"content": "<s>"}, add_bos_token=True, add_eos_token=True),
}
GGUF = "<unk>\na\nb\nab\n▁\n▁a\n<0x41>\nĠ\nabc\na b\nab c\n\nx"


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    for number, (name, tree) in enumerate(SEEDS.items()):
        options = bytes([(0x83 if name == "forms" else 0x03) + (number & 4)])
        text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        (CORPUS / f"{name}.json").write_bytes(options + text.encode())
    for pre in range(8):
        (CORPUS / f"gguf_{pre}").write_bytes(bytes([(pre << 4 & 0x7f) | 3]) + GGUF.encode())
    (CORPUS / "gguf_scores").write_bytes(bytes([0x0b]) + GGUF.encode())


if __name__ == "__main__":
    main()
