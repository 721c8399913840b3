"""Plants retrieval tasks into packed text: rows of one length, with tasks or without.

Row r of the result uses row r of the text, or of a part of it, in an order drawn by the seed, so that no text is used
twice before all of it was used once. All of a row depends on the seed and its number.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from typing import Any

import numpy

from lca.data import report, store
from lca.data.progress import Progress
from lca.data.reader import Packed
from lca.data.rows import Row, RowMaker, RowOptions
from lca.data.tokenizers import Tokenizer, chat_form, fingerprint, tokenizer_open


@dataclasses.dataclass(frozen=True)
class MixOptions:
    """What a mixture depends on besides its text."""

    rows: RowOptions
    count: int = 0  #: rows; 0: as many as the text has
    task_share: float = 0.5  #: of rows
    seed: int = 0
    part: tuple[float, float] = (0.0, 1.0)  #: of the text, from its beginning: mixtures of other parts share no text
    shard_tokens: int = 1 << 24

    def check(self) -> None:
        self.rows.check()
        if not 0 <= self.task_share <= 1:
            raise ValueError("the share of tasks is between 0 and 1")
        if self.count < 0 or self.shard_tokens < 1:
            raise ValueError("rows and tokens of a shard are positive")
        if not 0 <= self.part[0] < self.part[1] <= 1:
            raise ValueError("a part of the text begins and ends between 0 and 1")


class Mixer:
    """Makes the rows of a mixture, each by its number."""

    def __init__(self, text: Packed, tokenizer: Tokenizer, options: MixOptions) -> None:
        options.check()
        self._text, self._options, self._length = text, options, options.rows.length
        self._first, beyond = (round(share * text.row_count(self._length)) for share in options.part)
        self.text_rows = beyond - self._first
        if not self.text_rows:
            part = "" if options.part == (0.0, 1.0) else ", and this part of them"
            raise ValueError(f"{text.path} has {text.tokens} tokens{part}, less than a row of {self._length}")
        form = chat_form(tokenizer) if options.rows.chat_share > 0 else None
        self._maker = RowMaker(tokenizer, form, options.rows)
        self._begin = len(tokenizer.begin())
        end = text.manifest["settings"].get("end")
        self._end = tokenizer.special(end) if end else []
        self._line = tokenizer.encode(["\n\n"])[0]
        chat = text.manifest.get("chat_sources", [])
        self._chat = [number for number, label in enumerate(text.sources) if label in chat]
        self._plain = self._runs_without_chat()
        self._order: tuple[int, numpy.ndarray] | None = None

    def has_task(self, number: int) -> bool:
        """Rows with tasks are spread evenly."""
        share = self._options.task_share
        return int((number + 1) * share + 1e-9) > int(number * share + 1e-9)

    def _place(self, number: int) -> int:
        epoch, at = divmod(number, self.text_rows)
        if self._order is None or self._order[0] != epoch:
            draw = numpy.random.default_rng([self._options.seed, epoch])
            self._order = epoch, draw.permutation(self.text_rows)
        return self._first + int(self._order[1][at])

    def text_row(self, number: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Ids, kinds and documents of a row without a task."""
        start = self._place(number) * self._length
        return self._text.slice(start, start + self._length)

    def task_row(self, number: int) -> Row:
        """A row with a task."""
        draw = random.Random(f"{self._options.seed} {number}")
        return self._maker.row(draw, self._running(self._place(number) * self._length))

    def _runs_without_chat(self) -> numpy.ndarray:
        """First and last token (exclusive) of each run of documents, and the tokens in all runs before it."""
        records = self._text.records()
        bounds = numpy.append(records["start"], self._text.tokens)
        plain = numpy.concatenate([[False], ~numpy.isin(records["source"], self._chat), [False]])
        edges = numpy.flatnonzero(plain[1:] != plain[:-1])
        first, last = bounds[edges[::2]], bounds[edges[1::2]]
        return numpy.stack([first, last, numpy.cumsum(last - first) - (last - first)])

    def _running(self, start: int) -> numpy.ndarray:
        """A row's length of text: documents joined by empty lines. Where `start` lies among all tokens, the text
        lies among those that are no conversation's, so that all of it is used as often."""
        first, last, before = self._plain
        total = int((last - first).sum())
        offset = start * total // self._text.tokens
        found: list[numpy.ndarray] = []
        count = taken = 0
        while taken < 2 * total:
            run = int(numpy.searchsorted(before, offset, "right")) - 1
            at = int(first[run]) + offset - int(before[run])
            ids, _, records = self._text.slice(at, min(at + self._length, int(last[run])))
            bounds = [*records["start"].tolist(), len(ids)]
            for a, b, record in zip(bounds, bounds[1:], records):
                piece = ids[a + (self._begin if record["skip"] == 0 else 0):b]
                if self._end and piece[-len(self._end):].tolist() == self._end:
                    piece = piece[:-len(self._end)]
                if len(piece):
                    found += [piece] if not found or record["skip"] else [self._line, piece]
            count = sum(map(len, found))
            if count >= self._length:
                return numpy.concatenate(found)[:self._length]
            taken += len(ids)
            offset = (offset + len(ids)) % total
        raise ValueError(f"{self._text.path} has too little text besides conversations for rows of {self._length}")


