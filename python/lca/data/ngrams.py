"""Hashes of n-grams of words, by numpy.

Words are runs of letters, digits and bytes beyond ASCII, in lower case; punctuation and white space do not count. A
word's hash is a polynomial over its bytes, an n-gram's one over its words, both mixed; equal text has equal hashes on
every machine.
"""

from __future__ import annotations

import numpy

_BLOCK = 4 << 20  # characters hashed together
_WORD_TABLE = bytes((i if chr(i).isalnum() or i >= 128 else 32) for i in range(256))
_LETTERS = 64  # powers of a word's polynomial repeat after as many bytes


def _powers(base: int, count: int) -> numpy.ndarray:
    factors = numpy.full(count, base, numpy.uint64)
    factors[0] = 1
    return numpy.cumprod(factors, dtype=numpy.uint64)


_IN_WORD = _powers(0x9E3779B97F4A7C15, _LETTERS)


def _mixed(values: numpy.ndarray) -> numpy.ndarray:
    """SplitMix64's last steps: all bits depend on all bits."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))


def word_hashes(text: str) -> numpy.ndarray:
    """One uint64 for each word."""
    found, at = [], 0
    while at < len(text):
        end = min(len(text), at + _BLOCK)
        if end < len(text):
            space = text.rfind(" ", at, end)
            end = space if space > at else end
        found.append(_block_hashes(text[at:end]))
        at = end
    return numpy.concatenate(found) if found else numpy.zeros(0, numpy.uint64)


def _block_hashes(text: str) -> numpy.ndarray:
    raw = numpy.frombuffer(text.lower().encode("utf-8", "replace").translate(_WORD_TABLE), numpy.uint8)
    inside = raw != 32
    if not inside.any():
        return numpy.zeros(0, numpy.uint64)
    edge = numpy.flatnonzero(numpy.diff(numpy.concatenate([[0], inside.view(numpy.int8), [0]])))
    starts, ends = edge[::2], edge[1::2]
    letters = raw[inside].astype(numpy.uint64)
    lengths = ends - starts
    first = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]])
    place = numpy.arange(len(letters)) - numpy.repeat(first, lengths)
    return _mixed(numpy.add.reduceat(letters * _IN_WORD[place % _LETTERS], first))


def ngram_hashes(text: str, n: int = 13) -> numpy.ndarray:
    """One uint64 for each n words in a row, in order; empty for shorter texts."""
    return _word_ngrams(word_hashes(text), n)


def _word_ngrams(words: numpy.ndarray, n: int) -> numpy.ndarray:
    count = len(words) - n + 1
    if count <= 0:
        return numpy.zeros(0, numpy.uint64)
    total = numpy.zeros(count, numpy.uint64)
    for k, power in enumerate(_powers(0xD1342543DE82EF95, n)):
        total += words[k:k + count] * power
    return _mixed(total)


def _smallest(values: numpy.ndarray, count: int) -> list[int]:
    """The `count` smallest values, each once, without sorting all."""
    take = 4 * count
    while take < len(values):
        found = numpy.unique(numpy.partition(values, take)[:take])
        if len(found) >= count:
            return found[:count].tolist()
        take *= 4
    return numpy.unique(values)[:count].tolist()


class Duplicates:
    """Tells whether a document was seen before: equal words, or nearly all of a sample of its 13-grams."""

    SAMPLE, NEAR, N = 16, 0.8, 13

    def __init__(self) -> None:
        self._exact: dict[int, int] = {}
        self._grams: dict[int, int] = {}

    def find(self, text: str, number: int) -> tuple[str, int] | None:
        """("exact" or "near", the earlier document's number), or None and remembers this one as `number`."""
        words = word_hashes(text)
        placed = words * _mixed(numpy.arange(1, len(words) + 1, dtype=numpy.uint64))
        whole = int(numpy.sum(placed, dtype=numpy.uint64))
        if whole in self._exact:
            return "exact", self._exact[whole]
        grams = _smallest(_word_ngrams(words, self.N), self.SAMPLE)
        votes: dict[int, int] = {}
        for gram in grams:
            if gram in self._grams:
                votes[self._grams[gram]] = votes.get(self._grams[gram], 0) + 1
        if votes and len(grams) >= 4:
            best = max(votes, key=lambda each: votes[each])
            if votes[best] >= self.NEAR * len(grams):
                return "near", best
        self._exact[whole] = number
        for gram in grams:
            self._grams.setdefault(gram, number)
        return None
