#!/usr/bin/env python3
"""Fetches CuTe's headers (the Python package nvidia-cutlass) into .cache/cutlass; does nothing when
they are there. The version and the wheel's checksum are pinned below."""

import pathlib
import shutil
import sys
import tempfile
import zipfile

from wheels import Failure, download, sha256_of

PACKAGE = "nvidia-cutlass==4.2.0.0"
SHA256 = "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6"
INSIDE = "cutlass_library/source/include/"
TARGET = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "cutlass"


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.startswith(INSIDE) or name.endswith("/"):
                continue
            path = folder / "include" / name[len(INSIDE):]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    (folder / "version").write_text(PACKAGE + "\n")


def main():
    version = TARGET / "version"
    if version.is_file() and version.read_text().strip() == PACKAGE:
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="cutlass-", dir=TARGET.parent) as name:
            folder = pathlib.Path(name)
            wheel = download(PACKAGE, folder, quiet=True)
            if sha256_of(wheel) != SHA256:
                raise Failure(f"{wheel.name} is not the file that was expected (its checksum differs)")
            unpack(wheel, folder / "new")
            shutil.rmtree(TARGET, ignore_errors=True)
            (folder / "new").rename(TARGET)  # whole or not at all
    except (OSError, zipfile.BadZipFile) as error:
        raise Failure(str(error)) from error
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"cutlass: {failure}")
