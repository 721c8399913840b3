"""Packs documents into tokens by the per-source rule of length upsampling.

Each source has a share of the tokens. Within a source, documents that are estimated to be shorter than a threshold
are kept with a probability, longer ones always, and the order is random. The next document comes from the source that
is furthest behind its share, so that the mixture holds all along the stream. All depends on the seed alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from lca.data import report, store
from lca.data.progress import Progress
from lca.data.scanning import Scan, scan_sources
from lca.data.texts import Source, document_load, headers_strip
from lca.data.tokenizers import Tokenizer, chat_encode, chat_form, fingerprint

#: Shares of tokens by preset. SlimPajama's labels may be given without RedPajama, in any case.
PRESETS = {"slimpajama": {
    "RedPajamaCommonCrawl": 0.53374772, "RedPajamaC4": 0.26609933, "RedPajamaGithub": 0.05004782,
    "RedPajamaArXiv": 0.04290379, "RedPajamaBook": 0.0414836, "RedPajamaWikipedia": 0.03402128,
    "RedPajamaStackExchange": 0.03169647}}
CHARS_PER_TOKEN = 3.68
_PIECE = 1 << 20  # characters tokenized at once
_AHEAD_DOCUMENTS, _AHEAD_CHARS = 64, 2 << 20


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """What packing depends on besides its texts."""

    tokens: int | str = "first"  #: how many; "first": until a source is used up; "all": until all are
    shares: dict[str, float] | str | None = None  #: by label, or a preset; None: the collection's own
    threshold: int = 4096  #: estimated tokens of a document that is always kept
    keep: float = 0.1  #: probability of keeping a shorter one
    chars_per_token: float = CHARS_PER_TOKEN  #: for the estimate; 0: measured with the tokenizer
    epochs: int = 1  #: how often a source may be used
    seed: int = 0
    shard_tokens: int = 1 << 24
    mask_documents: bool = True  #: readers keep documents apart
    strip_headers: bool = False  #: of Project Gutenberg's books
    duplicates: str = "drop"  #: or "keep"
    end: str = ""  #: special token after every document

    def check(self) -> None:
        if isinstance(self.tokens, str) and self.tokens not in ("first", "all") or \
                not isinstance(self.tokens, str) and self.tokens < 1:
            raise ValueError("tokens must be a positive number, \"first\" or \"all\"")
        if not 0 <= self.keep <= 1:
            raise ValueError("the keep probability must be between 0 and 1")
        if self.threshold < 0 or self.epochs < 1 or self.shard_tokens < 16 or self.chars_per_token < 0:
            raise ValueError("threshold ≥ 0, epochs ≥ 1, tokens of a shard ≥ 16, characters per token ≥ 0")
        if self.duplicates not in ("drop", "keep"):
            raise ValueError("duplicates are to \"drop\" or to \"keep\"")
        if isinstance(self.shares, str) and self.shares not in PRESETS:
            raise ValueError(f"there is no preset {self.shares}; there is {', '.join(PRESETS)}")


def shares_of(options: PackOptions, scan: Scan) -> tuple[list[float], list[str]]:
    """The share of each label, and labels that were named but have no text."""
    if options.shares is None:
        chars = numpy.bincount(scan.index["source"], scan.index["chars"], len(scan.labels))
        return (chars / chars.sum()).tolist(), []
    named, alias = options.shares, {}
    if isinstance(named, str):
        named = PRESETS[named]
        alias = {name.lower().removeprefix("redpajama"): name for name in named}
    found = []
    for label in scan.labels:
        name = label if label in named else alias.get(label.lower().removeprefix("redpajama"))
        if name is None:
            raise ValueError(f"source {label} has no share; there are shares for {', '.join(named)}")
        if named[name] < 0:
            raise ValueError(f"the share of {label} must not be negative")
        found.append((name, named[name]))
    if len({name for name, _ in found}) < len(found):
        raise ValueError("two labels stand for one share of the preset")
    total = sum(share for _, share in found)
    if total <= 0:
        raise ValueError("all shares are 0")
    return [share / total for _, share in found], [name for name in named if name not in dict(found)]


class _Encoder:
    """Tokens of documents, made some documents ahead."""

    def __init__(self, sources: list[Source], scan: Scan, tokenizer: Tokenizer, options: PackOptions) -> None:
        self._sources, self._scan, self._tokenizer, self._options = sources, scan, tokenizer, options
        self._begin = numpy.array(tokenizer.begin(), numpy.int64)
        self._end = numpy.array(tokenizer.special(options.end) if options.end else [], numpy.int64)
        self._form = chat_form(tokenizer) if scan.index["chat"].any() else None
        self._ready: dict[int, tuple[numpy.ndarray, numpy.ndarray]] = {}

    def document(self, order: numpy.ndarray, at: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Ids and kinds of document order[at]."""
        number = int(order[at])
        if number not in self._ready:
            ahead, chars = [], 0
            for other in order[at:at + _AHEAD_DOCUMENTS].tolist():
                if other not in self._ready:
                    ahead.append(other)
                chars += int(self._scan.index["chars"][other])
                if chars > _AHEAD_CHARS:
                    break
            self._encode(ahead)
        return self._ready.pop(number)

    def _encode(self, numbers: list[int]) -> None:
        pieces: list[str] = []
        owners: list[int] = []
        for number in numbers:
            row = self._scan.index[number]
            file = self._scan.files[row["file"]]
            text = document_load(file, self._sources[file.source], int(row["offset"]), int(row["size"]),
                                 int(row["record"]))
            if not isinstance(text, str):
                assert self._form is not None
                ids, said = chat_encode(self._tokenizer, self._form, text)
                self._ready[number] = ids, numpy.where(said, store.TEXT, store.NONE).astype(numpy.uint8)
                continue
            parts = list(_pieces(headers_strip(text) if self._options.strip_headers else text))
            pieces += parts
            owners += [number] * len(parts)
        encoded: dict[int, list[numpy.ndarray]] = {}
        for number, ids in zip(owners, self._tokenizer.encode(pieces)):
            encoded.setdefault(number, [self._begin]).append(ids)
        for number, found in encoded.items():
            ids = numpy.concatenate([*found, self._end])
            self._ready[number] = ids, numpy.full(len(ids), store.TEXT, numpy.uint8)


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that end with a line where there is one."""
    at = 0
    while at < len(text):
        end = min(len(text), at + _PIECE)
        if end < len(text):
            line = text.rfind("\n", at + _PIECE // 2, end)
            end = line + 1 if line >= 0 else end
        yield text[at:end]
        at = end


def _ratio(options: PackOptions, sources: list[Source], scan: Scan, tokenizer: Tokenizer) -> float:
    """Characters per token: as given, or of a sample."""
    if options.chars_per_token:
        return options.chars_per_token
    draw = numpy.random.default_rng([options.seed, 1 << 20])
    chosen = draw.permutation(len(scan.index))[:64]
    texts = []
    for row in scan.index[chosen]:
        file = scan.files[row["file"]]
        text = document_load(file, sources[file.source], int(row["offset"]), int(row["size"]), int(row["record"]))
        texts.append(text[:8192] if isinstance(text, str) else text[-1][1][:8192])
    return sum(map(len, texts)) / max(1, sum(map(len, tokenizer.encode(texts))))


class _Stream:
    """Which document comes next, and how much of everything was packed; all of it is in `state`."""

    def __init__(self, scan: Scan, options: PackOptions, shares: list[float], ratio: float,
                 state: dict[str, Any]) -> None:
        self._scan, self._options, self._shares = scan, options, shares
        count = len(shares)
        self.state: dict[str, Any] = state or {
            "cursors": [[0, 0] for _ in shares], "packed": [0] * count, "documents": [0] * count, "open": None,
            "long": 0, "histogram": {}}
        total = None if isinstance(options.tokens, str) else options.tokens
        self.budgets = [None if total is None else round(total * share) for share in shares]
        self._long = scan.index["chars"] / ratio >= options.threshold
        self._orders: dict[tuple[int, int], numpy.ndarray] = {}

    def order(self, source: int, epoch: int) -> numpy.ndarray:
        """The documents of a source in an epoch, in order."""
        if (source, epoch) not in self._orders:
            mine = numpy.flatnonzero(self._scan.index["source"] == source)
            draw = numpy.random.default_rng([self._options.seed, source, epoch])
            kept = self._long[mine] | (draw.random(len(mine)) < self._options.keep)
            self._orders[source, epoch] = draw.permutation(mine[kept])
        return self._orders[source, epoch]

    def expected(self, ratio: float) -> float:
        """About how many tokens there will be, for the progress bar."""
        if not isinstance(self._options.tokens, str):
            return self._options.tokens
        there = [sum(int(self._scan.index["chars"][self.order(source, epoch)].sum()) / ratio
                     for epoch in range(self._options.epochs)) for source in range(len(self._shares))]
        if self._options.tokens == "all":
            return sum(tokens for tokens, share in zip(there, self._shares) if share > 0)
        return min(tokens / share for tokens, share in zip(there, self._shares) if share > 0)

    def left(self, source: int) -> int | None:
        budget = self.budgets[source]
        return None if budget is None else budget - self.state["packed"][source]

    def next(self) -> tuple[int, numpy.ndarray, int] | None:
        """Source, its order and the place in it; None at the end."""
        behind = sorted((self.state["packed"][s] / share, s) for s, share in enumerate(self._shares) if share > 0)
        for _, source in behind:
            if self.left(source) == 0:
                continue
            cursor = self.state["cursors"][source]
            while cursor[0] < self._options.epochs and cursor[1] >= len(self.order(source, cursor[0])):
                cursor[0], cursor[1] = cursor[0] + 1, 0
            if cursor[0] < self._options.epochs:
                cursor[1] += 1
                return source, self.order(source, cursor[0]), cursor[1] - 1
            if self._options.tokens == "first":
                return None
        return None

    def count(self, source: int, number: int, whole: int, piece: int, first: bool) -> None:
        self.state["packed"][source] += piece
        self.state["documents"][source] += first
        self.state["long"] += piece if self._long[number] else 0
        name = str(report.bin_of(whole))
        self.state["histogram"][name] = self.state["histogram"].get(name, 0) + piece


class _Shard:
    """The shard that is being filled."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._clear()

    def _clear(self) -> None:
        self.filled = 0
        self.ids: list[numpy.ndarray] = []
        self.kinds: list[numpy.ndarray] = []
        self.documents: list[tuple[int, ...]] = []

    def add(self, ids: numpy.ndarray, kinds: numpy.ndarray, origin: tuple[int, int, int, int]) -> None:
        self.documents.append((self.filled, *origin))
        self.ids.append(ids)
        self.kinds.append(kinds)
        self.filled += len(ids)

    def write(self, into: store.Store, state: dict[str, Any]) -> None:
        into.shard_add(numpy.concatenate(self.ids), numpy.concatenate(self.kinds),
                       numpy.array(self.documents, store.DOCUMENT), json.loads(json.dumps(state)))
        self._clear()


