"""Joins folders of packed text into one.

Documents keep their order within a folder; the next one comes from the folder that is furthest behind, so that a small
folder is spread evenly over a large one. What a shard had cut is whole again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from lca.data import store
from lca.data.progress import Progress
from lca.data.reader import Packed


class _Part:
    """One of the folders: its documents, and the numbers of its sources and files in the result."""

    def __init__(self, packed: Packed, labels: list[str], first_file: int) -> None:
        self.packed = packed
        self.records = packed.records()
        numbers = numpy.array([labels.index(label) for label in packed.sources], numpy.uint16)
        self.records["source"] = numbers[self.records["source"]]
        self.records["file"] += first_file
        whole = self.records["skip"] == 0  # any other continues what stands before it
        whole[0] = True
        self.bounds = numpy.append(self.records["start"][whole], packed.tokens)
        self.first = self.records[whole]
        self.files = int(self.records["file"].max()) + 1

    def __len__(self) -> int:
        return len(self.first)


def _order(parts: list[_Part]) -> Iterator[tuple[int, int]]:
    """(folder, document) in the order of the result."""
    done, at = [0] * len(parts), [0] * len(parts)
    while True:
        behind = [(done[p] / part.packed.tokens, p) for p, part in enumerate(parts) if at[p] < len(part)]
        if not behind:
            return
        _, p = min(behind)
        yield p, at[p]
        done[p] = int(parts[p].bounds[at[p] + 1])
        at[p] += 1


def join(folders: Sequence[str | os.PathLike], folder: str | os.PathLike, shard_tokens: int = 1 << 24,
         show: bool | None = None) -> dict[str, Any]:
    """Joins folders that ``pack`` wrote and returns how many tokens each gave; goes on after an interruption."""
    packs = [Packed(each) for each in folders]
    if len(packs) < 2:
        raise ValueError("joining takes two folders or more")
    if shard_tokens < 16:
        raise ValueError("tokens of a shard ≥ 16")
    for packed in packs:
        if packed.row_length:
            raise ValueError(f"{packed.path} has planted tasks; join text before planting")
        for name in ("dtype", "mask_documents"):
            if packed.manifest[name] != packs[0].manifest[name]:
                raise ValueError(f"{packed.path} and {packs[0].path} differ in {name}")
        if packed.manifest["tokenizer"]["fingerprint"] != packs[0].manifest["tokenizer"]["fingerprint"]:
            raise ValueError(f"{packed.path} and {packs[0].path} have tokens of different tokenizers")
        if packed.manifest["settings"].get("end") != packs[0].manifest["settings"].get("end"):
            raise ValueError(f"{packed.path} and {packs[0].path} end documents differently")
    labels = list(dict.fromkeys(label for packed in packs for label in packed.sources))
    chat = {label for packed in packs for label in packed.manifest.get("chat_sources", [])}
    plain = {label for packed in packs for label in packed.sources
             if label not in packed.manifest.get("chat_sources", [])}
    if chat & plain:
        raise ValueError(f"source {min(chat & plain)} is chat in one folder and text in another")
    head = {name: packs[0].manifest[name] for name in ("dtype", "tokenizer", "mask_documents")}
    settings = {"folders": [packed.fingerprint for packed in packs], "shard_tokens": shard_tokens,
                "end": packs[0].manifest["settings"].get("end", "")}
    into = store.Store(folder, settings, {"made_by": "join", "row_length": None, **head})
    try:
        if not into.complete:
            _join(into, packs, labels, shard_tokens, show)
            into.finish(sources=labels, chat_sources=sorted(chat))
        return {"tokens": into.tokens, "folders": [{"folder": str(packed.path), "tokens": packed.tokens,
                                                    "share": packed.tokens / into.tokens} for packed in packs]}
    finally:
        into.close()


def _join(into: store.Store, packs: list[Packed], labels: list[str], shard_tokens: int, show: bool | None) -> None:
    parts: list[_Part] = []
    for packed in packs:
        parts.append(_Part(packed, labels, parts[-1].files if parts else 0))
    total, past = sum(packed.tokens for packed in packs), into.tokens
    bar = Progress("joining", total, "tokens", show, past)
    ids: list[numpy.ndarray] = []
    kinds: list[numpy.ndarray] = []
    documents: list[tuple[int, ...]] = []
    filled = seen = 0

    def write() -> None:
        nonlocal ids, kinds, documents, filled
        into.shard_add(numpy.concatenate(ids), numpy.concatenate(kinds), numpy.array(documents, store.DOCUMENT), {})
        ids, kinds, documents, filled = [], [], [], 0
        bar.at(into.tokens)

    for p, number in _order(parts):
        part, record = parts[p], parts[p].first[number]
        start, end = int(part.bounds[number]), int(part.bounds[number + 1])
        at, seen = start + min(max(0, past - seen), end - start), seen + end - start
        while at < end:
            take = min(end - at, shard_tokens - filled)
            more_ids, more_kinds, _ = part.packed.slice(at, at + take)
            documents.append((filled, int(record["source"]), int(record["file"]), int(record["record"]),
                              int(record["skip"]) + at - start))
            ids.append(more_ids)
            kinds.append(more_kinds)
            filled, at = filled + take, at + take
            if filled == shard_tokens:
                write()
    if filled:
        write()
    bar.at(total, last=True)
