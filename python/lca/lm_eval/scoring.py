"""ln p of many continuations of many contexts; what contexts have in common is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

# Shorter common beginnings are not worth a session of their own.
SHORTEST_SHARED = 32


class Continuation(NamedTuple):
    """What a continuation scores."""

    logprob: float  #: ln p of all its tokens
    greedy: bool  #: whether each is the likeliest one


def continuations_score(engine: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
                        done: Callable[[int, Continuation], Any] | None = None) -> list[Continuation]:
    """Scores of (context, continuation) pairs of token ids, in their order; `done(index, score)` as they come.

    Contexts are visited in sorted order. At the place where a context and the next one part the session is forked, so
    that the common beginning is read once; continuations of the same context are forks of its session.
    """
    contexts: dict[tuple[int, ...], list[int]] = {}
    for index, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise ValueError("a context and its continuation must have at least one token each")
        contexts.setdefault(tuple(context), []).append(index)
    order = sorted(contexts)
    scores: list[Continuation | None] = [None] * len(pairs)
    shared: list[Any] = []  # sessions at beginnings of the context at hand, the longest last
    for at, context in enumerate(order):
        while shared and not _begins(context, shared[-1].tokens):
            shared.pop()
        session = shared[-1].fork() if shared else engine.session()
        common = _common(context, order[at + 1]) if at + 1 < len(order) else 0
        if common - len(session) >= SHORTEST_SHARED:
            session.read(list(context[len(session):common]))
            shared.append(session)
            session = session.fork()
        if len(session) < len(context):
            session.read(list(context[len(session):]))
        group = contexts[context]
        for index in group:
            where = session if index == group[-1] else session.fork()
            scores[index] = _score(where, [int(token) for token in pairs[index][1]])
            if done is not None:
                done(index, scores[index])
    return scores  # type: ignore[return-value]


def _begins(context, tokens) -> bool:
    return len(tokens) <= len(context) and context[:len(tokens)] == tuple(tokens)


def _common(one, other) -> int:
    """How many tokens two contexts begin with alike; fewer than either, for the last one must be read to be known."""
    most = min(len(one), len(other))
    unequal = numpy.nonzero(numpy.asarray(one[:most]) != numpy.asarray(other[:most]))[0]
    return min(int(unequal[0]) if len(unequal) else most, most - 1)


def _score(session, continuation: list[int]) -> Continuation:
    """Scores what follows a session's tokens; the session moves on."""
    rows = [numpy.asarray(session.logits(), numpy.float32).reshape(1, -1)]
    if len(continuation) > 1:
        rows.append(session._session.prefill_logits(continuation[:-1]))
    logprob, greedy, at = 0.0, True, 0
    for part in rows:
        for row in part:
            token, row = continuation[at], row.astype(numpy.float64)
            peak = row.max()
            logprob += float(row[token] - peak - numpy.log(numpy.exp(row - peak).sum()))
            greedy = greedy and int(row.argmax()) == token
            at += 1
    return Continuation(logprob, greedy)
