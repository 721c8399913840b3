"""Training data: packs text into tokens, plants retrieval tasks, reads batches. Needs numpy alone.

``python -m lca.data pack | join | mix | overlap | show | check`` is the command line;
docs/training-data.md explains it.
"""

from lca.data.joining import join
from lca.data.mixing import MixOptions, mix
from lca.data.overlap import overlap
from lca.data.packing import PackOptions, pack
from lca.data.reader import Batch, Batches, Packed
from lca.data.rows import RowOptions
from lca.data.store import ANSWER, NONE, TEXT, store_check
from lca.data.texts import Source, source_parse
from lca.data.tokenizers import Tokenizer, tokenizer_open

__all__ = ["ANSWER", "Batch", "Batches", "MixOptions", "NONE", "PackOptions", "Packed", "RowOptions", "Source", "TEXT",
           "Tokenizer", "join", "mix", "overlap", "pack", "source_parse", "store_check", "tokenizer_open"]
