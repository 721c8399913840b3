#!/usr/bin/env python3
"""`lca serve` beside llama-server on the same file, by the same client.

    bench/server/beside_llama.py --llama /path/to/llama-server --text FOLDER_OR_FILE

Documents: so many clients at once, each with a document of its own, ask questions about it one after the other, in
one conversation; 64 greedy tokens each, end tokens ignored. Measured: the time until all are answered, and the peak
of resident memory. Short prompts: one client, one request after the other. Measured: time to first token and tokens a
second. llama-server runs with prompt caching and four slots, with and without -fa; in each line its better run counts.
build/beside/beside.md has the table, beside.json the same as data. The machine should have nothing else to do.
"""

import argparse
import asyncio
import json
import pathlib
import socket
import statistics
import sys

from soak_common import ROOT  # finds the modules below too

import model
from load import ask
from serving import Serving

QUESTIONS = ["What is this text about? Answer in one paragraph.", "Which names appear in it, and what are they?",
             "What comes last in the text?", "Give three facts from the text that surprise you."]
SHORT = ["Why is the sky blue?", "Name three rivers of Europe.", "What does a compiler do?", "Write a line about rain.",
         "How does a heat pump work?", "What is the capital of Norway?"]


class LlamaServing(Serving):
    """llama-server in place of `lca serve`."""

    def __init__(self, program, path, *flags, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        super().__init__(path, log=log, port=port, wait=300)
        self.command = [str(part) for part in (program, "-m", path, "--host", "127.0.0.1", *flags)]


def texts_of(path):
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    texts = [text for text in (file.read_text(errors="ignore") for file in files[:400]) if len(text) > 20_000]
    if not texts:
        sys.exit(f"beside_llama: no text of 20,000 characters or more in {path}")
    return texts


def document_cut(server, text, tokens):
    """The longest beginning of a text of at most so many tokens."""
    low, high = 0, min(len(text), 8 * tokens)
    while high - low > 16:
        middle = (low + high) // 2
        count = len(server.post("/tokenize", {"content": text[:middle]}).json()["tokens"])
        low, high = (middle, high) if count <= tokens else (low, middle)
    return text[:low]


def documents_make(server, texts, count, tokens):
    """Documents of different texts, or of different places of the same."""
    places = []
    for at in range(count):
        text = texts[at * len(texts) // count] if len(texts) >= count else \
            texts[0][at * len(texts[0]) // count:] + texts[0]
        places.append(document_cut(server, text * (1 + 8 * tokens // len(text)), tokens))
    return places


def body_of(messages, tokens):
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "cache_prompt": True}


async def asked_well(port, body):
    asked = await ask(port, "/v1/chat/completions", body)
    if not asked.complete:
        raise RuntimeError(f"a request failed: {asked.status} {asked.problem}")
    return asked


async def conversation(port, document, questions, reply):
    messages, all_asked = [{"role": "system", "content": document}], []
    for question in questions:
        messages.append({"role": "user", "content": question})
        asked = await asked_well(port, body_of(messages, reply))
        messages.append({"role": "assistant", "content": asked.text})
        all_asked.append(asked)
    return all_asked


def measure_documents(server, documents, args):
    async def together():
        questions = (QUESTIONS * args.questions)[:args.questions]
        return await asyncio.gather(*(conversation(server.port, document, questions, args.reply)
                                      for document in documents))

    talks = asyncio.run(together())
    begin = min(asked.began for talk in talks for asked in talk)
    end = max(asked.ended for talk in talks for asked in talk)
    later = [asked.first_piece for talk in talks for asked in talk[1:]]
    return {"seconds": end - begin, "peak_bytes": server.peak_resident_bytes(),
            "first_token_of_first_question": statistics.median(talk[0].first_piece for talk in talks),
            "first_token_of_later_questions": statistics.median(later) if later else None,
            "prompt_tokens": [asked.usage.get("prompt_tokens") for talk in talks for asked in talk],
            "reply_tokens": sum(asked.usage.get("completion_tokens", 0) for talk in talks for asked in talk)}


def measure_short(server, args):
    async def one_by_one():
        return [await asked_well(server.port, body_of([{"role": "user", "content": question}], args.short_reply))
                for question in SHORT * args.short_rounds]

    asked = asyncio.run(one_by_one())[1:]  # the first one warms up
    rates = [(one.usage["completion_tokens"] - 1) / (one.pieces[-1] - one.pieces[0]) for one in asked]
    return {"first_token": statistics.median(one.first_piece for one in asked), "tokens_per_second":
            statistics.median(rates)}


def measure(name, make, documents, args):
    """Both measurements, each on a fresh server."""
    print(f"beside: {name}: documents", flush=True)
    with make() as server:
        result = measure_documents(server, documents, args)
    print(f"beside: {name}: {result['seconds']:.1f} s, {result['peak_bytes'] >> 20} MiB; short prompts", flush=True)
    with make() as server:
        result.update(measure_short(server, args))
    print(f"beside: {name}: first token {1000 * result['first_token']:.0f} ms, "
          f"{result['tokens_per_second']:.1f} tokens/s", flush=True)
    return result


def table(ours, theirs, args):
    def line(what, unit, key, limit, better=1, scale=1.0):
        best = max if key == "tokens_per_second" else min
        mine, other = ours[key] * scale, best(run[key] for run in theirs) * scale
        ratio = mine / other if better > 0 else other / mine
        return f"| {what} | {mine:.1f} {unit} | {other:.1f} {unit} | {ratio:.2f} × | {limit} |"

    return "\n".join([
        f"| {args.clients} clients × {args.tokens:,}-token document × {args.questions} questions, {args.reply} tokens "
        f"each, {args.threads} threads | lca serve | llama-server | ratio | limit |", "| --- | --- | --- | --- | --- |",
        line("total time", "s", "seconds", "≤ 0.20 ×"), line("peak resident memory", "MiB", "peak_bytes",
                                                             "≤ 0.50 ×, aim 0.33 ×", 1, 2**-20),
        line("one client, short prompts: time to first token (theirs ÷ ours)", "ms", "first_token", "≥ 1.5 ×", -1, 1e3),
        line("one client, short prompts: speed", "tokens/s", "tokens_per_second", "≥ 1.5 ×")]) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--llama", type=pathlib.Path, required=True, help="llama-server")
    options.add_argument("--lca", type=pathlib.Path, default=ROOT / "build" / "release" / "bin" / "lca")
    options.add_argument("--model", type=pathlib.Path, help="a GGUF file; default: SmolLM2 Q4_1 as make model fetches it")
    options.add_argument("--text", type=pathlib.Path, required=True, help="text for the documents: a file or a folder")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "beside", metavar="FOLDER")
    options.add_argument("--lca-flags", default="", help="more flags for lca serve, in one word")
    for name, value in (("threads", 2), ("clients", 4), ("tokens", 7000), ("questions", 4), ("reply", 64),
                        ("short-reply", 128), ("short-rounds", 3)):
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--only", choices=["lca", "llama"], help="measure one alone")
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.model or model.home() / model.NAME
    log = args.out / "servers.log"

    def lca():
        return Serving(path, "--threads", args.threads, *args.lca_flags.split(), program=args.lca, log=log, wait=300)

    def llama(attention):
        return LlamaServing(args.llama, path, "--parallel", args.clients, "-c", 8192 * args.clients, "-t", args.threads,
                            "-tb", args.threads, "--cache-ram", 0, "-fa", attention, log=log)

    with lca() as server:
        documents = documents_make(server, texts_of(args.text), args.clients, args.tokens)
    results = {}
    if args.only != "llama":
        results["lca serve"] = measure("lca serve", lca, documents, args)
    if args.only != "lca":
        for attention in ("on", "off"):
            name = f"llama-server -fa {attention}"
            results[name] = measure(name, lambda attention=attention: llama(attention), documents, args)
    (args.out / "beside.json").write_text(json.dumps(results, indent=1) + "\n")
    if args.only:
        return 0
    theirs = [result for name, result in results.items() if name != "lca serve"]
    text = table(results["lca serve"], theirs, args)
    (args.out / "beside.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
