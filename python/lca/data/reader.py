"""Reads folders of tokens in batches, in an order that can be repeated and continued."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy

from lca.data.store import ANSWER, NONE, TEXT, manifest_read


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of tokens. A token's kind and weight are those of predicting it from what comes before."""

    ids: numpy.ndarray  #: int64 [B, n]
    kinds: numpy.ndarray  #: uint8 [B, n]: 0 none, 1 text, 2 answer; the first token of a document has 0
    weights: numpy.ndarray  #: float32 [B, n]
    starts: list[numpy.ndarray]  #: for each row, where documents start: 0, …
    rows: numpy.ndarray  #: int64 [B]: numbers of the rows

    @property
    def cu_seqlens(self) -> numpy.ndarray:
        """int32: document bounds of the batch as one row of B × n tokens: 0, …, B n."""
        length = self.ids.shape[1]
        return numpy.concatenate([starts + b * length for b, starts in enumerate(self.starts)]
                                 + [[self.ids.size]]).astype(numpy.int32)

    @property
    def positions(self) -> numpy.ndarray:
        """int64 [B, n]: each token's place in its document."""
        found = numpy.empty(self.ids.shape, numpy.int64)
        for row, starts in zip(found, self.starts):
            ends = numpy.append(starts[1:], len(row))
            for start, end in zip(starts, ends):
                row[start:end] = numpy.arange(end - start)
        return found


