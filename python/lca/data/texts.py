"""Documents from folders of text and JSON lines.

A .jsonl, .ndjson or .json file has one JSON object a line; any other regular file is one document. Whatever cannot be
read is a ``Problem`` with one line of explanation, and reading goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

LINES = (".jsonl", ".ndjson", ".json")
PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".7z")
MAX_BYTES = 256 << 20  # of a document
_BAD_SHARE = 1e-3  # of a text's bytes may be no UTF-8


@dataclasses.dataclass(frozen=True)
class Source:
    """Text under a label: `label=path[,field=text][,by=meta.set]`."""

    label: str
    path: str
    field: str = "text"  #: of JSON lines; dots lead into objects; "messages" is a conversation
    by: str = ""  #: a field whose value is the label instead


@dataclasses.dataclass(frozen=True)
class Problem:
    """What could not be read, or only in part."""

    place: str  #: a file, or file:line
    what: str

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else "?" for c in f"{self.place}: {self.what}")


@dataclasses.dataclass(frozen=True)
class Document:
    """A document as it was found."""

    file: int  #: number of the file
    record: int  #: line, from 1; 0: the file is the document
    offset: int
    size: int  #: bytes
    label: str
    text: str | list[tuple[str, str]]  #: a text, or a conversation


@dataclasses.dataclass
class File:
    """An input file, with what must not change until packing is done."""

    source: int
    path: str
    name: str  #: below the source's path
    size: int = 0
    modified: int = 0
    sha256: str = ""
    documents: int = 0


Report = Callable[[Problem], None]


def source_parse(text: str) -> Source:
    """Reads `label=path[,field=text][,by=meta.set]`."""
    label, equals, rest = text.partition("=")
    if not equals or not label or not rest:
        raise ValueError(f"a source is LABEL=PATH[,field=NAME][,by=NAME], not {text!r}")
    options = {}
    while match := re.search(r",(field|by)=([^,=]+)$", rest):
        options[match[1]] = match[2]
        rest = rest[:match.start()]
    if not os.path.exists(rest):
        raise FileNotFoundError(f"source {label}: {rest} does not exist")
    return Source(label, rest, **options)


def files_find(sources: list[Source], report: Report, but: str | os.PathLike | None = None) -> list[File]:
    """All files of the sources but those in one folder, sorted, each once; what is no regular file is reported."""
    found, seen = [], set()
    apart = None if but is None else pathlib.Path(os.path.realpath(but))
    for number, source in enumerate(sources):
        root = pathlib.Path(source.path)
        paths = [root]
        if root.is_dir():
            paths = sorted(pathlib.Path(folder) / name for folder, _, names in
                           os.walk(root, onerror=lambda e: report(Problem(str(e.filename), _reason(e))))
                           for name in names if not name.startswith("."))
        for path in paths:
            try:
                if not path.is_file():
                    report(Problem(str(path), "skipped: no regular file"))
                    continue
                status = path.stat()
            except OSError as error:
                report(Problem(str(path), _reason(error)))
                continue
            real = os.path.realpath(path)
            if apart is not None and pathlib.Path(real).is_relative_to(apart):
                continue
            if (real, source.field) in seen:
                report(Problem(str(path), "skipped: the same file was named before"))
            elif path.suffix.lower() in PACKED:
                report(Problem(str(path), "skipped: compressed; unpack it first"))
            else:
                seen.add((real, source.field))
                name = path.name if path == root else path.relative_to(root).as_posix()
                found.append(File(number, str(path), name, status.st_size, status.st_mtime_ns))
    return found


def _reason(error: OSError) -> str:
    return f"skipped: {error.strerror or error}"


def documents_scan(files: list[File], sources: list[Source], report: Report,
                   at: Callable[[int], Any] = lambda done: None) -> Iterator[Document]:
    """Every document of the files; fills in the files' hashes. `at` is told how many bytes are read."""
    before = 0
    for number, file in enumerate(files):
        read = _lines_scan if file.path.lower().endswith(LINES) else _text_scan
        try:
            for document in read(number, file, sources[file.source], report, lambda done: at(before + done)):
                file.documents += 1
                yield document
        except OSError as error:
            report(Problem(file.path, _reason(error)))
        before += file.size
        at(before)


def _text_scan(number: int, file: File, source: Source, report: Report, at) -> Iterator[Document]:
    if file.size > MAX_BYTES:
        report(Problem(file.path, f"skipped: {file.size >> 20} MiB is more than a document may have "
                                  f"({MAX_BYTES >> 20} MiB)"))
        return
    with open(file.path, "rb") as opened:
        raw = opened.read()
    file.sha256 = hashlib.sha256(raw).hexdigest()
    try:
        text = _text_of(raw, lambda what: report(Problem(file.path, what)))
    except ValueError as error:
        report(Problem(file.path, f"skipped: {error}"))
        return
    if not text.strip():
        report(Problem(file.path, "skipped: empty"))
        return
    yield Document(number, 0, 0, len(raw), source.label, text)


