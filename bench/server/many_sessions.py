#!/usr/bin/env python3
"""How much of the engine's speed `lca serve` passes on, with many long sessions at once.

    bench/server/many_sessions.py --random deepseek-v2-lite --device cuda            on a GPU: 64 sessions of 32K
    bench/server/many_sessions.py --model smollm2 --sessions 4 --length 2K           on a CPU

First `lca bench model` decodes in so many sessions, then a server gets as many prompts of random token ids, each its
own, and streams their replies. Measured: tokens a second from when the last prompt is read until the first reply ends,
so that all sessions decode; both on the same machine, one after the other. build/beside/many.json has the numbers. The
exit code is 1 where the server has less than 0.9 of the engine's rate. Python's standard library is enough.
"""

import argparse
import asyncio
import json
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "server" / "live")]
from serving import Serving  # noqa: E402

LIMIT = 0.9


def count_of(text):
    return int(text[:-1]) * 1024 if text[-1:] in "kK" else int(text)


def bench(args):
    """Tokens a second of the engine, without a server."""
    command = [args.program, "bench", "model", *args.where, "--prompt", "none", "--depths", str(args.length), "--batch",
               str(args.sessions), "--generate", str(args.reply), "--fill", "random" if args.random else "prompt",
               "--json"]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"many_sessions: {' '.join(map(str, command))} failed")
    return json.loads(done.stdout)["decode"][-1]["tokens_per_s"]


class Reader:
    """A streamed reply; events are counted, not parsed, so that the client costs little."""

    def __init__(self):
        self.times = []  # (when, events so far)

    async def run(self, port, body):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        data = json.dumps(body).encode()
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"refused: {head[:100]!r} {(await reader.read(400))!r}")
        events = 0
        while part := await reader.read(1 << 16):
            found = part.count(b'data: {"')
            if found:
                events += found
                self.times.append((time.monotonic(), events))
        writer.close()


def rate(readers):
    """Events a second of all, while all are decoding."""
    begin = max(reader.times[0][0] for reader in readers)
    end = min(reader.times[-1][0] for reader in readers)
    if end <= begin:
        sys.exit("many_sessions: the first reply ended before the last began; ask for longer replies (--serve-reply)")

    def at(reader, when):
        return max((events for time, events in reader.times if time <= when), default=0)

    return sum(at(reader, end) - at(reader, begin) for reader in readers) / (end - begin), end - begin


def serve(args):
    pick = random.Random(3)
    flags = ["--prefix-cache", "off", "--context", str(args.length + args.serve_reply + 1), "--batch",
             str(args.sessions), *args.where[2 if args.random else 1:]]
    model = ["--random", args.random] if args.random else [args.model]
    server = Serving(model[0], *model[1:], *flags, program=args.program, log=args.out / "many.log", wait=600)
    readers = [Reader() for _ in range(args.sessions)]

    async def together():
        await asyncio.gather(*(reader.run(server.port, {
            "prompt": [pick.randrange(args.vocabulary) for _ in range(args.length)], "max_tokens": args.serve_reply,
            "temperature": 0, "ignore_eos": True, "stream": True}) for reader in readers))

    with server:
        begin = time.monotonic()
        asyncio.run(together())
        print(f"many: all read and answered in {time.monotonic() - begin:.1f} s", flush=True)
    return rate(readers)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--program", type=pathlib.Path, help="build/cuda/bin/lca with --random or --device cuda, else "
                         "build/release/bin/lca")
    options.add_argument("--random", help="random weights of that shape (GPU)")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--device", default="auto")
    options.add_argument("--sessions", type=int, default=64)
    options.add_argument("--length", type=count_of, default=32768)
    options.add_argument("--reply", type=int, default=64, help="tokens that the bench decodes")
    options.add_argument("--serve-reply", type=int, default=1024, help="tokens of each reply; the first must not end "
                         "before the last prompt is read")
    options.add_argument("--vocabulary", type=int, default=32000, help="prompts have ids below it")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "beside", metavar="FOLDER")
    args = options.parse_args()
    preset = "cuda" if args.random or args.device.startswith("cuda") else "release"
    args.program = args.program or ROOT / "build" / preset / "bin" / "lca"
    args.out.mkdir(parents=True, exist_ok=True)
    args.where = [*(["--random", args.random] if args.random else [args.model]), "--device", args.device]
    engine = bench(args)
    print(f"many: the engine decodes {engine:,.0f} tokens/s in {args.sessions} sessions of {args.length:,}", flush=True)
    served, seconds = serve(args)
    print(f"many: the server {served:,.0f} tokens/s over {seconds:.1f} s: {served / engine:.3f} of it (limit {LIMIT})",
          flush=True)
    (args.out / "many.json").write_text(json.dumps({
        "engine": engine, "served": served, "ratio": served / engine, "seconds": seconds, "sessions": args.sessions,
        "length": args.length, "model": args.random or args.model, "device": args.device}, indent=1) + "\n")
    return int(served / engine < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
