#!/usr/bin/env python3
"""Samples a model's replies to prompts: chat text in its own words.

    eval/chat/sample.py PROMPTS.jsonl REPLIES.jsonl [--model smollm2] [--workers N] [--seconds S]

PROMPTS has {"messages": […]} a line, the last message a user's (prompts.py writes such); REPLIES gets the same with the
reply appended, which `python -m lca.data pack … --source chat=REPLIES.jsonl,field=messages` reads. "ended" is false
where a reply was cut at --tokens. Whole batches are written, so that the same command goes on after an interruption.
Every worker is a process with its own copy of the model: sampling runs on the host, one core each.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import time


def lines_read(path):
    """The objects of a file of JSON lines; a torn last line is left out."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def part_name(replies, worker):
    return replies.with_name(f"{replies.name}.{worker}.part")


def work(worker, args, todo, told):
    """Replies to every batch of `todo`, which is [(number, messages), …], until the time is over."""
    try:
        import lca
        # The base itself: the name may come with an adapter.
        engine = lca.Engine(args.model, device=args.device, threads=args.threads, adapter="none", method="dense")
        told.put((worker, "ready", 0, 0))
        with open(part_name(args.replies, worker), "a", encoding="utf-8") as file:
            for at in range(0, len(todo), args.batch):
                if args.seconds and time.monotonic() - args.began > args.seconds:
                    break
                batch = todo[at:at + args.batch]
                replies = engine.generate([messages for _, messages in batch], max_tokens=args.tokens,
                                          temperature=args.temperature, top_k=args.top_k,
                                          seed=args.seed + batch[0][0])
                lines, tokens = [], 0
                for (number, messages), reply in zip(batch, replies):
                    tokens += len(reply.tokens)
                    if reply.text.strip():
                        lines.append(json.dumps({"number": number, "ended": reply.reason == "end_token", "messages": [
                            *messages, {"role": "assistant", "content": reply.text.strip()}]}, ensure_ascii=False))
                file.write("".join(line + "\n" for line in lines))
                file.flush()
                told.put((worker, "done", len(batch), tokens))
        told.put((worker, "end", 0, 0))
    except Exception as error:  # told in one line where the process was started
        told.put((worker, f"{type(error).__name__}: {error}", 0, 0))


def sample(args):
    prompts = [record["messages"] for record in lines_read(args.prompts)]
    if not prompts:
        raise SystemExit(f"sample: {args.prompts} has no prompts")
    parts = sorted(args.replies.parent.glob(f"{args.replies.name}.*.part"))
    before = {record["number"]: record for path in (args.replies, *parts) for record in lines_read(path)}
    todo = [(number, messages) for number, messages in enumerate(prompts) if number not in before]
    print(f"{len(prompts)} prompts, {len(before)} have replies", flush=True)
    workers = max(1, min(args.workers, -(-len(todo) // args.batch)))
    told, processes, done, tokens, failures = multiprocessing.Queue(), [], 0, 0, []
    if todo:
        for worker in range(workers):
            processes.append(multiprocessing.Process(target=work, args=(worker, args, todo[worker::workers], told)))
            processes[-1].start()
    running, began = len(processes), args.began
    while running:
        worker, what, count, more = told.get()
        done, tokens = done + count, tokens + more
        if what not in ("ready", "done"):
            running -= 1
            failures += [f"worker {worker}: {what}"] * (what != "end")
        if what == "done":
            seconds = time.monotonic() - began
            print(f"{done}/{len(todo)} replies, {tokens:,} tokens, {seconds:.0f} s, {tokens / seconds:,.0f} tokens/s",
                  flush=True)
    for process in processes:
        process.join()
    parts = sorted(args.replies.parent.glob(f"{args.replies.name}.*.part"))
    merged = before | {record["number"]: record for path in parts for record in lines_read(path)}
    draft = args.replies.with_name(args.replies.name + ".draft")
    draft.write_text("".join(json.dumps(merged[number], ensure_ascii=False) + "\n" for number in sorted(merged)),
                     encoding="utf-8")
    draft.replace(args.replies)
    for path in parts:
        path.unlink()
    ended = sum(record["ended"] for record in merged.values())
    print(f"{len(merged)} replies, {ended} of them ended by themselves: {args.replies}")
    if failures:
        raise SystemExit("sample: " + "; ".join(failures))


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("prompts", type=pathlib.Path)
    options.add_argument("replies", type=pathlib.Path)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--device", default="auto")
    options.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    options.add_argument("--threads", type=int, default=1, help="of a worker (1)")
    options.add_argument("--batch", type=int, default=128, help="replies of a worker that are made together (128)")
    options.add_argument("--tokens", type=int, default=384, help="longest reply (384)")
    options.add_argument("--temperature", type=float, default=0.8)
    options.add_argument("--top-k", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=0, help="begin no batch later than that (0: no limit)")
    args = options.parse_args()
    args.began = time.monotonic()
    multiprocessing.set_start_method("spawn")
    sample(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
