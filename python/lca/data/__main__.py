"""The command line of lca.data."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import numpy

from lca.data.joining import join
from lca.data.mixing import MixOptions, mix
from lca.data.overlap import overlap, overlap_page
from lca.data.packing import PRESETS, PackOptions, pack
from lca.data.reader import Packed
from lca.data.report import mix_page, pack_page
from lca.data.rows import RowOptions
from lca.data.store import ANSWER, store_check
from lca.data.texts import source_parse
from lca.data.tokenizers import fingerprint, tokenizer_open

_PACK = """examples:
  python -m lca.data pack packed --tokenizer smollm2 --source novels=books/novels --source letters=books/letters \\
      --strip-headers --tokens 60M
  python -m lca.data pack packed --tokenizer ./model --source slimpajama=train.jsonl,by=meta.redpajama_set_name \\
      --shares slimpajama --tokens 2G
  python -m lca.data pack packed --tokenizer smollm2 --source books=books --source chat=replies.jsonl,field=messages \\
      --shares books=0.8,chat=0.2 --keep 1

The same command goes on after an interruption."""
_MIX = """examples:
  python -m lca.data mix packed mixed-8k --length 8192
  python -m lca.data mix packed mixed-1k --length 1024 --tokens 20M --tasks facts=2,passage=1 --chat-share 0.5
  python -m lca.data show mixed-8k --row 1"""
_JOIN = """example:
  python -m lca.data join packed packed-books packed-chat

