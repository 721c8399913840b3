"""How much of held-out text is in training text: the share of its 13-grams of words that occur there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy

from lca.data.ngrams import ngram_hashes
from lca.data.progress import Progress
from lca.data.texts import Document, File, Problem, Source, document_text, documents_scan, files_find


def _sources(paths: Sequence[str | os.PathLike], field: str) -> list[Source]:
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"{os.fspath(path)} does not exist")
    return [Source("text", os.fspath(path), field) for path in paths]


def _place(files: list[File], document: Document) -> str:
    path = files[document.file].path
    return f"{path}:{document.record}" if document.record else path


def overlap(held_out: Sequence[str | os.PathLike], training: Sequence[str | os.PathLike], n: int = 13, worst: int = 10,
            field: str = "text", strip_headers: bool = False, show: bool | None = None) -> dict[str, Any]:
    """Compares files or folders. Memory grows with the held-out text alone."""
    if n < 1 or worst < 0:
        raise ValueError("n is at least 1, and the number of documents to list is not negative")
    problems: list[str] = []

    def tell(problem: Problem) -> None:
        problems.append(str(problem))

    sources = _sources(held_out, field)
    files = files_find(sources, tell)
    places, grams = [], []
    for document in documents_scan(files, sources, tell):
        places.append(_place(files, document))
        grams.append(ngram_hashes(document_text(document, strip_headers), n))
    every = numpy.unique(numpy.concatenate(grams)) if grams else numpy.zeros(0, numpy.uint64)
    if not len(every):
        raise ValueError(f"the held-out text has no {n} words in a row")

    sources = _sources(training, field)
    files = files_find(sources, tell)
    bar = Progress("comparing", sum(file.size for file in files), "bytes", show)
    seen = numpy.full(len(every), -1, numpy.int64)  # the training document that had it first
    where: list[str] = []
    for document in documents_scan(files, sources, tell, bar.at):
        found = ngram_hashes(document_text(document, strip_headers), n)
        at = numpy.minimum(numpy.searchsorted(every, found), len(every) - 1)
        hits = at[every[at] == found]
        new = numpy.unique(hits[seen[hits] < 0])
        if len(new):
            seen[new] = len(where)
            where.append(_place(files, document))
    bar.at(sum(file.size for file in files), last=True)

    documents: list[dict[str, Any]] = []
    total = common = 0
    for place, mine in zip(places, grams):
        owners = seen[numpy.searchsorted(every, mine)]
        hit = owners >= 0
        total, common = total + len(mine), common + int(hit.sum())
        if hit.any():
            most = numpy.bincount(owners[hit]).argmax()
            documents.append({"document": place, "grams": len(mine), "common": int(hit.sum()),
                              "share": float(hit.mean()), "first_in": where[most]})
    documents.sort(key=lambda each: (-each["share"], each["document"]))
    return {"n": n, "documents": len(places), "grams": total, "common": common, "share": common / total,
            "worst": documents[:worst], "problems": problems}


def overlap_page(told: dict[str, Any]) -> str:
    """The result as text."""
    lines = [f"{100 * told['share']:.3f} % of the {told['grams']:,} {told['n']}-grams of {told['documents']:,} "
             f"held-out documents are in the training text"]
    lines += [f"{100 * each['share']:7.3f} %  {each['document']}  (most in {each['first_in']})"
              for each in told["worst"]]
    return "\n".join(lines + told["problems"])
