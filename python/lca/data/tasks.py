"""Retrieval tasks: what is planted into a text, what is asked, and what the reply is.

Everything is text here; ``lca.data.rows`` turns it into tokens.
"""

from __future__ import annotations

import dataclasses
import random
import string
from collections.abc import Callable

from lca.data import phrases, templates, words

Span = tuple[int, int]
Event = tuple[str, str, str]  #: wordings of a statement, its question and its reply
Fact = tuple[str, str, "Event | None"]  #: key, value, and the wordings where they belong together


@dataclasses.dataclass
class Plant:
    """A text that is planted, and where."""

    text: str
    depth: float  #: share of the text before it
    asked: bool = True
    values: list[Span] = dataclasses.field(default_factory=list)  #: characters of values
    straddle: bool = False  #: a border of groups is to lie inside the first value
    block: bool = False  #: a paragraph of its own


@dataclasses.dataclass
class Turn:
    """A question, and the reply with the characters that are answers."""

    question: str
    reply: str
    answers: list[Span]
    ends: bool = True  #: whether the reply ends where its answer does


@dataclasses.dataclass
class Task:
    """All that a row has besides its text. A passage has turns only when the text is known."""

    name: str
    plants: list[Plant]
    turns: list[Turn]
    passages: int = 0  #: how many passages are to be asked for
    long: bool = False  #: whether they are as long as the row has room for


def fill(template: str, **fields: str | list[str]) -> tuple[str, dict[str, list[Span]]]:
    """A template with its fields, and where they are; a list is spelled out, with a place for each entry."""
    text = ""
    places: dict[str, list[Span]] = {}
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is None:
            continue
        value = fields[name]
        entries = value if isinstance(value, list) else [value]
        places[name] = []  # where it comes twice, the last counts
        for at, entry in enumerate(entries):
            text += "" if at == 0 else " and " if at == len(entries) - 1 else ", "
            places[name].append((len(text), len(text) + len(entry)))
            text += entry
    return text[0].upper() + text[1:] if text.startswith("the ") else text, places


def _depths(draw: random.Random, count: int) -> list[float]:
    return sorted(draw.random() for _ in range(count))