Documents of a small folder are spread evenly over a large one."""
_OVERLAP = """example:
  python -m lca.data overlap --held-out heldout --training books --limit 0.001 && echo apart"""
_UNITS = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000, "B": 1_000_000_000}


def _amount(text: str) -> int:
    """60M, 2.5G, 131072."""
    unit = _UNITS.get(text[-1:].upper(), 1)
    try:
        value = float(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e15:
        raise argparse.ArgumentTypeError(f"{text} is no number such as 131072, 60M or 2.5G")
    return int(value)


def _tokens(text: str) -> int | str:
    return text if text in ("first", "all") else _amount(text)


def _weights(text: str) -> dict[str, float]:
    """a=1,b=0.5."""
    try:
        return {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=NUMBER,NAME=NUMBER,…") from None


def _shares(text: str) -> dict[str, float] | str:
    return text if text in PRESETS else _weights(text)


def _ratio(text: str) -> float:
    return 0.0 if text == "auto" else float(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _part(text: str) -> tuple[float, float]:
    """0.2-0.5."""
    try:
        first, last = text.split("-")
        return float(first), float(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not FROM-TO, as in 0.2-0.5") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lca.data", description="Training data: packs text into tokens, "
                                     "plants retrieval tasks, compares held-out text.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, about: str, examples: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".",
                                    epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter)
        found.add_argument("--json", action="store_true", help="the result as JSON")
        return found

    def common(found: argparse.ArgumentParser) -> None:
        found.add_argument("--seed", type=int, default=0, help="all random choices follow it (0)")
        found.add_argument("--shard-tokens", type=_amount, default=1 << 24, metavar="N",
                           help="tokens of a shard, which is lost when a run is killed in it (16777216)")
        found.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                           help="a progress bar (default: on a terminal)")

    into = add("pack", "packs folders of text or JSON lines into token files", _PACK)
    into.add_argument("folder", metavar="OUT", help="where the tokens go")
    into.add_argument("--source", action="append", required=True, metavar="LABEL=PATH[,field=NAME][,by=NAME]",
                      help="a file or folder and its label; field: of JSON lines (text; messages: conversations); "
                           "by: a field with the label")
    into.add_argument("--tokenizer", required=True, metavar="MODEL",
                      help="smollm2, a .gguf file, a Hugging Face folder, or bytes")
    into.add_argument("--tokens", type=_tokens, default="first", metavar="N",
                      help="how many; first: until one source is used up (default); all: until all are")
    into.add_argument("--shares", type=_shares, metavar="LABEL=SHARE,…",
                      help=f"shares of tokens, or a preset ({', '.join(PRESETS)}); default: the texts' own")
    into.add_argument("--threshold", type=int, default=4096, metavar="N",
                      help="documents of so many estimated tokens are always kept (4096)")
    into.add_argument("--keep", type=float, default=0.1, metavar="P", help="probability to keep a shorter one (0.1)")
    into.add_argument("--chars-per-token", type=_ratio, default=3.68, metavar="X",
                      help="for the estimate (3.68); auto: measured")
    into.add_argument("--epochs", type=int, default=1, metavar="N", help="how often a source may be used (1)")
    into.add_argument("--mask-documents", action=argparse.BooleanOptionalAction, default=True,
                      help="readers keep documents apart; a document that is cut counts as a new one (default)")
    into.add_argument("--strip-headers", action="store_true", help="remove Project Gutenberg's headers and licences")
    into.add_argument("--keep-duplicates", action="store_true",
                      help="keep documents that have (nearly) the words of an earlier one")
    into.add_argument("--end", default="", metavar="TOKEN", help="a special token after every document")
    common(into)

    both = add("join", "joins folders that pack wrote", _JOIN)
    both.add_argument("folder", metavar="OUT", help="where the tokens go")
    both.add_argument("packed", nargs="+", metavar="PACKED", help="folders that pack wrote")
    both.add_argument("--shard-tokens", type=_amount, default=1 << 24, metavar="N", help="tokens of a shard (16777216)")
    both.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                      help="a progress bar (default: on a terminal)")

    onto = add("mix", "plants retrieval tasks into packed text", _MIX)
    onto.add_argument("text", metavar="PACKED", help="a folder that pack wrote")
    onto.add_argument("folder", metavar="OUT", help="where the rows go")
    onto.add_argument("--length", type=int, required=True, metavar="N", help="tokens of a row")
    onto.add_argument("--tokens", type=_amount, default=0, metavar="N", help="how many (default: as many as the text)")
    onto.add_argument("--part", type=_part, default=(0.0, 1.0), metavar="A-B",
                      help="use that part of the text: mixtures of 0-0.4 and 0.4-1 share none (0-1)")
    onto.add_argument("--task-share", type=float, default=0.5, metavar="P", help="rows with tasks (0.5)")
    onto.add_argument("--chat-share", type=float, default=0.7, metavar="P",
                      help="rows with tasks that are in chat format, the others are plain (0.7)")
    onto.add_argument("--first-share", type=float, default=0.3, metavar="P",
                      help="rows with one question that ask it before the text (0.3)")
    usual = RowOptions(1024)
    onto.add_argument("--tasks", type=_weights, default=usual.tasks, metavar="NAME=WEIGHT,…",
                      help="kinds of tasks (" + ",".join(f"{k}={v:g}" for k, v in usual.tasks.items()) + ")")
    onto.add_argument("--values", type=_weights, default=usual.values, metavar="NAME=WEIGHT,…",
                      help="kinds of values (" + ",".join(f"{k}={v:g}" for k, v in usual.values.items()) + ")")
    onto.add_argument("--groups", type=_sizes, default=(4, 8, 16, 32), metavar="G,…",
                      help="sizes of groups whose borders task border puts into values (4,8,16,32)")
    onto.add_argument("--sink", type=int, default=0, metavar="N", help="tokens before the first group (0)")
    onto.add_argument("--density", type=float, default=usual.density, metavar="P",
                      help=f"of a row with a task: facts, questions and replies at most ({usual.density:g})")
    onto.add_argument("--tokenizer", metavar="MODEL", help="default: the one the text was packed with")
    common(onto)

    against = add("overlap", "tells how much of held-out text is in training text", _OVERLAP)
    against.add_argument("--held-out", nargs="+", required=True, metavar="PATH", help="files or folders")
    against.add_argument("--training", nargs="+", required=True, metavar="PATH", help="files or folders")
    against.add_argument("--n", type=int, default=13, help="words of an n-gram (13)")
    against.add_argument("--field", default="text", metavar="NAME", help="of JSON lines (text)")
    against.add_argument("--worst", type=int, default=10, metavar="N", help="documents to list (10)")
    against.add_argument("--strip-headers", action="store_true", help="leave out Project Gutenberg's headers")
    against.add_argument("--limit", type=float, metavar="SHARE", help="exit with 1 where the share is larger")
    against.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None, help="a progress bar")

    look = add("show", "shows a row as text, answers in ⟦ ⟧", "example:\n  python -m lca.data show mixed-8k --row 1")
    look.add_argument("folder", metavar="DIR", help="a folder of tokens")
    look.add_argument("--row", type=int, default=0, metavar="N", help="its number (0)")
    look.add_argument("--length", type=int, metavar="N", help="tokens of a row (default: the folder's, else 1024)")

    check = add("check", "compares a folder of tokens with its checksums",
                "example:\n  python -m lca.data check packed")
    check.add_argument("folder", metavar="DIR", help="a folder of tokens")
    return parser


def _pack(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    options = PackOptions(args.tokens, args.shares, args.threshold, args.keep, args.chars_per_token, args.epochs,
                          args.seed, args.shard_tokens, args.mask_documents, args.strip_headers,
                          "keep" if args.keep_duplicates else "drop", args.end)
    options.check()
    sources = [source_parse(text) for text in args.source]
    told = pack(sources, args.folder, tokenizer_open(args.tokenizer), options, args.progress)
    return told, pack_page(told) + f"\nThis page: {args.folder}/statistics.md", 0


def _join(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    told = join(args.packed, args.folder, args.shard_tokens, args.progress)
    page = "\n".join(f"{each['tokens']:>15,} tokens, {100 * each['share']:5.1f} %  {each['folder']}"
                     for each in told["folders"])
    return told, f"{page}\n{told['tokens']:>15,} tokens in {args.folder}", 0


def _mix(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    rows = RowOptions(args.length, args.tasks, args.values, args.chat_share, args.first_share, args.groups, args.sink,
                      args.density)
    count = -(-args.tokens // args.length)
    options = MixOptions(rows, count, args.task_share, args.seed, args.part, args.shard_tokens)
    tokenizer = tokenizer_open(args.tokenizer) if args.tokenizer else None
    told = mix(args.text, args.folder, options, tokenizer, args.progress)
    return told, mix_page(told) + f"\nThis page: {args.folder}/statistics.md", 0


def _overlap(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    told = overlap(args.held_out, args.training, args.n, args.worst, args.field, args.strip_headers, args.progress)
    return told, overlap_page(told), int(args.limit is not None and told["share"] > args.limit)


def _show(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    packed = Packed(args.folder)
    length = args.length or packed.row_length or min(1024, packed.tokens)
    ids, kinds, starts = packed.row(args.row, length)
    tokenizer = tokenizer_open(packed.manifest["tokenizer"]["name"])
    if fingerprint(tokenizer) != packed.manifest["tokenizer"]["fingerprint"]:
        raise ValueError(f"the tokenizer {tokenizer.name} is no longer the one that wrote {args.folder}")
    edges = numpy.flatnonzero(numpy.diff(kinds == ANSWER)) + 1
    text = ""
    for a, b in zip([0, *edges], [*edges, length]):
        part = tokenizer.decode(ids[a:b])
        text += f"⟦{part}⟧" if kinds[a] == ANSWER else part
    return {"row": args.row, "ids": ids.tolist(), "kinds": kinds.tolist(), "starts": starts.tolist(),
            "text": tokenizer.decode(ids)}, text, 0


def _check(args: argparse.Namespace) -> tuple[dict[str, Any], str, int]:
    found = store_check(args.folder)
    return {"folder": args.folder, "problems": found}, "\n".join(found) or f"{args.folder} is as it was written", \
        int(bool(found))


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    work = {"pack": _pack, "join": _join, "mix": _mix, "overlap": _overlap, "show": _show,
            "check": _check}[args.command]
    try:
        told, page, code = work(args)
    except (OSError, ValueError, IndexError, MemoryError, RuntimeError) as error:
        sys.exit(f"lca.data {args.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"lca.data {args.command}: interrupted" +
                 ("; the same command goes on" if args.command in ("pack", "join", "mix") else ""))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be anything
    try:
        print(json.dumps(told) if args.json else page, flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
