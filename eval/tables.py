#!/usr/bin/env python3
"""Tables of the comparison of adapters from eval/results/ARM.json, in Markdown.

    eval/tables.py [--results eval/results] [--tasks NAMES]
    eval/tables.py --results eval/results/development --choose > eval/ruler_tasks.txt

Intervals are of 95 %: Clopper and Pearson's for needles (one-sided lower bound), a bootstrap over documents, prompts or
samples for the rest. Differences are paired, since every arm reads the same prompts and windows. Windows of one
document are alike, so documents are drawn, each with all its windows. RULER's mean is over --tasks, by default those of
eval/ruler_tasks.txt, which --choose wrote before the report was run: where the untouched or the trained model with
dense attention reaches 20 % at 4K. All tasks are listed.
"""
import argparse
import json
import math
import pathlib
import random

HERE = pathlib.Path(__file__).resolve().parent
REPEATS = 2000


def binomial_tail(hits, count, share):
    """P(X ≥ hits) of `count` trials."""
    if hits <= 0:
        return 1.0
    if share <= 0 or share >= 1:
        return float(share >= 1)
    terms = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * math.log(share)
             + (count - k) * math.log1p(-share) for k in range(hits, count + 1))
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def lower_bound(hits, count, level=0.95):
    """Clopper and Pearson's one-sided lower bound of a share."""
    low, high = 0.0, hits / count if count else 0.0
    if hits == 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, count, middle) < 1 - level else (low, middle)
    return low


def bootstrap(samples, statistic, seed=0):
    """95 % interval of a statistic of a list, its items drawn with replacement."""
    draw = random.Random(seed)
    values = sorted(statistic([samples[draw.randrange(len(samples))] for _ in samples]) for _ in range(REPEATS))
    return values[int(0.025 * REPEATS)], values[int(0.975 * REPEATS) - 1]


def mean(values):
    return math.fsum(values) / len(values)


def mean_of_all(lists):
    """Of the numbers in all lists."""
    return mean([number for each in lists for number in each])


def table(head, rows):
    line = "| " + " | ".join(head) + " |\n|" + " --- |" + " ---: |" * (len(head) - 1) + "\n"
    return line + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def needles(arms, part, titles):
    cells = sorted({(int(n), int(k)) for arm in arms.values() for n, keys in arm.get(part, {}).items() for k in keys})
    rows = []
    for name, arm in arms.items():
        row, places = [titles[name]], set()
        for n, k in cells:
            cell = arm.get(part, {}).get(str(n), {}).get(str(k))
            if cell is None:
                row.append("–")
                continue
            places.update(cell["places"])
            hits, count = cell["hits"].count("1"), len(cell["hits"])
            row.append(f"{hits} of {count} (≥ {100 * lower_bound(hits, count):.1f} %)")
        if places == {"inside"}:  # dense attention: nothing leaves a window
            row[0] += ": the same prompts"
        elif places and places != {"outside"}:
            raise SystemExit(f"tables: {name}, {part}: needles are {' and '.join(sorted(places))}")
        if places:
            rows.append(row)
    head = [f"{n // 1024}K, " + ("one key" if k == 1 else f"one of {k}") for n, k in cells]
    return table(["needles outside the window", *head], rows) if rows else ""


def perplexity(arms, split, titles, against):
    """Perplexity by range, and its change against an arm, window by window; the interval is over documents."""
    known = {name: arm[split] for name, arm in arms.items() if split in arm}
    if not known:
        return ""
    for name, found in known.items():
        if "documents" not in found:
            raise SystemExit(f"tables: {name}, {split}: the windows' documents are missing; measure it again")
    ranges = next(iter(known.values()))["ranges"]
    rows = []
    for name, found in known.items():
        row = [titles[name]]
        for at in range(len(ranges)):
            text = f"{math.exp(mean([each[at] for each in found['windows'].values()])):.3f}"
            base = known.get(against)
            if base and name != against:
                gaps = {}  # of each document
                for window, each in found["windows"].items():
                    if window in base["windows"]:
                        gap = each[at] - base["windows"][window][at]
                        gaps.setdefault(found["documents"][window], []).append(gap)
                gaps = list(gaps.values())
                change = (100 * math.expm1(x) for x in (mean_of_all(gaps), *bootstrap(gaps, mean_of_all)))
                text += " ({:+.1f} %: {:+.1f} … {:+.1f})".format(*change)
            row.append(text)
        rows.append(row)
    first = next(iter(known.values()))
    sizes = f"{len(first['windows'])} windows of {len(set(first['documents'].values()))} documents"
    head = [f"{split} text, {sizes}"] + [f"tokens {a if a > 1 else 0}–{b - 1}" for a, b in ranges]
    return table(head, rows)


