"""Where a run stands in its stages: the settings, the rows and the learning rate of every step.

Random choices are a function of seed, stage and step alone, so that every process draws the same and a resumed run
goes on as if it had never stopped.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy

from lca.data import Packed
from lca.data.reader import Batch, Batches
from lca.finetune.config import Config, ConfigError, Random, Stage


@dataclasses.dataclass
class Place:
    """Counters after a step; all that a checkpoint needs of the curriculum."""

    step: int = 0
    tokens: int = 0
    stage: int = 0
    stage_step: int = 0
    stage_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Step:
    """What one step does."""

    stage: int
    length: int
    knobs: dict[str, Any]
    rate: float


def knobs_last(stage: Stage) -> dict[str, Any]:
    """The settings a stage leaves behind; of those drawn at random, the largest."""
    def settle(value: Any) -> Any:
        if not isinstance(value, Random):
            return value
        return max(value.choices, key=lambda each: numpy.mean(each))
    return {"method": stage.method, "group": settle(stage.group), "window": settle(stage.window),
            "sink": settle(stage.sink), "positions": stage.positions}


def rate_at(config: Config, place: Place) -> float:
    """Warm-up over steps, then a cosine over tokens, of the stage or of the run."""
    options, stage = config.optimizer, config.stages[place.stage]
    if options.schedule == "stage":
        step, share = place.stage_step, place.stage_tokens / stage.tokens
    else:
        step, share = place.step, place.tokens / config.tokens
    peak = options.rate if stage.rate is None else stage.rate
    warm = min(1.0, (step + 1) / options.warmup) if options.warmup else 1.0
    falling = options.floor + (1 - options.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return peak * warm * falling


class Curriculum:
    """Iterates over the steps of a run; its state is plain JSON."""

    def __init__(self, config: Config, rank: int = 0, world: int = 1) -> None:
        self._config, self._rank, self._world = config, rank, world
        self.place = Place()
        self._packed: dict[str, Packed] = {}
        #: Stages with the same folder, length and batch go on in the same order instead of beginning again.
        self._sources: dict[str, Batches] = {}
        for at, stage in enumerate(config.stages):
            for length in stage.lengths:
                if stage.rows(length) % (world * max(1, stage.micro)):
                    raise ConfigError(f"stages[{at}].batch is {stage.rows(length)}; {world} processes need a multiple "
                                      f"of {world * max(1, stage.micro)}")
                self._source(at, length)

    def _source(self, at: int, length: int) -> Batches:
        stage = self._config.stages[at]
        folder = stage.data[length] if isinstance(stage.data, dict) else stage.data
        rows = stage.rows(length)
        key = f"{folder} {length} {rows}"
        if key not in self._sources:
            try:
                packed = self._packed.setdefault(folder, Packed(folder))
                self._sources[key] = packed.batches(rows // self._world, length, seed=self._config.seed,
                                                    epochs=None, rank=self._rank, world=self._world)
            except (OSError, ValueError) as error:
                raise ConfigError(f"stages[{at}].data: {error}") from None
        return self._sources[key]

    @property
    def vocabulary(self) -> int:
        """The largest vocabulary of the data's tokenizers."""
        return max(int(packed.manifest["tokenizer"].get("vocabulary", 0)) for packed in self._packed.values())

    @property
    def tokenizer(self) -> str:
        """The name of the tokenizer of the first stage's data."""
        return next(iter(self._packed.values())).manifest["tokenizer"]["name"]

    def step(self) -> Step | None:
        """What comes next, or None at the end."""
        place, stages = self.place, self._config.stages
        while place.stage < len(stages) and place.stage_tokens >= stages[place.stage].tokens:
            place.stage, place.stage_step, place.stage_tokens = place.stage + 1, 0, 0
        if place.stage == len(stages):
            return None
        stage = stages[place.stage]
        draw = numpy.random.default_rng([self._config.seed, 17, place.stage, place.stage_step])

        def choose(value: Any) -> Any:
            return value.choices[int(draw.integers(len(value.choices)))] if isinstance(value, Random) else value
        length, group, window, sink = (choose(each) for each in (stage.length, stage.group, stage.window, stage.sink))
        knobs = {"method": stage.method, "group": group, "window": window, "sink": sink, "positions": stage.positions}
        return Step(place.stage, length, knobs, rate_at(self._config, place))

    def rows(self, step: Step) -> Batch:
        """This process's rows of a step; counts the step as done."""
        batch = next(self._source(step.stage, step.length))
        count = step.length * self._config.stages[step.stage].rows(step.length)
        place = self.place
        place.step, place.tokens = place.step + 1, place.tokens + count
        place.stage_step, place.stage_tokens = place.stage_step + 1, place.stage_tokens + count
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON. The order of rows in a step's batch does not depend on how many processes share it."""
        data = {}
        for key, source in self._sources.items():
            state = source.state_dict()
            data[key] = {**state, "batch": state["batch"] * self._world, "world": 1}
        return {"place": dataclasses.asdict(self.place), "data": data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = Place(**state["place"])
        for key, source in self._sources.items():
            if key not in state["data"]:
                raise ValueError(f"the checkpoint has no place in {key}")
            one = state["data"][key]
            source.load_state_dict({**one, "batch": one["batch"] // self._world, "world": self._world})


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of one forward pass, on the host."""

    ids: numpy.ndarray  #: int64 [B, n]
    positions: numpy.ndarray  #: int64 [B, n]: places in documents
    kinds: numpy.ndarray  #: uint8 [B, n]
    documents: numpy.ndarray | None  #: int32: bounds of the documents of all rows in a line; None: a row is one


def part_of(ids: numpy.ndarray, kinds: numpy.ndarray, starts: list[numpy.ndarray]) -> Part:
    """Rows with where their documents start."""
    length = ids.shape[1]
    positions = numpy.tile(numpy.arange(length), (len(ids), 1))
    for row, places in zip(positions, starts):
        for place in places[1:]:
            row[place:] = numpy.arange(length - place)
    bounds = None
    if any(len(places) > 1 for places in starts):
        bounds = numpy.concatenate([places + row * length for row, places in enumerate(starts)] + [[ids.size]])
        bounds = bounds.astype(numpy.int32)
    return Part(ids, positions, kinds, bounds)


def micro_batches(batch: Batch, rows: int) -> list[Part]:
    """A batch in parts of `rows` rows."""
    rows = rows or len(batch.ids)
    return [part_of(batch.ids[at:at + rows], batch.kinds[at:at + rows], batch.starts[at:at + rows])
            for at in range(0, len(batch.ids), rows)]
