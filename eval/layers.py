#!/usr/bin/env python3
"""Which layers need fine groups: losses when one layer at a time is condensed or has other groups than the rest.

    eval/layers.py text MODEL WINDOWS OUT.json [--length 8192] [--groups 4,8,16,32] [--window 1024] [--rows 32]
    eval/layers.py answers CONFIG.yaml ADAPTER OUT.json [--fine 8] [--coarse 32] [--window 128] [--set KEY=VALUE …]

text: MODEL is a Hugging Face folder (python -m lca.export smollm2 DIR), WINDOWS a folder of text
(eval/text/windows.py). For every layer and group size OUT has the mean loss of the later half of the tokens minus that
of dense attention, the same for all layers at once, and sizes by layer that hold as many representatives as group 16 in
all layers: spent on the layers that lose most, by a greedy search over the measured losses.

answers: CONFIG is a configuration of lca.finetune whose first evaluation set has rows with answers (python -m lca.data
mix); --set changes it. OUT has the KL of text from the dense teacher, the loss of answers and the share of answer
tokens that are the likeliest with all layers fine, with all coarse, with one coarse among fine ones, and with one fine
among coarse ones.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

import torch

import lca
from lca.finetune import config_read
from lca.finetune.kernels import kernels_for
from lca.finetune.loop import Trainer

FAR = 1 << 20  # a window that nothing leaves


def singled(one, others, layers):
    """A list of values by layer for each layer: `one` in that, `others` in the rest."""
    return [[one if each == layer else others for each in range(layers)] for layer in range(layers)]


def rows_of(folder, tokenizer, length, count):
    """Token ids [count, length] of the texts' beginnings."""
    rows = []
    for path in sorted(folder.rglob("*.txt")):
        ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
        if len(ids) >= length:
            rows.append(ids[:length])
    step = max(1, len(rows) // count)
    return torch.tensor(rows[::step][:count])


@torch.no_grad()
def text_loss(model, rows, batch, **knobs):
    """Mean loss of the later half of all rows."""
    head, half, total = model.get_output_embeddings().weight, rows.shape[1] // 2, 0.0
    for ids in rows.split(batch):
        with lca.override(model, **knobs):
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        hidden = hidden[:, half - 1:-1].flatten(0, 1)
        target = ids[:, half:].flatten()
        for at in range(0, len(hidden), 8192):
            logits = hidden[at:at + 8192] @ head.T
            total += float(kernels_for(hidden).divergence(logits, None, target[at:at + 8192], False)[1].sum())
    return total / (rows.shape[0] * half)


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


def text(options):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    lca.patch(model, "training")
    ids = rows_of(options.windows, tokenizer, options.length, options.rows).cuda()
    layers, groups = model.config.num_hidden_layers, [int(each) for each in options.groups.split(",")]

    def loss(**knobs):
        return text_loss(model, ids, options.batch, **knobs)
    began = time.time()
    dense = loss(method="dense")
    told = {"rows": len(ids), "length": options.length, "window": options.window, "dense": dense, "all": {}, "one": {}}
    for group in groups:
        told["all"][group] = loss(group=group, window=options.window, positions="entry") - dense
        told["one"][group] = [loss(group=[group] * layers, window=windows, positions="entry") - dense
                              for windows in singled(options.window, FAR, layers)]
        print(f"group {group}: all {told['all'][group]:.4f}, sum of layers {sum(told['one'][group]):.4f}, "
              f"{time.time() - began:.1f} s", flush=True)
        print("  " + " ".join(f"{each:+.4f}" for each in told["one"][group]), flush=True)
    told["chosen"] = {f"from {min(some)}": chosen(told["one"], some, layers, layers / 16)
                      for some in ([each for each in groups if each >= least] for least in groups if least <= 16)}
    for name, sizes in told["chosen"].items():
        told.setdefault("chosen_loss", {})[name] = loss(group=sizes, window=options.window, positions="entry") - dense
        print(name, sizes, f"{told['chosen_loss'][name]:.4f}", flush=True)
    options.out.write_text(json.dumps(told, indent=1) + "\n")


@torch.no_grad()
def answer_losses(trainer, parts, window, sizes):
    """KL a text token, loss an answer token, share of answer tokens that are the likeliest."""
    knobs = {"method": "lca", "group": sizes, "window": window, "sink": 0, "positions": "entry"}
    sums, texts, answers = torch.zeros(4, dtype=torch.float64), 0, 0
    for ids, positions, places, documents in parts:
        sums += trainer.student(ids, positions, places, knobs, True, documents).double().cpu()
        texts, answers = texts + len(places.text), answers + len(places.answer)
    kl, _, answer, hits = sums.tolist()
    return [kl / texts, answer / answers, hits / answers]


def answers(options):
    with tempfile.TemporaryDirectory() as folder:
        config = config_read(options.config, [f"output={folder}", f"init={options.adapter}", *options.changes])
        trainer = Trainer(config, show=False)
        parts = list(trainer.held_out(next(iter(config.evaluation.sets))))
        layers, fine, coarse = trainer.inner.causal.config.num_hidden_layers, options.fine, options.coarse

        def losses(lists):
            return [answer_losses(trainer, parts, options.window, sizes) for sizes in lists]
        told = {"fine": fine, "coarse": coarse, "window": options.window, "columns": ["kl", "answer_loss", "accuracy"],
                "all_fine": losses([[fine] * layers])[0], "all_coarse": losses([[coarse] * layers])[0],
                "one_coarse": losses(singled(coarse, fine, layers)), "one_fine": losses(singled(fine, coarse, layers))}
        trainer.close()
    options.out.write_text(json.dumps(told) + "\n")
    for layer, (worse, better) in enumerate(zip(told["one_coarse"], told["one_fine"])):
        print(f"layer {layer:2}: answers {worse[1] - told['all_fine'][1]:+.4f} coarser, "
              f"{better[1] - told['all_coarse'][1]:+.4f} finer; KL {worse[0] - told['all_fine'][0]:+.5f}, "
              f"{better[0] - told['all_coarse'][0]:+.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="text|answers")
    command = commands.add_parser("text")
    command.set_defaults(run=text)
    command.add_argument("model")
    command.add_argument("windows", type=pathlib.Path)
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--length", type=int, default=8192)
    command.add_argument("--groups", default="4,8,16,32")
    command.add_argument("--window", type=int, default=1024)
    command.add_argument("--rows", type=int, default=32)
    command.add_argument("--batch", type=int, default=8)
    command = commands.add_parser("answers")
    command.set_defaults(run=answers)
    command.add_argument("config")
    command.add_argument("adapter")
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--fine", type=int, default=8)
    command.add_argument("--coarse", type=int, default=32)
    command.add_argument("--window", type=int, default=128)
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
