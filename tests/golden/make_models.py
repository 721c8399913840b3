#!/usr/bin/env python3
"""Tiny checkpoints with golden logits, under models/.

    python make_models.py                      make everything but smollm2
    python make_models.py --check              make it again elsewhere and compare the bytes
    python make_models.py --smollm2 FILE.gguf  make smollm2's numbers from the real file (minutes)

What the cases are: models/README.md.
"""

import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "models"


def make_all():
    import make_models_adapters
    import make_models_gguf
    import make_models_lca
    import make_models_llama
    import make_models_mla

    for module in (make_models_llama, make_models_mla, make_models_lca, make_models_adapters, make_models_gguf):
        module.make_all()


def files_under(folder):
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}


def check():
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["GOLDEN_MODELS"] = scratch
        make_all()
        made = files_under(pathlib.Path(scratch))
        # calm_*: make_models_calm.py
        stored = {k: v for k, v in files_under(HERE).items() if not k.startswith(("smollm2/", "calm_", "README.md"))}
        bad = [f"{k}: not stored" for k in sorted(made.keys() - stored.keys())]
        bad += [f"{k}: no longer made" for k in sorted(stored.keys() - made.keys())]
        bad += [f"{k}: differs" for k in sorted(made.keys() & stored.keys())
                if made[k].read_bytes() != stored[k].read_bytes()]
    print("\n".join(bad + [f"{len(made)} files, {len(bad)} unlike the stored ones"]))
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description="Make or check the tiny checkpoints and their golden logits.")
    parser.add_argument("--check", action="store_true", help="make everything again elsewhere and compare")
    parser.add_argument("--smollm2", metavar="FILE", help="SmolLM2-135M-Instruct.Q4_1.gguf")
    args = parser.parse_args()
    if args.check:
        return check()
    if args.smollm2:
        import make_models_smollm2
        make_models_smollm2.main(args.smollm2)
    else:
        make_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
