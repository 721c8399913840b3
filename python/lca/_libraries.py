"""One set of CUDA's libraries in a process.

PyTorch brings cuBLAS along as packages of its own, often of another version than the toolkit that liblca.so was built
with. Where lca is imported first, the loader would take the toolkit's for lca and PyTorch's for PyTorch: two versions
of one library, which has crashed. PyTorch's is therefore loaded first; liblca.so then finds it by its name.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import pathlib
import re


def needed(library: pathlib.Path) -> str | None:
    """The name under which a library asks for cuBLASLt; None where it does not."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.search(rb"\0(libcublasLt\.so\.\d+)\0", content)
        return found[1].decode() if found else None


def preload(folder: pathlib.Path) -> pathlib.Path | None:
    """Loads the cuBLASLt that PyTorch would load, where both PyTorch and a CUDA build of lca are there."""
    library = folder / "liblca.so"
    if not library.exists() or importlib.util.find_spec("torch") is None:
        return None
    packages = importlib.util.find_spec("nvidia")
    name = needed(library) if packages else None
    if name is None:
        return None
    for place in packages.submodule_search_locations or ():
        for path in sorted(pathlib.Path(place).glob(f"*/lib/{name}")):
            try:
                ctypes.CDLL(str(path))
            except OSError:
                continue  # the toolkit's serves
            return path
    return None
