"""Long-context attention on a condensed KV cache.

``attention`` and ``mla_attention`` are the operators, ``condense`` … ``mla_attend`` their halves; ``Engine`` runs
models; ``reference`` is the mechanism in plain PyTorch; ``patch`` turns a transformers model into an LCA model.
Operators and engine need numpy alone.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from typing import TYPE_CHECKING

from lca._libraries import preload

if "torch" not in sys.modules:
    preload(pathlib.Path(__file__).parent)

from lca._lca import __version__
from lca.operators import attend, attention, condense, mla_attend, mla_attention, mla_condense, set_threads

# Loaded when first asked for: what they need, or what the operators do not.
_LAZY = {
    "Engine": "lca.engine", "Reply": "lca.engine", "Score": "lca.engine", "Session": "lca.engine",
    "patch": "lca.patching", "override": "lca.patching", "unpatch": "lca.patching", "Cache": "lca.cache",
    "reference": "lca.reference",
}

if TYPE_CHECKING:
    from lca import reference
    from lca.cache import Cache
    from lca.engine import Engine, Reply, Score, Session
    from lca.patching import override, patch, unpatch

__all__ = ["Cache", "Engine", "Reply", "Score", "Session", "__version__", "attend", "attention", "condense",
           "mla_attend", "mla_attention", "mla_condense", "override", "patch", "reference", "set_threads",
           "unpatch"]

if sys.modules.get("torch") is not None:
    from lca import _torch  # noqa: F401  registers the operators


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'lca' has no attribute '{name}'")
    module = importlib.import_module(_LAZY[name])
    return module if name == "reference" else getattr(module, name)


def __dir__():
    return sorted(__all__)