class Maker:
    """Draws tasks. `cap`: how many facts a row may have; `kinds`: shares of kinds of values."""

    def __init__(self, draw: random.Random, cap: int, kinds: dict[str, float]) -> None:
        self._draw, self._cap, self._kinds = draw, max(1, cap), kinds
        self._relation, self._relations = (phrases.relation(draw) if draw.random() < COMPOSED
                                           else draw.choice(templates.RELATIONS))

    def make(self, name: str) -> Task:
        task = TASKS[name](self)
        task.name = name
        return task

    def _count(self, low: int, high: int) -> int:
        return self._draw.randint(min(low, self._cap), min(high, self._cap))

    def _wording(self, fixed: tuple[str, ...], composed: Callable[[random.Random], str]) -> str:
        """A template out of a list, or one that is put together."""
        return composed(self._draw) if self._draw.random() < COMPOSED else self._draw.choice(fixed)

    def _fields(self, key: str, value: str | list[str]) -> dict[str, str | list[str]]:
        return {"r": self._relation, "rs": self._relations, "k": key, "v": value}

    def _plant(self, template: str, key: str, value: str, depth: float, **more) -> Plant:
        text, places = fill(template, **self._fields(key, value))
        return Plant(text, depth, values=places["v"], **more)

    def _turn(self, asking: str, replying: str, key: str, value: str | list[str], answer: str = "v") -> Turn:
        question, _ = fill(asking, **self._fields(key, value))
        reply, places = fill(replying, **self._fields(key, value))
        return Turn(question, reply, places[answer])

    def _ask(self, key: str, value: str, event: Event | None = None) -> Turn:
        if event is not None:
            return self._turn(event[1], event[2], key, value)
        if self._draw.random() < 0.3:
            return self._turn(self._draw.choice(templates.BARE_QUESTIONS), "{v}", key, value)
        return self._turn(self._wording(templates.QUESTIONS, phrases.question),
                          self._wording(templates.REPLIES, phrases.reply), key, value)

    def _ask_several(self, keys: list[str], found: list[str]) -> Turn:
        question, _ = fill(self._draw.choice(templates.SEVERAL_QUESTIONS), r=self._relation, rs=self._relations,
                           ks=keys)
        if self._draw.random() < 0.5:
            reply, places = fill("{v}.", v=found)
            return Turn(question, reply, places["v"])
        reply, answers = "", []
        for key, value in zip(keys, found):
            reply += f"{key}: "
            answers.append((len(reply), len(reply) + len(value)))
            reply += value + "\n"
        return Turn(question, reply.rstrip("\n"), answers)

    def _facts(self, count: int, eventful: bool = True) -> tuple[list[Fact], list[Plant]]:
        """Facts and what is planted of them; some are events, if they may be. Some lists are alike in all but keys and
        values, so that nothing else tells one from another."""
        alike = count > 1 and self._draw.random() < ALIKE
        kinds = {self._draw.choices(list(self._kinds), list(self._kinds.values()))[0]: 1.0} if alike else self._kinds
        keys, found = words.keys(self._draw, count), words.values(self._draw, count, kinds)
        facts: list[Fact] = []
        plants = []
        event, said = None, ""
        for key, value in zip(keys, found):
            if not said or not alike:
                event = phrases.event(self._draw) if eventful and self._draw.random() < EVENTS else None
                said = event[0] if event else self._wording(templates.STATEMENTS, phrases.statement)
            facts.append((key, value, event))
            plants.append(self._plant(said, key, value, self._draw.random()))
        return facts, plants

    def fact(self) -> Task:
        """One fact, asked for."""
        facts, plants = self._facts(1)
        return Task("", plants, [self._ask(*facts[0])])

    def facts(self) -> Task:
        """Several facts, all asked for: one question after another, or one for all."""
        count = self._count(max(2, min(self._cap // 2, 24)), 48)  # a row of 32K has room for more than 48
        together = 1 < count <= 8 and self._draw.random() < 0.4
        facts, plants = self._facts(count, not together)
        self._draw.shuffle(facts)
        if together:
            keys, found, _ = zip(*facts)
            return Task("", plants, [self._ask_several(list(keys), list(found))])
        return Task("", plants, [self._ask(*fact) for fact in facts])

    def distractors(self) -> Task:
        """Several facts, one asked for."""
        facts, plants = self._facts(self._count(2, 24))
        chosen = self._draw.randrange(len(facts))
        for at, plant in enumerate(plants):
            plant.asked = at == chosen
        return Task("", plants, [self._ask(*facts[chosen])])

    def values(self) -> Task:
        """One key with several values, all asked for in their order; some facts of other keys."""
        count, others = self._count(2, 6), self._draw.randint(0, max(0, min(3, self._cap - 6)))
        keys, found = words.keys(self._draw, 1 + others), words.values(self._draw, count + others, self._kinds)
        plants = [self._plant(self._wording(templates.SHARED_STATEMENTS, phrases.statement_more), keys[0], value, depth)
                  for value, depth in zip(found, _depths(self._draw, count))]
        plants += [self._plant(self._wording(templates.STATEMENTS, phrases.statement), key, value, self._draw.random(),
                               asked=False)
                   for key, value in zip(keys[1:], found[count:])]
        turn = self._turn(self._draw.choice(templates.SHARED_QUESTIONS),
                          self._draw.choice(templates.SHARED_REPLIES), keys[0], found[:count])
        return Task("", plants, [turn])

    def reversed(self) -> Task:
        """Facts; the value is given and the key asked for."""
        facts, plants = self._facts(self._count(1, 8), eventful=False)
        chosen = self._draw.randrange(len(facts))
        for at, plant in enumerate(plants):
            plant.asked = at == chosen
        key, value, _ = facts[chosen]
        return Task("", plants, [self._turn(self._draw.choice(templates.REVERSED_QUESTIONS),
                                            self._draw.choice(templates.REVERSED_REPLIES), key, value, "k")])

    def chain(self) -> Task:
        """Names that take over a value from each other, and chains that are not asked about."""
        form, links = self._draw.choice(templates.CHAINS), self._count(1, 5)
        chains = 1 + (self._draw.randint(0, 2) if self._cap >= 3 * links else 0)
        made, used = [], set()
        for number in range(chains):
            value = words.number(self._draw)
            while value in used:
                value = words.number(self._draw)
            used.add(value)
            names: list[str] = []
            while len(names) <= links:
                # Only people begin a sentence; anything else follows its article or command.
                name = words.name(self._draw) if form["start"].startswith("{a}") else words.symbol(self._draw)
                if name not in used:
                    used.add(name)
                    names.append(name)
            texts = [form["start"].format(a=names[0], v=value)]
            texts += [form["link"].format(a=a, b=b) for a, b in zip(names, names[1:])]
            made.append((names, value, [Plant(text, depth, asked=number == 0)
                                        for text, depth in zip(texts, _depths(self._draw, len(texts)))]))
        names, value, _ = made[0]
        if self._draw.random() < 0.5:
            question, _ = fill(form["ask"], b=names[-1], v=value)
            reply, places = fill(form["reply"], b=names[-1], v=value)
            turn = Turn(question, reply, places["v"])
        else:
            question, _ = fill(form["ask_all"], v=value)
            reply, places = fill(form["reply_all"], b=names, v=value)
            turn = Turn(question, reply, places["b"])
        return Task("", [plant for _, _, plants in made for plant in plants], [turn])

    def _lines(self, keys: list[str], found: list[str], form: str, most: int, between: str = "\n") -> Task:
        """Statements of one form, in blocks; some of them, at most `most`, asked for."""
        count, blocks = len(keys), self._draw.randint(1, min(4, len(keys)))
        lines = [fill(form, **self._fields(key, value))[0] for key, value in zip(keys, found)]
        bounds = [0, *sorted(self._draw.sample(range(1, count), blocks - 1)), count]
        chosen = self._draw.sample(range(count), self._draw.randint(1, min(most, count)))
        plants = [Plant(between.join(lines[a:b]), depth, any(a <= i < b for i in chosen), block=True)
                  for a, b, depth in zip(bounds, bounds[1:], _depths(self._draw, blocks))]
        return Task("", plants, [self._ask(keys[i], found[i]) for i in chosen])

    def records(self) -> Task:
        """Blocks of lines that are alike; some of them asked for."""
        count = max(2, min(400, self._cap * self._draw.randint(3, 12)))
        keys, found = words.keys(self._draw, count), words.values(self._draw, count, self._kinds)
        return self._lines(keys, found, self._draw.choice(templates.RECORDS), min(max(4, self._cap // 2), self._cap))

    def crowd(self) -> Task:
        """Sentences that differ in key and value alone, up to most of the row; some of them asked for."""
        form = self._wording(templates.STATEMENTS, phrases.statement)
        count = max(2, int(self._cap * FACT_SIZE * self._draw.uniform(0.2, 0.9) / (len(form) + 16)))
        kind = self._draw.choices(list(self._kinds), list(self._kinds.values()))[0]
        keys, found = words.keys(self._draw, count), words.values(self._draw, count, {kind: 1.0})
        return self._lines(keys, found, form, max(4, self._cap // 3), self._draw.choice((" ", "\n")))

    def border(self) -> Task:
        """Facts whose values lie across a border of groups, all asked for."""
        facts, plants = self._facts(self._count(1, 8))
        for plant in plants:
            plant.straddle = True
        return Task("", plants, [self._ask(*fact) for fact in facts])

    def passage(self) -> Task:
        """Passages of the text, to be repeated word for word."""
        return Task("", [], [], passages=self._draw.randint(1, min(max(3, self._cap // 6), self._cap)))

    def recite(self) -> Task:
        """One long passage of the text, to be repeated word for word: nothing in it is said to matter."""
        return Task("", [], [], passages=1, long=True)

    def several(self) -> Task:
        """Small tasks of all kinds in one row, as many as it holds, their questions in any order."""
        left = self._cap * FACT_SIZE
        whole = Task("", [], [])
        while left > 0:
            name = self._draw.choices(list(PARTS), list(PARTS.values()))[0]
            part = Maker(self._draw, min(8, 1 + left // FACT_SIZE), self._kinds).make(name)
            whole.plants += part.plants
            whole.turns += part.turns
            whole.passages += part.passages
            left -= (sum(len(plant.text) for plant in part.plants) + 3 * FACT_SIZE * part.passages
                     + sum(len(turn.question) + len(turn.reply) + TURN_SIZE for turn in part.turns))
        self._draw.shuffle(whole.turns)
        return whole


#: Share of wordings that are put together (lca.data.phrases); the others are out of the lists of lca.data.templates.
COMPOSED = 0.7
#: Share of facts that something happened, where it makes no difference.
EVENTS = 0.4
#: Share of lists of facts that are all of one wording.
ALIKE = 0.4
#: Characters that a fact takes, with its question and reply, and those around a question.
FACT_SIZE, TURN_SIZE = 220, 40
#: What `several` is made of, and how often.
PARTS = {"facts": 4.0, "fact": 1.0, "distractors": 0.5, "values": 1.0, "reversed": 0.5, "chain": 0.7, "records": 0.5,
         "border": 1.0, "passage": 0.5}

TASKS: dict[str, Callable[[Maker], Task]] = {
    "fact": Maker.fact, "facts": Maker.facts, "distractors": Maker.distractors, "values": Maker.values,
    "reversed": Maker.reversed, "chain": Maker.chain, "records": Maker.records, "crowd": Maker.crowd,
    "border": Maker.border, "passage": Maker.passage, "recite": Maker.recite, "several": Maker.several,
}


def passage_turn(draw: random.Random, begin: str, rest: str) -> Turn:
    """A question about a passage, given how it begins."""
    asking = draw.choice(templates.PASSAGE_QUESTIONS)
    question, _ = fill(asking, cue=begin.strip())
    reply = (rest if "go on after" in asking else begin + rest).strip()
    return Turn(question, reply, [(0, len(reply))], ends=False)  # a passage ends anywhere