def pack(sources: Sequence[Source], folder: str | os.PathLike, tokenizer: Tokenizer,
         options: PackOptions | None = None, show: bool | None = None) -> dict[str, Any]:
    """Packs the sources into `folder` and returns the statistics; goes on where an earlier run was stopped."""
    options, sources = options or PackOptions(), list(sources)
    options.check()
    settings = {"sources": [dataclasses.asdict(source) for source in sources],
                "tokenizer": fingerprint(tokenizer), **dataclasses.asdict(options)}
    head = {"made_by": "pack", "dtype": "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32",
            "tokenizer": {"name": tokenizer.name, "vocabulary": tokenizer.vocabulary,
                          "fingerprint": fingerprint(tokenizer)},
            "mask_documents": options.mask_documents, "row_length": None}
    into = store.Store(folder, settings, head)
    try:
        if into.complete:
            return json.loads((into.folder / "statistics.json").read_bytes())
        scan = Scan.load(into.folder)
        if scan is None:
            scan = scan_sources(sources, options.strip_headers, options.duplicates == "drop", into.folder, show)
            scan.save(into.folder)
        return _pack(into, scan, sources, tokenizer, options, show)
    finally:
        into.close()


def _pack(into: store.Store, scan: Scan, sources: list[Source], tokenizer: Tokenizer, options: PackOptions,
          show: bool | None) -> dict[str, Any]:
    shares, absent = shares_of(options, scan)
    ratio = _ratio(options, sources, scan, tokenizer)
    stream = _Stream(scan, options, shares, ratio, json.loads(json.dumps(into.state)))
    encoder = _Encoder(sources, scan, tokenizer, options)
    state, shard = stream.state, _Shard(options.shard_tokens)
    bar = Progress("packing", stream.expected(ratio), "tokens", show, into.tokens)
    while True:
        if state["open"] is None:
            following = stream.next()
            if following is None:
                break
            source, order, place = following
            number, at = int(order[place]), 0
        else:  # a document that the last shard cut
            source, number, at = state["open"]
            order, place = numpy.array([number]), 0
        ids, kinds = encoder.document(order, place)
        while at < len(ids):
            limits = [len(ids) - at, shard.room - shard.filled, stream.left(source)]
            take = min(limit for limit in limits if limit is not None)
            if not take:
                break
            row = scan.index[number]
            shard.add(ids[at:at + take], kinds[at:at + take], (source, int(row["file"]), int(row["record"]), at))
            stream.count(source, number, len(ids), take, at == 0)
            at += take
            if shard.filled == shard.room:
                state["open"] = [source, number, at] if at < len(ids) and stream.left(source) != 0 else None
                shard.write(into, state)
            bar.at(sum(state["packed"]))
        state["open"] = None
    if shard.filled:
        shard.write(into, state)
    bar.at(sum(state["packed"]), last=True)
    if not into.tokens:
        raise ValueError(f"nothing was packed: source {scan.labels[int(numpy.argmax(shares))]} or another has no "
                         f"document of {options.threshold} estimated tokens, and the keep probability "
                         f"{options.keep} left none; lower the threshold or raise the probability")
    statistics = report.pack_statistics(scan, options, shares, absent, stream.budgets, ratio, state, into.tokens)
    store.file_replace(into.folder / "statistics.json", store.json_bytes(statistics))
    store.file_replace(into.folder / "statistics.md", report.pack_page(statistics).encode("utf-8", "backslashreplace"))
    store.file_replace(into.folder / "files.json", store.json_bytes(
        [{"source": sources[file.source].label, "name": file.name, "bytes": file.size, "sha256": file.sha256,
          "documents": file.documents} for file in scan.files]))
    chat = sorted({scan.labels[s] for s in numpy.unique(scan.index["source"][scan.index["chat"]])})
    into.finish(sources=scan.labels, chat_sources=chat)
    return statistics
