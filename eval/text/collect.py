#!/usr/bin/env python3
"""Collects the texts for fine-tuning SmolLM2 and for measuring it, as files.csv lists them.

    eval/text/collect.py FOLDER [--split NAME …] [--clones FOLDER] [--packages FOLDER] [--jobs N] [--update]

Books and essays come from public GitHub repositories at fixed commits, manuals from Debian's documentation packages
at fixed versions (sources.json). Books lose their headers; pages of manuals become text and are joined, in the order of
their names, into documents of some 40K tokens. FOLDER gets train/LABEL, held-out/LABEL and general/LABEL. Every
text is compared with its SHA-256 in files.csv; --update writes that list instead. --split makes a part of them: general
for the texts that are for evaluation alone. The texts stay out of the repository.
"""
import argparse
import csv
import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import unicodedata
import urllib.error
import urllib.parse
import urllib.request

from page_text import english_share, page_text

HERE = pathlib.Path(__file__).resolve().parent
SPLITS = ["train", "held-out", "general"]
COLUMNS = ["split", "label", "source", "name", "bytes", "sha256"]
PART = 160_000  # characters of a document that is made of pages
SMALL, ENGLISH = 400, 0.16  # a page needs as many characters, and that share of common words
_HEADER = re.compile(r"\A\s*# Title:.*?\n-{3,}[ \t]*\n", re.DOTALL)


class Failure(Exception):
    """One line for whoever ran the script."""


# --- getting ---

def clone_of(clones, repository):
    """A clone of a GitHub repository, made where there is none."""
    owner, name = repository.split("/")
    for inside in (f"{owner}+{name}/repo", f"{owner}/{name}", name, f"{name}.git"):
        if (clones / inside).is_dir():
            return clones / inside
    target = clones / f"{name}.git"
    made = subprocess.run(["git", "clone", "--quiet", "--bare", f"https://github.com/{repository}", str(target)],
                          check=False)
    if made.returncode != 0:
        raise Failure(f"{repository} could not be cloned; clone it into {target}")
    return target


