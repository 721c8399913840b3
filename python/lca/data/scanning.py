"""Reads all sources once: an index of their documents, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib

import numpy

from lca.data import store
from lca.data.ngrams import Duplicates
from lca.data.progress import Progress
from lca.data.texts import File, Problem, Source, document_text, documents_scan, files_find

MAX_PROBLEMS = 1000  # kept with their text
_INDEX = numpy.dtype([("file", "<u4"), ("record", "<u4"), ("offset", "<i8"), ("size", "<i8"), ("chars", "<i8"),
                      ("source", "<u2"), ("chat", "?")])


class Scan:
    """What was found in the sources: an index of documents, files, problems."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.files: list[File] = []
        self.problems: list[str] = []
        self.problem_count = 0
        self.duplicates: list[dict[str, str]] = []
        self.duplicate_counts = {"exact": 0, "near": 0}
        self.index = numpy.zeros(0, _INDEX)

    def report(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(str(problem))

    def place(self, row: numpy.ndarray) -> str:
        path = self.files[row["file"]].path
        return f"{path}:{row['record']}" if row["record"] else path

    def save(self, folder: pathlib.Path) -> None:
        raw = io.BytesIO()
        numpy.save(raw, self.index)
        store.file_replace(folder / "index.npy", raw.getvalue())
        told = {"labels": self.labels, "files": [dataclasses.asdict(file) for file in self.files],
                "problems": self.problems, "problem_count": self.problem_count, "duplicates": self.duplicates,
                "duplicate_counts": self.duplicate_counts}
        store.file_replace(folder / "scan.json", store.json_bytes(told))  # last: it says that both are there

    @classmethod
    def load(cls, folder: pathlib.Path) -> Scan | None:
        if not (folder / "scan.json").exists():
            return None
        scan, told = cls(), json.loads((folder / "scan.json").read_bytes())
        scan.files = [File(**file) for file in told.pop("files")]
        for name, value in told.items():
            setattr(scan, name, value)
        scan.index = numpy.load(folder / "index.npy", allow_pickle=False)
        return scan


def scan_sources(sources: list[Source], strip_headers: bool, drop_duplicates: bool, but: pathlib.Path,
                 show: bool | None = None) -> Scan:
    """Reads all sources once; what lies in folder `but` is none of them."""
    scan, duplicates = Scan(), Duplicates()
    rows: list[numpy.ndarray] = []
    scan.files = files_find(sources, scan.report, but)
    bar = Progress("reading", sum(file.size for file in scan.files), "bytes", show)
    for document in documents_scan(scan.files, sources, scan.report, bar.at):
        text = document_text(document, strip_headers)
        if not text.strip():
            continue
        if document.label not in scan.labels:
            scan.labels.append(document.label)
        row = numpy.array((document.file, document.record, document.offset, document.size, len(text),
                           scan.labels.index(document.label), not isinstance(document.text, str)), _INDEX)
        if drop_duplicates:
            twin = duplicates.find(text, len(rows))
            if twin:
                scan.duplicate_counts[twin[0]] += 1
                if len(scan.duplicates) < MAX_PROBLEMS:
                    scan.duplicates.append({"place": scan.place(row), "kind": twin[0],
                                            "of": scan.place(rows[twin[1]])})
                continue
        rows.append(row)
    bar.at(sum(file.size for file in scan.files), last=True)
    if not rows:
        first = f" ({scan.problems[0]})" if scan.problems else ""
        raise ValueError(f"the sources have no text{first}")
    scan.index = numpy.array(rows, _INDEX)
    return scan
