#!/usr/bin/env python3
"""The mean of adapters, weight by weight: eval/mean.py OUT ADAPTER ADAPTER …

It is an adapter of its own only where all have one beginning and the same settings, such as two endings of one run.
Settings come from the first; the others' must be equal.
"""
import json
import pathlib
import shutil
import sys


def main(words):
    if len(words) < 3:
        sys.exit(__doc__.strip())
    import torch
    from safetensors.torch import load_file, save_file
    out, folders = pathlib.Path(words[0]), [pathlib.Path(word) for word in words[1:]]
    if out.exists():
        sys.exit(f"mean: {out} is there already")
    for name in ("adapter_config.json", "lca.json"):
        told = [json.loads((folder / name).read_text()) for folder in folders]
        for each in told:  # in any order
            if "target_modules" in each:
                each["target_modules"] = sorted(each["target_modules"])
        for folder, each in zip(folders, told):
            if each != told[0]:
                differ = sorted(key for key in {*each, *told[0]} if each.get(key) != told[0].get(key))
                sys.exit(f"mean: {folder}/{name} differs from the first in {', '.join(differ)}")
    weights = [load_file(folder / "adapter_model.safetensors") for folder in folders]
    for folder, each in zip(folders, weights):
        if {name: value.shape for name, value in each.items()} != {name: value.shape for name, value in weights[0].items()}:
            sys.exit(f"mean: {folder} has other matrices than the first")
    mean = {name: torch.stack([each[name].double() for each in weights]).mean(0).to(value.dtype).contiguous()
            for name, value in weights[0].items()}
    out.mkdir(parents=True)
    for name in ("adapter_config.json", "lca.json"):
        shutil.copyfile(folders[0] / name, out / name)
    save_file(mean, out / "adapter_model.safetensors", {"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    print(f"{out}: the mean of {len(folders)} adapters")


if __name__ == "__main__":
    main(sys.argv[1:])
