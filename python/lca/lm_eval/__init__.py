"""lca.Engine as a model of lm-evaluation-harness.

    python -m lca.lm_eval --model_args pretrained=smollm2 --tasks …

is the harness's own command line (`lm_eval`) with the model `lca` registered; `register` does it in a program.
"""

from __future__ import annotations

from lca.lm_eval.scoring import Continuation, continuations_score

__all__ = ["Continuation", "continuations_score", "register"]


def register() -> type:
    """Makes `lca` known to the harness as a model; returns its class. Needs the package lm_eval."""
    from lca.lm_eval.model import LcaLM
    return LcaLM
