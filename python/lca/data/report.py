"""Statistics of what was packed or mixed, as a page and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from lca.data.packing import PackOptions
    from lca.data.scanning import Scan

_FIRST, _LAST = 7, 20  # bins of lengths: below 2^7, …, from 2^20 on
_BAR = 40


def bin_of(length: int) -> int:
    """The bin of a document's length: k for 2^k … 2^(k+1)−1 tokens."""
    return min(max(int(length).bit_length() - 1, _FIRST - 1), _LAST)


def _bin_name(number: int) -> str:
    if number < _FIRST:
        return f"below {1 << _FIRST}"
    return f"{1 << number} and more" if number == _LAST else f"{1 << number} – {(2 << number) - 1}"


def pack_statistics(scan: Scan, options: PackOptions, shares: list[float], absent: list[str],
                    budgets: list[int | None], ratio: float, state: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Everything that the page shows."""
    index, sources = scan.index, []
    long_chars = int(index["chars"][index["chars"] / ratio >= options.threshold].sum())
    for number, label in enumerate(scan.labels):
        mine = index[index["source"] == number]
        packed = state["packed"][number]
        sources.append({
            "label": label, "documents_found": len(mine), "characters_found": int(mine["chars"].sum()),
            "documents_packed": state["documents"][number], "tokens": packed, "share_wanted": shares[number],
            "share": packed / tokens, "budget": budgets[number],
            "used_up": budgets[number] is not None and packed < budgets[number],
            "epochs_begun": min(state["cursors"][number][0] + 1, options.epochs)})
    return {
        "tokens": tokens, "documents": sum(state["documents"]), "sources": sources, "labels_without_text": absent,
        "chars_per_token": ratio, "threshold": options.threshold, "keep": options.keep, "seed": options.seed,
        "long_share_found": long_chars / max(1, int(numpy.sum(index["chars"]))),
        "long_share": state["long"] / tokens,
        "lengths": [{"from": 0 if b < _FIRST else 1 << b, "tokens": state["histogram"].get(str(b), 0)}
                    for b in range(_FIRST - 1, _LAST + 1)],
        "files": len(scan.files), "duplicates": {**scan.duplicate_counts, "listed": scan.duplicates},
        "problems": {"count": scan.problem_count, "listed": scan.problems}}


def pack_page(told: dict[str, Any]) -> str:
    """The statistics as Markdown."""
    lines = ["# Packed tokens", "",
             f"{told['tokens']:,} tokens of {told['documents']:,} documents from {told['files']:,} files; "
             f"{told['chars_per_token']:.3g} characters per token for the estimate of lengths.", "",
             "| source | documents found | packed | tokens | share wanted | share reached |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for each in told["sources"]:
        note = " (used up)" if each["used_up"] else ""
        lines.append(f"| {each['label']} | {each['documents_found']:,} | {each['documents_packed']:,} | "
                     f"{each['tokens']:,} | {100 * each['share_wanted']:.2f} % | {100 * each['share']:.2f} %{note} |")
    if told["labels_without_text"]:
        lines += ["", f"Without text, their shares divided among the others: {', '.join(told['labels_without_text'])}."]
    lines += ["", "## Lengths", "",
              f"Documents of at least {told['threshold']:,} estimated tokens have "
              f"{100 * told['long_share']:.1f} % of the tokens; in the texts as found "
              f"{100 * told['long_share_found']:.1f} %.", "", "```"]
    lines += histogram([(_bin_name(number), each["tokens"])
                        for number, each in enumerate(told["lengths"], _FIRST - 1)])
    lines += ["```", "", "Tokens by length of their document, in tokens.", "", "## Left out", ""]
    twins = told["duplicates"]
    lines += [f"{twins['exact']:,} documents with the words of an earlier one, {twins['near']:,} nearly so; "
              f"{told['problems']['count']:,} problems.", ""]
    lines += [f"- {each['place']}: {each['kind']} duplicate of {each['of']}" for each in twins["listed"][:20]]
    lines += [f"- {each}" for each in told["problems"]["listed"][:50]]
    return "\n".join(lines).rstrip() + "\n"


def histogram(rows: list[tuple[str, int]]) -> list[str]:
    """Rows of bars, without empty ones at both ends."""
    while rows and not rows[0][1]:
        rows = rows[1:]
    while rows and not rows[-1][1]:
        rows = rows[:-1]
    most, total = max((count for _, count in rows), default=1), sum(count for _, count in rows) or 1
    wide = max((len(name) for name, _ in rows), default=0)
    return [f"{name:>{wide}}  {'#' * round(_BAR * count / most):<{_BAR}}  {100 * count / total:5.1f} %"
            for name, count in rows]


def mix_page(told: dict[str, Any]) -> str:
    """The statistics of a mixed folder as Markdown."""
    lines = ["# Text with planted tasks", "",
             f"{told['tokens']:,} tokens in {told['rows']:,} rows of {told['length']:,}; {told['task_rows']:,} rows "
             f"with tasks, {told['chat_rows']:,} of them in chat format, {told['first_rows']:,} with the question "
             f"before the text. The text was used {told['epochs']:.2f} times.", "",
             f"Tokens with a loss: {told['text_tokens']:,} of text, {told['answer_tokens']:,} of answers.", "",
             "| task | rows | answers | tokens of answers |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {each['rows']:,} | {each['answers']:,} | {each['answer_tokens']:,} |"
              for name, each in told["tasks"].items()]
    lines += ["", "## Depth", "", "```",
              *histogram([(f"{10 * i} – {10 * i + 10} %", count) for i, count in enumerate(told["depths"])]),
              "```", "", "What is asked for, by the share of the row's text before it."]
    return "\n".join(lines) + "\n"
