"""Rows of tokens with a planted task, of exactly the length asked for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy

from lca.data import tasks, templates
from lca.data.store import ANSWER, NONE, TEXT
from lca.data.tokenizers import ChatForm, Tokenizer, sentence_ends

_SENTENCE = "According to the clerk, the shelf mark belonging to the Kelinthorpe ferry is 4471093."
_LOOK = 64  # tokens within which the end of a sentence is looked for
_LONG = 640  # tokens of a long passage at most, in rows that have room for them
_TRIES = 40


@dataclasses.dataclass(frozen=True)
class RowOptions:
    """How rows with tasks are made."""

    length: int
    tasks: dict[str, float] = dataclasses.field(default_factory=lambda: {
        "fact": 1, "facts": 3, "distractors": 1, "values": 1, "reversed": 0.5, "chain": 1, "records": 1,
        "border": 1, "passage": 2})
    values: dict[str, float] = dataclasses.field(default_factory=lambda: {
        "number": 0.5, "word": 0.2, "uuid": 0.15, "other": 0.15})
    chat_share: float = 0.7  #: of rows with tasks
    first_share: float = 0.3  #: of rows with one question: asked before the text
    groups: Sequence[int] = (4, 8, 16, 32)  #: sizes of groups whose borders facts straddle
    sink: int = 0  #: tokens before the first group
    density: float = 0.35  #: share of a row that facts, questions and replies may take

    def check(self) -> None:
        for what, given, known in (("task", self.tasks, tasks.TASKS), ("kind of value", self.values,
                                                                       tasks.words.VALUES)):
            for name, weight in given.items():
                if name not in known:
                    raise ValueError(f"there is no {what} {name}; there are {', '.join(known)}")
                if weight < 0:
                    raise ValueError(f"the weight of {name} must not be negative")
            if sum(given.values()) <= 0:
                raise ValueError(f"no {what} has a weight")
        if not 0 <= self.chat_share <= 1 or not 0 <= self.first_share <= 1:
            raise ValueError("shares are between 0 and 1")
        if not 0 < self.density <= 0.75:
            raise ValueError("the density is above 0 and at most 0.75: a quarter of a row is text")
        if self.length < 128:
            raise ValueError("a row with a task has at least 128 tokens")
        if not self.groups or min(self.groups) < 2 or self.sink < 0:
            raise ValueError("groups have at least 2 tokens, and the sink none or some")


@dataclasses.dataclass
class Row:
    """Tokens and their loss kinds."""

    ids: numpy.ndarray
    kinds: numpy.ndarray
    task: str
    chat: bool
    first: bool  #: whether the question comes before the text
    answers: list[str]
    depths: list[float]  #: of what is asked for
    plants: list[tuple[int, int]]  #: tokens of what was planted
    straddled: list[tuple[int, int, int]]  #: first and last token of a value, and the size of groups it straddles


class RowMaker:
    """Makes rows of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer, form: ChatForm | None, options: RowOptions) -> None:
        options.check()
        self._tokenizer, self._form, self._options = tokenizer, form, options
        self._stops = sentence_ends(tokenizer)
        ratio = len(_SENTENCE) / len(tokenizer.encode([_SENTENCE])[0])
        self._ratio, self._cap = ratio, int(options.density * options.length / (tasks.FACT_SIZE / ratio + 12))

    def row(self, draw: random.Random, text: numpy.ndarray) -> Row:
        """A row whose text is the beginning of `text` (at least a row's length)."""
        cap, options = self._cap, self._options
        chat = self._form is not None and draw.random() < options.chat_share
        names, weights = list(options.tasks), list(options.tasks.values())
        name = draw.choices(names, weights)[0]
        for _ in range(_TRIES):
            task = tasks.Maker(draw, cap, options.values).make(name)
            row = self._lay(draw, task, text, chat)
            if row is not None:
                return row
            cap = cap // 2
        raise ValueError(f"rows of {options.length} tokens are too short for task {name}; make them longer")

    def _encode(self, *texts: str) -> list[list[int]]:
        return [ids.tolist() for ids in self._tokenizer.encode(texts)]

    def _places(self, text: str, ids: list[int], spans: Sequence[tasks.Span]) -> list[tuple[int, int]]:
        """Tokens of characters; a token that has some of them is one of them."""
        cuts = [part for start, end in spans for part in (text[:start].rstrip(" "), text[:end])]
        found = [_common(ids, each) for each in self._encode(*cuts)]
        return [(start, max(start + 1, end)) for start, end in zip(found[::2], found[1::2])]

    def _passages(self, draw: random.Random, task: tasks.Task, text: numpy.ndarray) -> list[tuple[float, int]] | None:
        """Chooses passages and makes their turns; returns their depths."""
        length = self._options.length
        cue = max(6, min(12, length // 96))
        if task.long:
            lengths = [draw.randrange(min(length, _LONG) // 10, min(_LONG, length // 3 - 2 * cue))]
        else:
            lengths = [min(draw.choice((6, 12, 24, 32, 48, 64, 96)), length // 16) for _ in range(task.passages)]
        room = length - sum(2 * cue + each + 80 + int(160 / self._ratio) for each in lengths) - 160
        if room < max(length // 4, max(lengths) + 2 * cue):
            return None
        found = []
        for count in lengths:
            start = self._sentence(text, draw.randrange(0, room - count - cue), room - count - cue)
            begin = self._tokenizer.decode(text[start:start + cue])
            rest = self._tokenizer.decode(text[start + cue:start + cue + count])
            if "\ufffd" in begin + rest or not begin.strip() or not rest.strip():
                return None
            task.turns.append(tasks.passage_turn(draw, begin, rest))
            found.append((start / room, start))
        return found

    def _sentence(self, text: numpy.ndarray, at: int, limit: int) -> int:
        """The next place after the end of a sentence, where there is one near."""
        ends = numpy.flatnonzero(self._stops[text[at:min(limit, at + _LOOK)]])
        return at + int(ends[0]) + 1 if len(ends) else at

    def _lay(self, draw: random.Random, task: tasks.Task, text: numpy.ndarray, chat: bool) -> Row | None:
        options = self._options
        depths = [plant.depth for plant in task.plants if plant.asked]
        if task.passages:
            chosen = self._passages(draw, task, text)
            if chosen is None:
                return None
            depths = [depth for depth, _ in chosen]
        first = len(task.turns) == 1 and draw.random() < options.first_share
        lead = self._lead(draw, task, chat, first)
        tail, tail_kinds = self._tail(draw, task, chat, first)
        plants = []
        for plant in sorted(task.plants, key=lambda each: each.depth):
            own_line = plant.block or draw.random() < 0.25
            written = f"\n\n{plant.text}\n\n" if own_line else f" {plant.text}"
            plants.append((plant, written, self._encode(written)[0], own_line))
        room = options.length - len(lead) - len(tail) - sum(len(ids) for _, _, ids, _ in plants)
        if room < options.length // 4 or room > len(text):
            return None
        ids, kinds = list(lead), [NONE] * len(lead)
        last, where, straddled = 0, [], []
        for plant, written, planted, own_line in plants:
            at = max(last, int(plant.depth * room))
            if plant.straddle:
                shift = written.index(plant.text)
                value = [(start + shift, end + shift) for start, end in plant.values[:1]]
                inside = self._places(written, planted, value)[0]
                group = draw.choice(list(options.groups))
                at = self._straddling(draw, len(ids) - last, at, last, room, inside, group)
                begin = len(ids) + at - last
                straddled.append((begin + inside[0], begin + inside[1] - 1, group))
            elif draw.random() < 0.75 or own_line:
                at = self._sentence(text, at, room)
            ids += text[last:at].tolist()
            kinds += [TEXT] * (at - last) + [NONE] * len(planted)
            where.append((len(ids), len(ids) + len(planted)))
            ids += planted
            last = at
        ids += text[last:room].tolist() + tail
        kinds += [TEXT] * (room - last) + tail_kinds
        assert len(ids) == len(kinds) == options.length
        answers = [turn.reply[start:end] for turn in task.turns for start, end in turn.answers]
        return Row(numpy.array(ids, numpy.int64), numpy.array(kinds, numpy.uint8), task.name, chat, first, answers,
                   depths, where, straddled)

    def _straddling(self, draw: random.Random, offset: int, at: int, low: int, high: int, inside: tuple[int, int],
                    group: int) -> int:
        """The place near `at` in the text where a border of groups falls between two tokens of the value."""
        start, end = inside
        if end - start < 2:
            return at
        split = draw.randrange(start + 1, end)  # this token is to be the first of a group
        wrong = (offset + at + split - self._options.sink) % group
        for place in (at + (group - wrong) % group, at - wrong):
            if low <= place <= high:
                return place
        return at

    def _lead(self, draw: random.Random, task: tasks.Task, chat: bool, first: bool) -> list[int]:
        if first:
            written = f"{draw.choice(templates.FIRST_INTRODUCTIONS)} {task.turns[0].question}\n\n"
        else:
            written = draw.choice(templates.INTRODUCTIONS) if chat or draw.random() < 0.5 else ""
            written += "\n\n" if written else ""
        ids = self._encode(written)[0] if written else []
        return (self._form.open if chat and self._form else self._tokenizer.begin()) + ids

    def _tail(self, draw: random.Random, task: tasks.Task, chat: bool, first: bool) -> tuple[list[int], list[int]]:
        """Questions and replies after the text."""
        ids: list[int] = []
        kinds: list[int] = []

        def add(more: list[int], kind: int = NONE) -> None:
            ids.extend(more)
            kinds.extend([kind] * len(more))

        ask, answer = draw.choice(templates.PLAIN_LEADS)
        for number, turn in enumerate(task.turns):
            question = draw.choice(templates.AGAIN) if first else turn.question
            begin = "\n\n" if number == 0 else "" if chat else "\n"
            if chat and self._form:
                if number:
                    add(self._form.next)
                add(self._encode(begin + question)[0] if begin + question else [])
                add(self._form.turn)
            else:
                add(self._encode(f"{begin}{ask}{question}\n{answer}".rstrip(" "))[0])
            # Without a chat format the lead may end with a colon; the space then belongs to the reply.
            reply = (" " if not chat and answer.endswith(" ") else "") + turn.reply
            shift = len(reply) - len(turn.reply)
            spoken = self._encode(reply)[0]
            base = len(ids)
            add(spoken)
            for start, end in self._places(reply, spoken, [(a + shift, b + shift) for a, b in turn.answers]):
                kinds[base + start:base + end] = [ANSWER] * (end - start)
            if chat and self._form and number + 1 == len(task.turns):
                add(self._form.close)
                # A reply of nothing but its answer ends there: that is part of what is asked.
                if turn.ends and turn.answers[0] == (0, len(turn.reply)) and self._form.close:
                    kinds[base + len(spoken)] = ANSWER
        if not chat:
            add(self._encode("\n")[0])
        return ids, kinds


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(one, other):
        if a != b:
            break
        count += 1
    return count
