"""Folders of tokens that survive a kill.

    DIR/manifest.json          what the folder is: tokenizer, settings, sources, shards with their SHA-256, state
    DIR/shard-00000/ids.npy        tokens, uint16 or uint32
    DIR/shard-00000/kinds.npy      loss kind of each token, uint8: 0 none, 1 text, 2 answer
    DIR/shard-00000/documents.npy  where documents start, and where they come from

A shard is written under another name, synced and renamed, and counts when the manifest names it; so is the manifest.
A later run with the same settings goes on after the last shard.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import numpy

FORMAT, VERSION = "lca-tokens", 1
NONE, TEXT, ANSWER = 0, 1, 2  #: loss kinds
#: A document, or a piece of one: where it starts in the shard, its source's number, and where it comes from: file,
#: line (0: the whole file), and how many of its tokens came before this piece.
DOCUMENT = numpy.dtype([("start", "<i8"), ("source", "<u2"), ("file", "<u4"), ("record", "<u4"), ("skip", "<i8")])


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_replace(path: pathlib.Path, content: bytes) -> None:
    """Writes a file completely or not at all."""
    draft = path.with_name(path.name + ".part")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync(path.parent)


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def file_hash(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_read(folder: str | os.PathLike) -> dict[str, Any]:
    """The manifest of a folder."""
    path = pathlib.Path(folder) / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is no folder of tokens: it has no manifest.json") from None
    except ValueError:
        raise ValueError(f"{path} is damaged; make the folder again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of a folder of tokens")
    if manifest.get("version") != VERSION:
        raise ValueError(f"{path} has version {manifest.get('version')}; this reads version {VERSION}")
    return manifest


class Store:
    """A folder that is being written. `settings` are all that the result depends on."""

    PARTS = ("scan.json", "index.npy")  #: what a beginning may have left

    def __init__(self, folder: str | os.PathLike, settings: dict[str, Any], head: dict[str, Any]) -> None:
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.folder / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"{folder} is being written by another process") from None
        settings = json.loads(json.dumps(settings))
        try:
            self._open(settings, head)
        except BaseException:
            self._lock.close()
            raise
        known = {shard["name"] for shard in self.manifest["shards"]}
        for each in self.folder.glob("shard-*"):
            if each.name not in known:
                shutil.rmtree(each)

    def _open(self, settings: dict[str, Any], head: dict[str, Any]) -> None:
        """Goes on with the folder, or begins it: also one that was begun otherwise and has no shard yet."""
        if (self.folder / "manifest.json").exists():
            self.manifest = manifest_read(self.folder)
            if self.manifest["shards"] or self.manifest["settings"] == settings:
                self._compare(settings)
                return
            for name in self.PARTS:
                (self.folder / name).unlink(missing_ok=True)
        elif any(each.name != ".lock" and not each.name.endswith(".part") for each in self.folder.iterdir()):
            raise ValueError(f"{self.folder} has files of another kind; name a new folder")
        self.manifest = {"format": FORMAT, "version": VERSION, "complete": False, **head, "settings": settings,
                         "shards": [], "state": {}}
        self.save()

    def _compare(self, settings: dict[str, Any]) -> None:
        for name in {**settings, **self.manifest["settings"]}:
            then, now = self.manifest["settings"].get(name), settings.get(name)
            if then != now:
                raise ValueError(f"{self.folder} was begun with {name} {_short(then)}, not {_short(now)}; "
                                 "name a new folder or use the settings it was begun with")

    @property
    def state(self) -> dict[str, Any]:
        return self.manifest["state"]

    @property
    def complete(self) -> bool:
        return self.manifest["complete"]

    @property
    def tokens(self) -> int:
        return sum(shard["tokens"] for shard in self.manifest["shards"])

    def save(self) -> None:
        file_replace(self.folder / "manifest.json", json_bytes(self.manifest))

    def shard_add(self, ids: numpy.ndarray, kinds: numpy.ndarray, documents: numpy.ndarray,
                  state: dict[str, Any]) -> None:
        """A further shard, and the state after it."""
        name = f"shard-{len(self.manifest['shards']):05d}"
        draft = self.folder / f"{name}.part"
        draft.mkdir()
        files = {}
        for part, array in (("ids", ids.astype(self.manifest["dtype"])), ("kinds", kinds.astype(numpy.uint8)),
                            ("documents", documents)):
            path = draft / f"{part}.npy"
            numpy.save(path, array)
            _sync(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        _sync(draft)
        os.replace(draft, self.folder / name)
        _sync(self.folder)
        self.manifest["shards"].append({"name": name, "tokens": len(ids), "documents": len(documents),
                                        "files": files})
        self.manifest["state"] = state
        self.save()

    def finish(self, **more: Any) -> None:
        self.manifest.update(complete=True, state={}, **more)
        self.save()

    def close(self) -> None:
        self._lock.close()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def store_check(folder: str | os.PathLike) -> list[str]:
    """What is wrong with a folder: one line for each file that is not as it was written."""
    manifest, found = manifest_read(folder), []
    if not manifest["complete"]:
        found.append("it is not complete; run the command that began it again")
    for shard in manifest["shards"]:
        for name, wanted in shard["files"].items():
            path = pathlib.Path(folder) / shard["name"] / name
            if not path.is_file():
                found.append(f"{shard['name']}/{name} is missing")
            elif path.stat().st_size != wanted["bytes"] or file_hash(path) != wanted["sha256"]:
                found.append(f"{shard['name']}/{name} is not as it was written")
    return found
