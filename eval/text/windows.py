#!/usr/bin/env python3
"""Cuts windows out of the held-out and general texts, for perplexity by position.

    eval/text/windows.py TEXTS OUT

TEXTS is what collect.py made. OUT gets held-out/NNN.txt and general/NNN.txt: pieces of 48,000 characters, more than
10,000 tokens of SmolLM2, that begin with a paragraph, up to three of a text, spread over it; essays are short and
are joined before. windows.csv says where each one comes from. long.txt names held-out texts of 500,000 characters and
more, which are more than 120K tokens: haystacks.
"""
import argparse
import csv
import pathlib
import sys

SIZE, MOST = 48_000, 3
LONG = 500_000
JOINED = "essays"


def windows_of(text):
    """(offset, piece) of up to three pieces that do not overlap."""
    count = min(MOST, len(text) // (SIZE + SIZE // 4))
    for number in range(count):
        at = number * len(text) // count + (len(text) // count - SIZE) // 2
        at = text.find("\n\n", at - SIZE // 16) + 2
        if at >= 2 and at + SIZE <= len(text):
            yield at, text[at:at + SIZE]


def texts_of(folder):
    """(name, text) below a folder: each file; essays as one."""
    joined = []
    for path in sorted(folder.rglob("*.txt")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(folder).as_posix()
        if name.startswith(JOINED + "/"):
            joined.append(text)
        else:
            yield name, text
    whole = "\n\n".join(joined)
    for number in range(len(whole) // (SIZE + SIZE // 4)):  # as many windows as it has
        at = number * (SIZE + SIZE // 4)
        yield f"{JOINED} from {at}", whole[at:at + SIZE + SIZE // 4]


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("texts", type=pathlib.Path)
    options.add_argument("out", type=pathlib.Path)
    args = options.parse_args()
    rows, long = [], []
    for split in ("held-out", "general"):
        (args.out / split).mkdir(parents=True, exist_ok=True)
        number = 0
        for name, text in texts_of(args.texts / split):
            for at, piece in windows_of(text):
                (args.out / split / f"{number:03d}.txt").write_text(piece, encoding="utf-8")
                rows.append([split, f"{number:03d}.txt", name, at])
                number += 1
            if split == "held-out" and len(text) >= LONG:
                long.append(f"{split}/{name}")
        print(f"{split}: {number} windows of {len({row[2] for row in rows if row[0] == split})} texts")
    with open(args.out / "windows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([["split", "window", "text", "offset"], *rows])
    (args.out / "long.txt").write_text("\n".join(long) + "\n", encoding="utf-8")
    print(f"{len(long)} long texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
