#!/usr/bin/env python3
"""Checks who includes whom.

The rooms of the house are ordered; a room may use the rooms before it in ROOMS and itself, no
others. Public headers use the standard library and each other, nothing else. Every violation is
printed as file:line: what; the exit code is 1 if there is one.
"""

import pathlib
import re
import sys

# From the ground up. `lca` is include/lca, the public API.
ROOMS = ["lca", "core", "ops", "attention", "methods", "formats", "models", "engine", "eval", "server"]

# Beyond the order: rooms that must not know a lower one.
MUST_NOT_KNOW = {"server": {"ops", "attention", "eval"}}

STANDARD_HEADERS = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono
cinttypes climits clocale cmath compare complex concepts condition_variable coroutine csetjmp
csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception
execution filesystem format forward_list fstream functional future initializer_list iomanip ios
iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new
numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set
shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map
unordered_set utility valarray variant vector version
""".split())

SOURCES = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inl"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(path):
    """Yields (line number, '<' or '"', name) of every include of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCES) if folder.is_dir() else []


def room_of(path, root):
    """The room a file lives in; None outside include/lca and src."""
    parts = path.relative_to(root).parts
    if parts[:2] == ("include", "lca"):
        return "lca"
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def resolve(name, including, root):
    """The file of the project that an include names, or None."""
    for base in (including.parent, root / "src", root / "include"):
        candidate = (base / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate
    return None


def check_public_header(path, root):
    for number, _, name in includes(path):
        if name.startswith("lca/"):
            if not (root / "include" / name).is_file():
                yield number, f"<{name}> does not exist"
        elif name not in STANDARD_HEADERS:
            yield number, f"a public header includes {name}: only std and <lca/…> may appear there"


def check_source(path, root):
    room = room_of(path, root)
    if room not in ROOMS:
        yield 1, f"{path.relative_to(root)} is in no room of the list in {pathlib.Path(__file__).name}"
        return
    for number, bracket, name in includes(path):
        target = resolve(name, path, root)
        if target is None:
            if bracket == '"':
                yield number, f'"{name}" is no file of the project; use <> for others\' headers'
            continue
        other = room_of(target, root)
        if other is None:
            yield number, f"{room} may not use {target.relative_to(root)}"
        elif other not in ROOMS[: ROOMS.index(room) + 1] or other in MUST_NOT_KNOW.get(room, ()):
            yield number, f"{room} may not use {other} ({name})"


def check(root):
    """All violations below `root`, as lines of text."""
    root = root.resolve()
    found = []
    for path in sources(root / "include"):
        found += [(path, *v) for v in check_public_header(path, root)]
    for path in sources(root / "src"):
        found += [(path, *v) for v in check_source(path, root)]
    return [f"{path.relative_to(root)}:{number}: {what}" for path, number, what in found]


if __name__ == "__main__":
    violations = check(pathlib.Path(__file__).parent.parent)
    print("\n".join(violations) if violations else "every room keeps to its place")
    sys.exit(1 if violations else 0)