def git_files(clone, commit, under=""):
    """(path, content) of every file of a commit; one that the clone does not hold has content None."""
    listed = subprocess.run(["git", "-C", str(clone), "ls-tree", "-r", "-z", commit, *([under] if under else [])],
                            capture_output=True, check=False)
    if listed.returncode != 0:
        raise Failure(f"{clone} has no commit {commit}")
    entries = [entry.split("\t", 1) for entry in listed.stdout.decode().split("\0") if entry]
    with subprocess.Popen(["git", "-C", str(clone), "cat-file", "--batch"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        for about, path in entries:
            reader.stdin.write(about.split()[2].encode() + b"\n")
            reader.stdin.flush()
            head = reader.stdout.readline().split()
            if len(head) != 3:
                yield path, None
                continue
            content = reader.stdout.read(int(head[2]))
            reader.stdout.read(1)
            yield path, content


def package_get(folder, package, archives):
    """The file of a Debian package, downloaded where it is not there."""
    target = folder / pathlib.PurePosixPath(package["file"]).name
    if not target.is_file() or digest_of(target.read_bytes()) != package["sha256"]:
        folder.mkdir(parents=True, exist_ok=True)
        for archive in archives:
            try:
                with urllib.request.urlopen(archive + urllib.parse.quote(package["file"]), timeout=120) as answer:
                    content = answer.read()
            except (urllib.error.URLError, TimeoutError, OSError):
                continue
            if digest_of(content) == package["sha256"]:
                draft = target.with_suffix(f".{os.getpid()}.part")
                draft.write_bytes(content)
                draft.replace(target)
                break
        else:
            raise Failure(f"{package['file']} cannot be had; put {target.name} with SHA-256 {package['sha256']} "
                          f"into {folder}")
    return target


def package_files(path):
    """(path, content) of every regular file of a Debian package, in the order of paths."""
    raw = path.read_bytes()
    at, data = 8, None
    while at < len(raw):  # an ar archive; data.tar.* has the files
        name, size = raw[at:at + 16].decode().strip().rstrip("/"), int(raw[at + 48:at + 58])
        if name.startswith("data.tar"):
            data = raw[at + 60:at + 60 + size]
        at += 60 + size + size % 2
    if data is None:
        raise Failure(f"{path} is no Debian package")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(member.name.removeprefix("./"), member) for member in archive.getmembers() if member.isfile()]
        contents = {name: archive.extractfile(member).read() for name, member in found
                    if member.size < 8 << 20 and re.search(r"\.(x?html?|pod|info(-\d+)?|txt|md|rst)(\.gz)?$", name)}
    yield from sorted(contents.items())


# --- making ---

def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def file_name(text):
    """A name of letters, digits, dots and dashes."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", plain).strip("-.") or "x"


def matches(name, patterns):
    return any(name == pattern or pattern.endswith("/*") and name.startswith(pattern[:-1]) for pattern in patterns)


def book_text(raw):
    """A book without the header of the collection, and without white space at the ends of lines."""
    text = _HEADER.sub("", raw.decode("utf-8", "replace").replace("\r\n", "\n"), count=1)
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"^(#+) +", r"\1 ", text, flags=re.MULTILINE)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def books_make(sources, clones):
    """(split, label, source, name, text) of every book."""
    books = sources["books"]
    clone = clone_of(clones, books["repository"])
    for path, raw in git_files(clone, books["commit"]):
        title = path.removesuffix(".md")
        if "/" not in path or title in books["leave_out"]:
            continue
        if raw is None:
            raise Failure(f"{clone} does not hold {path}; clone {books['repository']} anew")
        label = "nonfiction" if matches(title, books["nonfiction"]) else \
            "verse" if matches(title, books["verse"]) else "fiction"
        author, name = title.split("/", 1)
        split = "held-out" if author in books["held_out"] else "train"
        yield split, label, books["repository"], f"{file_name(author)}/{file_name(name)}.txt", book_text(raw)


def essays_make(sources, clones):
    essays = sources["essays"]
    for path, raw in git_files(clone_of(clones, essays["repository"]), essays["commit"], essays["under"]):
        if path.endswith(".txt") and raw and len(raw) >= SMALL:
            yield "general", "essays", essays["repository"], pathlib.PurePosixPath(path).name, plain(raw)


def plain(raw):
    return raw.decode("utf-8", "replace").replace("\r\n", "\n").strip() + "\n"


def manual_make(task):
    """The documents of one package: pages joined in the order of their names."""
    package, folder, archives, usual = task
    include = re.compile(package.get("include", usual["include"]))
    exclude = re.compile(usual["exclude"] + ("|" + package["exclude"] if "exclude" in package else ""))
    pages, seen = [], set()
    for name, raw in package_files(package_get(folder, package, archives)):
        if not include.search(name) or exclude.search(name):
            continue
        try:
            text = page_text(name, raw)
        except (OSError, EOFError):
            continue
        mark = digest_of(text.encode())
        if len(text) >= SMALL and mark not in seen and english_share(text) >= ENGLISH:
            seen.add(mark)
            pages.append(text)
    documents, part = [], []
    for text in pages:
        part.append(text)
        if sum(map(len, part)) >= PART:
            documents.append("\n\n".join(part))
            part = []
    if part:
        documents.append("\n\n".join(part))
    split, label = package.get("split", "train"), package.get("label", "documentation")
    return [(split, label, package["name"], f"{file_name(package['name'])}-{number:03d}.txt", text)
            for number, text in enumerate(documents)]


def texts_make(sources, args):
    if {"train", "held-out"} & set(args.split):
        yield from (text for text in books_make(sources, args.clones) if text[0] in args.split)
    if "general" in args.split:
        yield from essays_make(sources, args.clones)
    archives, usual = sources["archives"], sources["pages"]
    tasks = [(package, args.packages, archives, usual) for package in sources["packages"]
             if package.get("split", "train") in args.split]
    with multiprocessing.Pool(args.jobs) as pool:
        for found in pool.imap(manual_make, tasks):
            yield from found


# --- command ---

def collect(args):
    sources = json.loads((HERE / "sources.json").read_text())
    listed = list(csv.DictReader(open(HERE / "files.csv", encoding="utf-8"))) if (HERE / "files.csv").exists() else []
    known = {} if args.update else {f"{row['split']}/{row['label']}/{row['name']}": row for row in listed
                                    if row["split"] in args.split}
    rows, wrong = [], []
    for split, label, source, name, text in texts_make(sources, args):
        content = text.encode()
        row = dict(zip(COLUMNS, (split, label, source, name, len(content), digest_of(content))))
        place = f"{split}/{label}/{name}"
        if not args.update and (place not in known or known[place]["sha256"] != row["sha256"]):
            wrong.append(place)
            continue
        rows.append(row)
        target = args.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_bytes() != content:
            draft = target.with_name(target.name + ".part")
            draft.write_bytes(content)
            draft.replace(target)
        known.pop(place, None)
    if wrong or known:
        raise Failure(f"{len(wrong)} texts are not as files.csv has them and were not written, {len(known)} were not "
                      f"found; the first is {(wrong + list(known))[0]}")
    if args.update:
        rows += [{**row, "bytes": int(row["bytes"])} for row in listed if row["split"] not in args.split]
        rows.sort(key=lambda row: (row["split"], row["label"], row["name"]))
        with open(HERE / "files.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    total = {}
    for row in rows:
        count, size = total.get((row["split"], row["label"]), (0, 0))
        total[row["split"], row["label"]] = count + 1, size + row["bytes"]
    print("\n".join(f"{split:9} {label:14} {count:5} texts {size / 1e6:8.1f} MB"
                    for (split, label), (count, size) in sorted(total.items())))


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--split", nargs="+", choices=SPLITS, default=SPLITS, help="parts to make (all)")
    options.add_argument("--clones", type=pathlib.Path, metavar="FOLDER", help="of GitHub repositories")
    options.add_argument("--packages", type=pathlib.Path, metavar="FOLDER", help="of Debian packages")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--update", action="store_true", help="write files.csv instead of comparing with it")
    args = options.parse_args()
    args.clones = args.clones or args.folder / "clones"
    args.packages = args.packages or args.folder / "packages"
    try:
        args.clones.mkdir(parents=True, exist_ok=True)
        collect(args)
    except (Failure, OSError) as failure:
        print(f"collect: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("collect: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