def mix(text: str | os.PathLike, folder: str | os.PathLike, options: MixOptions, tokenizer: Tokenizer | None = None,
        show: bool | None = None) -> dict[str, Any]:
    """Mixes tasks into the packed text and returns the statistics; goes on where an earlier run was stopped."""
    packed = Packed(text)
    known = packed.manifest["tokenizer"]
    tokenizer = tokenizer or tokenizer_open(known["name"])
    if fingerprint(tokenizer) != known["fingerprint"]:
        raise ValueError(f"{text} was packed with another tokenizer ({known['name']}) than {tokenizer.name}")
    if packed.row_length:
        raise ValueError(f"{text} has tasks already; name a folder that pack wrote")
    mixer = Mixer(packed, tokenizer, options)
    count = options.count or mixer.text_rows
    names = list(options.rows.tasks)
    settings = {"text": packed.fingerprint, "tokenizer": fingerprint(tokenizer), **dataclasses.asdict(options)}
    head = {"made_by": "mix", "dtype": packed.manifest["dtype"], "tokenizer": known,
            "mask_documents": packed.manifest["mask_documents"], "row_length": options.rows.length,
            "sources": [*packed.sources, *(f"task:{name}" for name in names)],
            "chat_sources": packed.manifest.get("chat_sources", [])}
    into = store.Store(folder, settings, head)
    try:
        if not into.complete:
            _mix(into, mixer, options, count, len(packed.sources), show)
        return json.loads((into.folder / "statistics.json").read_bytes())
    finally:
        into.close()


def _mix(into: store.Store, mixer: Mixer, options: MixOptions, count: int, text_sources: int,
         show: bool | None) -> None:
    length, names = options.rows.length, list(options.rows.tasks)
    told = json.loads(json.dumps(into.state)) or {
        "rows": 0, "length": length, "tokens": 0, "task_rows": 0, "chat_rows": 0, "first_rows": 0, "text_tokens": 0,
        "answer_tokens": 0, "tasks": {name: {"rows": 0, "answers": 0, "answer_tokens": 0} for name in names},
        "depths": [0] * 10}
    per_shard = max(1, options.shard_tokens // length)
    bar = Progress("mixing", count * length, "tokens", show, told["tokens"])
    while told["rows"] < count:
        ids, kinds, documents = [], [], []
        for place, number in enumerate(range(told["rows"], min(count, told["rows"] + per_shard))):
            if mixer.has_task(number):
                row = mixer.task_row(number)
                row_ids, row_kinds = row.ids, row.kinds
                records = numpy.array([(0, text_sources + names.index(row.task), 0, number, 0)], store.DOCUMENT)
                _count(told, row)
            else:
                row_ids, row_kinds, records = mixer.text_row(number)
            records["start"] += place * length
            ids.append(row_ids)
            kinds.append(row_kinds)
            documents.append(records)
            told["text_tokens"] += int((row_kinds == store.TEXT).sum())
            told["answer_tokens"] += int((row_kinds == store.ANSWER).sum())
            bar.at((number + 1) * length)
        told["rows"] += len(ids)
        told["tokens"] = told["rows"] * length
        told["epochs"] = told["rows"] / mixer.text_rows
        into.shard_add(numpy.concatenate(ids), numpy.concatenate(kinds), numpy.concatenate(documents),
                       json.loads(json.dumps(told)))
    bar.at(count * length, last=True)
    store.file_replace(into.folder / "statistics.json", store.json_bytes(told))
    store.file_replace(into.folder / "statistics.md", report.mix_page(told).encode())
    into.finish()


def _count(told: dict[str, Any], row: Row) -> None:
    told["task_rows"] += 1
    told["chat_rows"] += row.chat
    told["first_rows"] += row.first
    mine = told["tasks"][row.task]
    mine["rows"] += 1
    mine["answers"] += len(row.answers)
    mine["answer_tokens"] += int((row.kinds == store.ANSWER).sum())
    for depth in row.depths:
        told["depths"][min(9, int(10 * depth))] += 1