class Packed:
    """A folder that ``pack`` or ``mix`` wrote, memory-mapped."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = pathlib.Path(path)
        self.manifest = manifest_read(path)
        if not self.manifest["complete"]:
            raise ValueError(f"{path} is not complete; run the command that began it again")
        self._shards = [{name: self._array(shard, name) for name in ("ids", "kinds", "documents")}
                        for shard in self.manifest["shards"]]
        self._bounds = numpy.cumsum([0, *(len(shard["ids"]) for shard in self._shards)]).tolist()
        hashes = [file["sha256"] for shard in self.manifest["shards"] for _, file in sorted(shard["files"].items())]
        self.fingerprint = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16]

    def _array(self, shard: dict[str, Any], name: str) -> numpy.ndarray:
        path = self.path / shard["name"] / f"{name}.npy"
        try:
            array = numpy.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({error}); make the folder again") from None
        if len(array) != shard["documents" if name == "documents" else "tokens"]:
            raise ValueError(f"{path} is not as it was written; make the folder again")
        return array

    @property
    def tokens(self) -> int:
        return self._bounds[-1]

    @property
    def documents(self) -> int:
        """Pieces of documents: one that a shard cuts is two."""
        return sum(len(shard["documents"]) for shard in self._shards)

    @property
    def row_length(self) -> int | None:
        """The length of rows with planted tasks; None where rows may have any length."""
        return self.manifest["row_length"]

    @property
    def sources(self) -> list[str]:
        return self.manifest["sources"]

    def row_count(self, length: int) -> int:
        """Whole rows of a length; only the last tokens of all, less than a row, are left over."""
        own = self.row_length
        if length < 2 or (own and length % own):
            raise ValueError(f"{self.path} has rows of {own} tokens; read them in that length" if own
                             else "a row has at least 2 tokens")
        return self.tokens // length

    def slice(self, start: int, end: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Ids (int64), kinds and document records (start counted from `start`) of tokens start … end − 1."""
        ids, kinds, records = [], [], []
        shard = bisect.bisect_right(self._bounds, start) - 1
        while start < end:
            arrays, first = self._shards[shard], self._bounds[shard]
            a, b = start - first, min(end - first, len(arrays["ids"]))
            ids.append(arrays["ids"][a:b].astype(numpy.int64))
            kinds.append(numpy.array(arrays["kinds"][a:b]))
            places = arrays["documents"]["start"]
            low, high = int(numpy.searchsorted(places, a, "right")) - 1, int(numpy.searchsorted(places, b))
            part = numpy.array(arrays["documents"][low:high])
            cut = numpy.maximum(a - part["start"], 0)
            part["skip"] += cut
            part["start"] += cut + sum(map(len, ids[:-1])) - a
            records.append(part)
            start, shard = first + b, shard + 1
        return numpy.concatenate(ids), numpy.concatenate(kinds), numpy.concatenate(records)

    def records(self) -> numpy.ndarray:
        """Records of all documents, starts counted from the first token of all."""
        found = []
        for shard, first in zip(self._shards, self._bounds):
            part = numpy.array(shard["documents"])
            part["start"] += first
            found.append(part)
        return numpy.concatenate(found)

    def row(self, number: int, length: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Ids, kinds and document starts of one row; a document that was cut starts again."""
        if not 0 <= number < self.row_count(length):
            raise IndexError(f"{self.path} has {self.row_count(length)} rows of {length} tokens")
        ids, kinds, records = self.slice(number * length, (number + 1) * length)
        starts = records["start"] if self.manifest["mask_documents"] else numpy.zeros(1, numpy.int64)
        kinds[starts] = NONE  # nothing to predict them from
        return ids, kinds, starts

    def batches(self, batch: int, length: int | None = None, *, seed: int = 0, epochs: int | None = 1, rank: int = 0,
                world: int = 1, text_weight: float = 1.0, answer_weight: float = 1.0,
                shuffle: bool = True) -> Batches:
        """Batches of `batch` rows for process `rank` of `world`; `epochs` None never ends."""
        if length is None:
            length = self.row_length
            if length is None:
                raise ValueError(f"{self.path} has no row length of its own; name one")
        return Batches(self, batch, length, seed, epochs, rank, world, (text_weight, answer_weight), shuffle)


class Batches(Iterator[Batch]):
    """An iterator whose place is in `state_dict`."""

    def __init__(self, packed: Packed, batch: int, length: int, seed: int, epochs: int | None, rank: int, world: int,
                 weights: tuple[float, float], shuffle: bool) -> None:
        if batch < 1 or not 0 <= rank < world:
            raise ValueError("a batch has at least one row, and rank is one of 0 … world − 1")
        self._packed, self._batch, self._length, self._seed = packed, batch, length, seed
        self._epochs, self._rank, self._world, self._weights, self._shuffle = epochs, rank, world, weights, shuffle
        #: Batches of an epoch; rows that fill none for every process are left out of it.
        self.steps = packed.row_count(length) // (batch * world)
        if not self.steps:
            raise ValueError(f"{packed.path} has {packed.row_count(length)} rows of {length} tokens, less than one "
                             f"batch of {batch * world}")
        self.epoch = self.step = 0
        self._order: tuple[int, numpy.ndarray] | None = None

    def __len__(self) -> int:
        """Batches that are left."""
        if self._epochs is None:
            raise TypeError("endless batches have no length")
        return max(0, (self._epochs - self.epoch) * self.steps - self.step)

    def _rows(self) -> numpy.ndarray:
        if self._order is None or self._order[0] != self.epoch:
            count = self._packed.row_count(self._length)
            order = numpy.arange(count)
            if self._shuffle:
                order = numpy.random.default_rng([self._seed, self.epoch]).permutation(count)
            self._order = self.epoch, order
        at = (self.step * self._world + self._rank) * self._batch
        return self._order[1][at:at + self._batch]

    def __next__(self) -> Batch:
        if self.step == self.steps:
            self.epoch, self.step = self.epoch + 1, 0
        if self._epochs is not None and self.epoch >= self._epochs:
            raise StopIteration
        rows = self._rows()
        self.step += 1
        ids, kinds, starts = zip(*(self._packed.row(int(number), self._length) for number in rows))
        kinds = numpy.stack(kinds)
        table = numpy.zeros(256, numpy.float32)
        table[TEXT], table[ANSWER] = self._weights
        return Batch(numpy.stack(ids), kinds, table[kinds], list(starts), rows)

    def _settings(self) -> dict[str, Any]:
        return {"data": self._packed.fingerprint, "batch": self._batch, "length": self._length, "seed": self._seed,
                "world": self._world, "shuffle": self._shuffle}

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch, for JSON or a checkpoint; the same for every rank."""
        return {**self._settings(), "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place; the data and all that the order depends on must be the same."""
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise ValueError(f"the state was saved with {name} {state.get(name)}, this is {value}")
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
