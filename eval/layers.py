#!/usr/bin/env python3
"""Which layers need fine groups: the loss of text when one layer at a time is condensed, the others dense.

    eval/layers.py MODEL WINDOWS OUT.json [--length 8192] [--groups 4,8,16,32] [--window 1024] [--rows 32]

MODEL is a Hugging Face folder (python -m lca.export smollm2 DIR), WINDOWS a folder of text (eval/text/windows.py). For
every layer and group size OUT has the mean loss of the later half of the tokens minus that of dense attention, the same
for all layers at once, and sizes by layer that hold as many representatives as group 16 in all layers: spent on the
layers that lose most, by a greedy search over the measured losses.
"""
import argparse
import json
import pathlib
import sys
import time

import torch

import lca
from lca.finetune.kernels import kernels_for

FAR = 1 << 20  # a window that nothing leaves


def rows_of(folder, tokenizer, length, count):
    """Token ids [count, length] of the texts' beginnings."""
    rows = []
    for path in sorted(folder.rglob("*.txt")):
        ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
        if len(ids) >= length:
            rows.append(ids[:length])
    step = max(1, len(rows) // count)
    return torch.tensor(rows[::step][:count])


class Losses:
    def __init__(self, model, ids, batch):
        self.model, self.head = model, model.get_output_embeddings().weight
        self.ids, self.batch = ids, batch

    @torch.no_grad()
    def __call__(self, **knobs):
        """Mean loss of the later half of all rows."""
        half, total = self.ids.shape[1] // 2, 0.0
        for ids in self.ids.split(self.batch):
            with lca.override(self.model, **knobs):
                hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            hidden = hidden[:, half - 1:-1].flatten(0, 1)
            target = ids[:, half:].flatten()
            for at in range(0, len(hidden), 8192):
                logits = hidden[at:at + 8192] @ self.head.T
                total += float(kernels_for(hidden).divergence(logits, None, target[at:at + 8192], False)[1].sum())
        return total / (self.ids.shape[0] * half)


def chosen(table, groups, layers, budget):
    """Group sizes by layer: starting with the largest everywhere, the step that wins most a representative is taken
    while the budget lasts."""
    sizes = [max(groups)] * layers
    while True:
        best, gain = None, 0.0
        spent = sum(1 / size for size in sizes)
        for layer, size in enumerate(sizes):
            for finer in (each for each in groups if each < size):
                cost = 1 / finer - 1 / size
                won = (table[size][layer] - table[finer][layer]) / cost
                if spent + cost <= budget + 1e-9 and won > gain:
                    best, gain = (layer, finer), won
        if best is None:
            return sizes
        sizes[best[0]] = best[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("windows", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--groups", default="4,8,16,32")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    lca.patch(model, "training")
    ids = rows_of(options.windows, tokenizer, options.length, options.rows).cuda()
    losses, layers = Losses(model, ids, options.batch), model.config.num_hidden_layers
    groups = [int(each) for each in options.groups.split(",")]
    began = time.time()
    dense = losses(method="dense")
    told = {"rows": len(ids), "length": options.length, "window": options.window, "dense": dense, "all": {}, "one": {}}
    for group in groups:
        told["all"][group] = losses(group=group, window=options.window, positions="entry") - dense
        told["one"][group] = [losses(group=[group] * layers, positions="entry", window=[
            options.window if each == layer else FAR for each in range(layers)]) - dense for layer in range(layers)]
        print(f"group {group}: all {told['all'][group]:.4f}, sum of layers {sum(told['one'][group]):.4f}, "
              f"{time.time() - began:.1f} s", flush=True)
        print("  " + " ".join(f"{each:+.4f}" for each in told["one"][group]), flush=True)
    told["chosen"] = {f"from {min(some)}": chosen(told["one"], some, layers, layers / 16)
                      for some in ([each for each in groups if each >= least] for least in groups if least <= 16)}
    for name, sizes in told["chosen"].items():
        told.setdefault("chosen_loss", {})[name] = losses(group=sizes, window=options.window, positions="entry") - dense
        print(name, sizes, f"{told['chosen_loss'][name]:.4f}", flush=True)
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