def ruler(arms, titles, chosen, against):
    known = {name: arm["ruler"]["scores"] for name, arm in arms.items() if "ruler" in arm}
    if not known:
        return ""
    text = ""
    for length in sorted({n for scores in known.values() for n in scores}, key=int):
        tasks = sorted({task for scores in known.values() for task in scores.get(length, {})})
        mine = [task for task in tasks if not chosen or task in chosen]
        rows = []
        for name, scores in known.items():
            here = scores.get(length, {})
            if not all(task in here for task in mine):
                continue
            row = [titles[name], f"**{100 * mean([mean(here[task]) for task in mine]):.1f}**"]
            base = known.get(against, {}).get(length)
            if base and name != against and all(task in base for task in mine):
                gaps = {task: [a - b for a, b in zip(here[task], base[task], strict=True)] for task in mine}
                draw = random.Random(0)
                drawn = sorted(mean([mean(draw.choices(gap, k=len(gap))) for gap in gaps.values()])
                               for _ in range(REPEATS))
                row.append("{:+.1f} ({:+.1f} … {:+.1f})".format(
                    *(100 * x for x in (mean([mean(gap) for gap in gaps.values()]), drawn[int(0.025 * REPEATS)],
                                        drawn[int(0.975 * REPEATS) - 1]))))
            else:
                row.append("")
            rows.append(row + [f"{100 * mean(here[task]):.0f}" if task in here else "–" for task in tasks])
        head = [f"RULER, {int(length) // 1024}K", f"mean of {len(mine)}", f"against {titles[against]}", *tasks]
        text += table(head, rows) + "\n"
    return text


def worth_measuring(folder):
    """RULER's tasks that dense attention can do at all."""
    found = set()
    for arm in ("base-dense", "dense"):
        scores = json.loads((folder / f"{arm}.json").read_text())["ruler"]["scores"]["4096"]
        found.update(task for task, some in scores.items() if mean(some) >= 0.2)
    return sorted(found)


def everyday(arms, titles):
    rows = []
    for name, arm in arms.items():
        if "everyday" not in arm:
            continue
        pairs = list(zip(arm["everyday"]["kl"], arm["everyday"]["tokens"]))
        weighed = lambda some: sum(kl * count for kl, count in some) / max(1, sum(count for _, count in some))
        rows.append([titles[name], "{:.4f} ({:.4f} … {:.4f})".format(weighed(pairs), *bootstrap(pairs, weighed))])
    return table(["everyday cost", "KL from the base, nats a token"], rows) if rows else ""


def sweep(path):
    """Short runs from one adapter, one thing changed in each."""
    told = json.loads(path.read_text())
    cells = sorted({cell for row in told["rows"] for cell in row["needles"]},
                   key=lambda cell: [*map(int, cell.split("/"))])
    cells = [cell for cell in cells if sum(cell in row["needles"] for row in told["rows"]) > 1]
    spelled = [f"{int(n) // 1024}K, {'one key' if k == '1' else f'one of {k}'}"
               for n, k in (cell.split("/") for cell in cells)]
    foreign = ["other wordings"] if any("wordings" in row for row in told["rows"]) else []
    rows = []
    for row in told["rows"]:
        found = [row["needles"].get(cell) for cell in cells]
        held = row.get("held_out", {})
        if foreign:
            counts = [pair for name, pair in row.get("wordings", {}).items()
                      if not name.startswith(("training", "passage"))]
            found.append([sum(each) for each in zip(*counts)] if counts else None)
        rows.append([row["title"], *("–" if each is None else f"{each[0]} of {each[1]}" for each in found),
                     f"{row['general']['4096-8192']:.2f}",
                     f"{row['everyday_kl']:.3f}" if "everyday_kl" in row else "–",
                     f"{held['kl']:.3f}" if held else "–"])
    return table(["run", *spelled, *foreign, "general text, 4K–8K", "everyday KL", "held-out KL"], rows)


def tables(folder, chosen=()):
    order = json.loads((HERE / "arms.json").read_text())
    arms = {name: json.loads((folder / f"{name}.json").read_text()) for name in order
            if (folder / f"{name}.json").exists()}
    seeds = sorted({arm["seed"] for arm in arms.values()})
    if len(seeds) > 1:
        raise SystemExit(f"tables: the arms read different prompts, of seeds {', '.join(map(str, seeds))}")
    titles = {name: order[name]["title"] for name in order}
    parts = [needles(arms, "needle", titles), needles(arms, "long", titles)]
    parts += [perplexity(arms, split, titles, against) for split in ("general", "held-out")
              for against in ("base-dense", "dense") if against in arms]
    parts += [ruler(arms, titles, chosen, against) for against in ("base-dense", "dense") if against in arms]
    parts.append(everyday(arms, titles))
    parts += [sweep(folder / name) for name in ("sweep.json", "runs.json", "pooling.json") if (folder / name).exists()]
    return "\n".join(part for part in parts if part)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--tasks", default=(HERE / "ruler_tasks.txt").read_text(), help="'': all")
    parser.add_argument("--choose", action="store_true", help="print the tasks that are worth a mean")
    options = parser.parse_args()
    if options.choose:
        print(",".join(worth_measuring(options.results)))
    else:
        print(tables(options.results, [task for task in options.tasks.strip().split(",") if task]), end="")


if __name__ == "__main__":
    main()
