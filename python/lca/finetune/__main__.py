"""python -m lca.finetune"""

from __future__ import annotations

import argparse
import os
import sys

from lca.finetune.config import ConfigError
from lca.finetune.reading import RECIPES, configs_read

_EXAMPLES = """examples:
  python -m lca.finetune config.yaml
  python -m lca.finetune smollm2 --set output=runs/first --set loss.text=10 --set stages.0.tokens=1M
  python -m lca.finetune config.yaml --json > progress.jsonl
  python -m lca.finetune config.yaml --check
  accelerate launch --config_file fsdp2.yaml --num_processes 8 -m lca.finetune config.yaml

The same command goes on after an interruption, from the last checkpoint. `--recipe fsdp2` prints the file for
accelerate, `--recipe smollm2` a configuration to start from."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lca.finetune", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tunes a model for LCA: a curriculum over group size, window and length, a dense teacher, "
                    "LoRA or all weights.")
    parser.add_argument("config", nargs="?", help="a YAML file, or the name of a recipe: "
                        + ", ".join(sorted(each.stem for each in RECIPES.glob("*.yaml") if each.stem != "fsdp2")))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="changes one value; dots lead into parts and lists")
    parser.add_argument("--check", action="store_true", help="reads the configuration and ends")
    parser.add_argument("--recipe", metavar="NAME", help="prints a file that comes with the package and ends")
    parser.add_argument("--json", action="store_true", help="progress as JSON lines on the standard output")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="a live line (default: on a terminal)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        if args.recipe:
            path = RECIPES / f"{args.recipe}.yaml"
            if os.path.basename(args.recipe) != args.recipe or not path.exists():
                raise ConfigError(f"there is no recipe {args.recipe}")
            print(path.read_text(encoding="utf-8"), end="")
            return 0
        if not args.config:
            parser.error("name a configuration")
        configs = configs_read(args.config, args.changes)
        if args.check:
            for name, config in configs.items():
                print(f"{args.config}{name and f', run {name}'}: {len(config.stages)} stages, {config.tokens:,} tokens")
            return 0
        from lca.finetune.loop import finetune
        from lca.finetune.report import runs_table
        for name, config in configs.items():
            finetune(config, args.json, args.progress)
            if name and os.environ.get("RANK", "0") == "0":
                runs_table(configs)
    except (ConfigError, OSError, ValueError, RuntimeError, MemoryError) as error:
        line = (str(error).strip() or type(error).__name__).split("\n")[0]
        sys.exit(f"lca.finetune: {line}")
    except KeyboardInterrupt:
        sys.exit("lca.finetune: interrupted; the same command goes on from the last checkpoint")
    return 0


if __name__ == "__main__":
    sys.exit(main())