def _text_of(raw: bytes, notice: Callable[[str], Any]) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("UTF-16; convert it to UTF-8")
    if b"\0" in raw[:1 << 16]:
        raise ValueError("binary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = raw.decode("utf-8-sig", "replace")
        bad = text.count("\ufffd")
        if bad > max(1, _BAD_SHARE * len(raw)):
            raise ValueError(f"no UTF-8 from byte {error.start} on") from None
        notice(f"{bad} places are no UTF-8, the first at byte {error.start}; replaced by U+FFFD")
        return text


def _lines_scan(number: int, file: File, source: Source, report: Report, at) -> Iterator[Document]:
    digest, offset, line = hashlib.sha256(), 0, 0
    with open(file.path, "rb") as opened:
        while True:
            raw = opened.readline(MAX_BYTES + 1)
            if not raw:
                break
            digest.update(raw)
            line, start, size = line + 1, offset, len(raw)
            offset += size
            place = f"{file.path}:{line}"
            if size > MAX_BYTES and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = opened.readline(1 << 24)
                    digest.update(raw)
                    offset += len(raw)
                report(Problem(place, f"skipped: a line of more than {MAX_BYTES >> 20} MiB"))
                continue
            if line == 1 and b"\0" in raw[:1 << 16]:
                report(Problem(file.path, "skipped: binary"))
                return
            if not raw.strip():
                continue
            try:
                label, text = _record_of(raw, source)
            except ValueError as error:
                report(Problem(place, f"skipped: {error}"))
                continue
            yield Document(number, line, start, size, label, text)
            at(offset)
    file.sha256 = digest.hexdigest()


def _field_of(record: Any, name: str) -> Any:
    for part in name.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _record_of(raw: bytes, source: Source) -> tuple[str, str | list[tuple[str, str]]]:
    try:
        record = json.loads(raw)
    except UnicodeDecodeError:
        raise ValueError("no UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error})" if isinstance(error, json.JSONDecodeError) else "no JSON") from None
    label = source.label
    if source.by:
        label = _field_of(record, source.by)
        if not isinstance(label, str) or not label:
            raise ValueError(f"no text in field {source.by}")
    content = _field_of(record, source.field)
    if isinstance(content, list):
        return label, _conversation_of(content)
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"no text in field {source.field}")
    return label, _clean(content)


def _clean(text: str) -> str:
    """Lone surrogates, which JSON may spell and UTF-8 may not, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _conversation_of(content: list) -> list[tuple[str, str]]:
    messages = []
    for message in content:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str) \
                or message.get("role") not in ("system", "user", "assistant"):
            raise ValueError('messages are {"role": "system", "user" or "assistant", "content": text}')
        messages.append((message["role"], _clean(message["content"])))
    roles = [role for role, _ in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or turns != ["user", "assistant"] * (len(turns) // 2):
        raise ValueError("a conversation is user, assistant, user, assistant, …, after a system message or none")
    return messages


def document_load(file: File, source: Source, offset: int, size: int, record: int) -> str | list[tuple[str, str]]:
    """A document again, by its place."""
    try:
        status = os.stat(file.path)
        if status.st_size != file.size or status.st_mtime_ns != file.modified:
            raise ValueError(f"{file.path} was changed since packing began; pack into a new folder")
        with open(file.path, "rb") as opened:
            opened.seek(offset)
            raw = opened.read(size)
    except OSError as error:
        raise ValueError(f"{file.path} can no longer be read ({error.strerror}); pack into a new folder") from None
    return _record_of(raw, source)[1] if record else _text_of(raw, lambda what: None)


# The lines with which Project Gutenberg begins and ends a book, in their newer and older forms.
_BEGIN = re.compile(r"^[ \t]*(?:\*{3}\s*START OF (?:THE|THIS) PROJECT GUTENBERG.*?\*{3}"
                    r"|\*END\*\s*THE SMALL PRINT!?.*?\*END\*)[ \t]*$", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_END = re.compile(r"^[ \t]*(?:\*{3}\s*END OF (?:THE|THIS) PROJECT GUTENBERG"
                  r"|End of (?:the |this )?Project Gutenberg)", re.MULTILINE | re.IGNORECASE)
_CREDITS = re.compile(r"\s*(?:(?:E-text )?Produced by|This e-?text was|Transcribed from|\[Transcriber).*?\n\s*\n",
                      re.DOTALL | re.IGNORECASE)


def headers_strip(text: str) -> str:
    """A book without what Project Gutenberg wrote before and after it; any other text as it is."""
    text = text.replace("\r\n", "\n")
    begin = _BEGIN.search(text)
    start = begin.end() if begin else 0
    end = _END.search(text, start)
    if not begin and not end:
        return text
    text = text[start:end.start() if end else len(text)]
    credits = _CREDITS.match(text)
    if credits and credits.end() < 4096:
        text = text[credits.end():]
    return text.strip() + "\n"


def document_text(document: Document, strip_headers: bool) -> str:
    """What a document says; of a conversation, its messages."""
    if not isinstance(document.text, str):
        return "\n".join(text for _, text in document.text)
    return headers_strip(document.text) if strip_headers else document.text
