"""The command line of lm-evaluation-harness with the model `lca`."""

from __future__ import annotations

import sys


def main() -> None:
    """Registers the model and hands over; `--model lca` may be left out."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        sys.exit("lca.lm_eval: lm-evaluation-harness is not installed; pip install lm_eval gets it")
    from lca.lm_eval import register
    register()
    words = sys.argv[1:]
    runs = bool(words) and words[0] not in ("ls", "validate", "-h", "--help")
    if runs and not any(word.split("=")[0] in ("--model", "-M", "--config", "-C") for word in words):
        sys.argv += ["--model", "lca"]
    cli_evaluate()


if __name__ == "__main__":
    main()
