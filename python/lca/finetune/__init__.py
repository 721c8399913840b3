"""Fine-tunes a transformers model for LCA: ``python -m lca.finetune config.yaml``.

A curriculum over group size, window and length, a dense teacher, LoRA or all weights; see docs/finetuning.md.
"""

from __future__ import annotations

from lca.finetune.config import Config, ConfigError, config_parse
from lca.finetune.reading import config_read

__all__ = ["Config", "ConfigError", "Result", "config_parse", "config_read", "finetune"]


def __getattr__(name):
    """What needs torch is loaded when first asked for."""
    if name in ("Result", "finetune"):
        from lca.finetune import loop
        return getattr(loop, name)
    raise AttributeError(f"module 'lca.finetune' has no attribute '{name}'")
