#!/usr/bin/env python3
"""Writes sampler/sampler.json: the probabilities that transformers' logits warpers leave."""

import json
import random

import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import golden_files

FILE = "sampler/sampler.json"
DEFAULTS = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 100},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7, "temperature": 0.8},
    {"temperature": 0.7, "top_k": 8, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.8, "top_k": 6, "top_p": 0.95, "min_p": 0.2},
]


def make(root):
    (root / "sampler").mkdir(exist_ok=True)
    random.seed(5)
    out = []
    for case in CASES:
        c = {**DEFAULTS, **case}
        logits = [round(random.gauss(0, 2), 3) for _ in range(14)]
        logits[3] = logits[9] = sorted(logits)[-3]  # equals
        history = [9, 2, 9, 11]
        scores, ids = torch.tensor([logits]), torch.tensor([history])
        scores = RepetitionPenaltyLogitsProcessor(c["repetition_penalty"])(ids, scores)
        scores = TemperatureLogitsWarper(c["temperature"])(ids, scores)
        if c["top_k"]:
            scores = TopKLogitsWarper(c["top_k"])(ids, scores)
        if c["top_p"] < 1:
            scores = TopPLogitsWarper(c["top_p"])(ids, scores)
        if c["min_p"]:
            scores = MinPLogitsWarper(c["min_p"])(ids, scores)
        probs = torch.softmax(scores.double(), -1)[0].tolist()
        out.append({**c, "logits": logits, "history": history, "probabilities": [round(p, 9) for p in probs]})
    (root / FILE).write_text(
        "[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n"
    )


if __name__ == "__main__":
    golden_files.main(__doc__, make, [FILE])
