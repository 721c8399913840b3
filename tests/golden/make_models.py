#!/usr/bin/env python3
"""Tiny checkpoints with golden logits, under models/.

    python make_models.py                      make everything but smollm2
    python make_models.py --check              make it again elsewhere and compare
    python make_models.py --smollm2 FILE.gguf  smollm2's numbers from the real file (minutes); with or
                                               without --check

What the cases are: models/README.md.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile

import golden_files



def make_all():
    import make_models_adapters
    import make_models_calm
    import make_models_entry
    import make_models_gguf
    import make_models_lca
    import make_models_llama
    import make_models_mla

    for module in (make_models_llama, make_models_mla, make_models_lca, make_models_entry, make_models_gguf,
                   make_models_calm, make_models_adapters):
        module.make_all()


def check(smollm2):
    """Of smollm2 what is made from the real file is compared, where that is given."""
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        (root / "models").mkdir()
        os.environ["GOLDEN_MODELS"] = str(root / "models")
        if smollm2:
            import make_models_smollm2
            shutil.copytree(golden_files.HERE / "models" / "smollm2", root / "models" / "smollm2")
            make_models_smollm2.main(smollm2)
            return golden_files.compare(root, ["models/smollm2/**/*"])
        make_all()
        return golden_files.compare(root, ["models/[!s]*/**/*"])


def main():
    parser = argparse.ArgumentParser(description="Make or check the tiny checkpoints and their golden logits.")
    parser.add_argument("--check", action="store_true", help="make everything again elsewhere and compare")
    parser.add_argument("--smollm2", metavar="FILE", help="SmolLM2-135M-Instruct.Q4_1.gguf")
    args = parser.parse_args()
    if args.check:
        return check(args.smollm2)
    if args.smollm2:
        import make_models_smollm2
        make_models_smollm2.main(args.smollm2)
    else:
        make_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
