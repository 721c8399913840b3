#!/usr/bin/env python3
"""Which layers a trained adapter reads its answers from: losses when one layer at a time has coarser groups.

    eval/layers_answers.py CONFIG.yaml ADAPTER OUT.json [--fine 8] [--coarse 32] [--window 128] [--set KEY=VALUE …]

CONFIG is a configuration of lca.finetune whose first evaluation set has rows with answers (python -m lca.data mix).
OUT has the KL of text from the dense teacher, the loss of answers and the share of answer tokens that are the likeliest
with all layers fine, with all coarse, with one coarse among fine ones, and with one fine among coarse ones.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch

from lca.finetune import config_read
from lca.finetune.loop import Trainer


class Losses:
    def __init__(self, trainer, window):
        self.trainer, self.window = trainer, window
        self.parts = list(trainer.held_out(next(iter(trainer.config.evaluation.sets))))

    @torch.no_grad()
    def __call__(self, sizes):
        """KL a text token, loss an answer token, share of answer tokens that are the likeliest."""
        knobs = {"method": "lca", "group": sizes, "window": self.window, "sink": 0, "positions": "entry"}
        sums, texts, answers = torch.zeros(4, dtype=torch.float64), 0, 0
        for ids, positions, places, documents in self.parts:
            sums += self.trainer.student(ids, positions, places, knobs, True, documents).double().cpu()
            texts, answers = texts + len(places.text), answers + len(places.answer)
        kl, _, answer, hits = sums.tolist()
        return [kl / texts, answer / answers, hits / answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("adapter")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--fine", type=int, default=8)
    parser.add_argument("--coarse", type=int, default=32)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = config_read(options.config, [f"output={folder}", f"init={options.adapter}", *options.changes])
        trainer = Trainer(config, show=False)
        losses = Losses(trainer, options.window)
        layers = trainer.inner.causal.config.num_hidden_layers
        fine, coarse = options.fine, options.coarse

        def one(size, others):
            return [losses([size if each == layer else others for each in range(layers)]) for layer in range(layers)]
        told = {"fine": fine, "coarse": coarse, "window": options.window, "columns": ["kl", "answer_loss", "accuracy"],
                "all_fine": losses([fine] * layers), "all_coarse": losses([coarse] * layers),
                "one_coarse": one(coarse, fine), "one_fine": one(fine, coarse)}
        trainer.close()
    options.out.write_text(json.dumps(told) + "\n")
    for layer, (worse, better) in enumerate(zip(told["one_coarse"], told["one_fine"])):
        print(f"layer {layer:2}: answers {worse[1] - told['all_fine'][1]:+.4f} coarser, "
              f"{better[1] - told['all_coarse'][1]:+.4f} finer; KL {worse[0] - told['all_fine'][0]:+.5f}, "
              f"{better[0] - told['all_coarse'][0]:+.5f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
