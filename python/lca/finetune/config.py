"""The settings of a run, from plain values. Whatever is wrong with them is one line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Callable
from typing import Any

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_UNITS = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_NEEDED = object()


class ConfigError(ValueError):
    """What is wrong with a configuration, in one line."""


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# --- readers of single values: (value, where) -> value -------------------------------------------------------------


def _number(value: Any, where: str, low: float = -math.inf, high: float = math.inf, what: str = "a number") -> float:
    if isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where} must be {what}, not {short(value)}")
    if not low <= value <= high:
        raise ConfigError(f"{where} is {value}; it must be between {low:g} and {high:g}" if high < math.inf
                          else f"{where} is {value}; it must be at least {low:g}")
    return value


def _float(low: float = 0.0, high: float = math.inf) -> Callable[[Any, str], float]:
    return lambda value, where: float(_number(value, where, low, high))


def _whole(low: int = 0, high: float = math.inf) -> Callable[[Any, str], int]:
    def read(value: Any, where: str) -> int:
        found = _number(value, where, low, high, "a whole number")
        if found != int(found):
            raise ConfigError(f"{where} must be a whole number, not {short(value)}")
        return int(found)
    return read


def _amount(value: Any, where: str) -> int:
    """60M, 2.5G or a plain number."""
    unit = 1
    if isinstance(value, str) and value[-1:].upper() in _UNITS:
        value, unit = value[:-1], _UNITS[value[-1].upper()]
    return int(_number(value, where, 1 / unit, 1e15, "a number of tokens such as 131072 or 60M") * unit)


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, not {short(value)}")
    return value


def text_read(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} must be a text, not {short(value)}")
    return value


def _one_of(*names: str | bool) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        if value not in names:
            told = ", ".join(str(name).lower() if isinstance(name, bool) else name for name in names)
            raise ConfigError(f"{where} must be one of {told}, not {short(value)}")
        return value
    return read


def _list_of(read: Callable[[Any, str], Any], least: int = 1) -> Callable[[Any, str], list]:
    def read_all(value: Any, where: str) -> list:
        if not isinstance(value, list) or len(value) < least:
            raise ConfigError(f"{where} must be a list" + (" with entries" if least else "")
                              + f", not {short(value)}")
        return [read(each, f"{where}[{at}]") for at, each in enumerate(value)]
    return read_all


def _or_none(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, where: None if value is None else read(value, where)


@dataclasses.dataclass(frozen=True)
class Random:
    """A value that is drawn anew for every step."""

    choices: list


def _drawn(read: Callable[[Any, str], Any], per_layer: bool = True) -> Callable[[Any, str], Any]:
    """A value, a list with one value per layer, or {random: [values or lists]}."""
    def one(value: Any, where: str) -> Any:
        return _list_of(read)(value, where) if per_layer and isinstance(value, list) else read(value, where)

    def read_any(value: Any, where: str) -> Any:
        if isinstance(value, dict):
            if list(value) != ["random"]:
                raise ConfigError(f"{where} must be a value or {{random: [values]}}, not {short(value)}")
            return Random(_list_of(one)(value["random"], f"{where}.random"))
        return one(value, where)
    return read_any


# --- the parts of a configuration ----------------------------------------------------------------------------------


def _field(read: Callable[[Any, str], Any], default: Any = _NEEDED) -> Any:
    if default is _NEEDED:
        return dataclasses.field(metadata={"read": read})
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"read": read})
    return dataclasses.field(default=default, metadata={"read": read})


def _part(cls: type) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise ConfigError(f"{where or 'the file'} must be a mapping (key: value), not {short(value)}")
        fields = {each.name: each for each in dataclasses.fields(cls)}
        dot = f"{where}." if where else ""
        for name in value:
            if name not in fields:
                near = difflib.get_close_matches(str(name), fields, 1)
                raise ConfigError(f"unknown key {dot}{name}; "
                                  + (f"did you mean {near[0]}?" if near else f"known: {', '.join(fields)}"))
        found = {}
        for name, each in fields.items():
            if name in value:
                found[name] = each.metadata["read"](value[name], dot + name)
            elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{dot}{name} is missing")
        return cls(**found)
    return read


@dataclasses.dataclass(frozen=True)
class Lora:
    rank: int = _field(_whole(1, 1 << 16), 16)
    alpha: float = _field(_float(1e-6), 32.0)
    targets: list = _field(_list_of(text_read), lambda: list(TARGETS))
    dropout: float = _field(_float(0.0, 0.0), 0.0)  # the teacher and the chunks of a loss need the same pass twice


@dataclasses.dataclass(frozen=True)
class Optimizer:
    rate: float = _field(_float(), 1e-3)
    betas: list = _field(_list_of(_float(0.0, 0.99999999), 2), lambda: [0.9, 0.95])
    weight_decay: float = _field(_float(), 0.0)
    clip: float = _field(_float(), 1.0)  # 0: none
    warmup: int = _field(_whole(), 20)  # steps
    floor: float = _field(_float(0.0, 1.0), 0.1)  # the last rate as a share of the first
    schedule: str = _field(_one_of("stage", "run"), "stage")  # what a cosine spans


@dataclasses.dataclass(frozen=True)
class Loss:
    teacher: bool = _field(_boolean, True)  # text: KL to the dense base; else cross-entropy
    reach: int | None = _field(_or_none(_whole(2)), None)  # tokens of a row the teacher reads; null: all
    text: float = _field(_float(), 1.0)
    answer: float = _field(_float(), 1.0)
    context: bool = _field(_boolean, False)  # the teacher also speaks for planted facts and questions
    chunk: int = _field(_whole(1), 1024)  # tokens whose logits are in memory at a time


@dataclasses.dataclass(frozen=True)
class Stage:
    tokens: int = _field(_amount)
    length: Any = _field(_drawn(_whole(2), per_layer=False))
    data: Any = _field(lambda value, where: _folders(value, where))
    batch: Any = _field(lambda value, where: _rows(value, where))  # rows of a step, over all processes
    micro: int = _field(_whole(0), 0)  # rows of a forward pass of one process; 0: all
    method: str = _field(_one_of("lca", "dense", "window"), "lca")
    group: Any = _field(_drawn(_whole(1)), 16)
    window: Any = _field(_drawn(_whole(1)), 1024)
    sink: Any = _field(_drawn(_whole(0)), 0)
    positions: str = _field(_one_of("token", "entry"), "token")
    rate: float | None = _field(_or_none(_float()), None)
    text: float | None = _field(_or_none(_float()), None)  # weights of its own
    answer: float | None = _field(_or_none(_float()), None)
    name: str | None = _field(_or_none(text_read), None)

    @property
    def lengths(self) -> list[int]:
        """All lengths that rows may have."""
        return self.length.choices if isinstance(self.length, Random) else [self.length]

    def rows(self, length: int) -> int:
        """Rows of a step whose rows have this length."""
        return self.batch[length] if isinstance(self.batch, dict) else self.batch


def _by_length(read: Callable[[Any, str], Any], value: Any, where: str) -> Any:
    """A value, or one for each length: {1024: value, 2048: value}."""
    if not isinstance(value, dict):
        return read(value, where)
    return {_whole(2)(length, f"{where} (length)"): read(each, f"{where}.{length}") for length, each in value.items()}


def _rows(value: Any, where: str) -> Any:
    return _by_length(_whole(1), value, where)


def _folders(value: Any, where: str) -> Any:
    return _by_length(text_read, value, where)


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    data: str = _field(text_read)
    length: int | None = _field(_or_none(_whole(2)), None)
    rows: int = _field(_whole(1), 16)


def _sets(value: Any, where: str) -> dict:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{where} must be a mapping of names to {{data: folder}}, not {short(value)}")
    return {text_read(name, f"{where} (name)"): _part(EvaluationSet)(each, f"{where}.{name}")
            for name, each in value.items()}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    sets: dict = _field(_sets)
    every: int = _field(_whole(1), 100)
    batch: int = _field(_whole(1), 1)


@dataclasses.dataclass(frozen=True)
class Samples:
    prompts: list = _field(_list_of(text_read))
    every: int = _field(_whole(1), 100)
    tokens: int = _field(_whole(1), 48)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    every: int = _field(_whole(1), 100)
    keep: int = _field(_whole(1), 2)


def _settings(value: Any, where: str) -> dict:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping (key: value), not {short(value)}")
    for name in ("group", "window", "sink", "positions", "method"):
        if name in value:
            raise ConfigError(f"{where}.{name} is set in stages")
    return dict(value)


@dataclasses.dataclass(frozen=True)
class Config:
    model: str = _field(text_read)
    output: str = _field(text_read)
    stages: list = _field(_list_of(_part(Stage)))
    lora: Lora | None = _field(_or_none(_part(Lora)), Lora)  # null: all weights
    attention: dict = _field(_settings, dict)  # settings that stay: preset, mass, summary_queries, …
    optimizer: Optimizer = _field(_part(Optimizer), Optimizer)
    loss: Loss = _field(_part(Loss), Loss)
    evaluation: Evaluation | None = _field(_or_none(_part(Evaluation)), None)
    samples: Samples | None = _field(_or_none(_part(Samples)), None)
    checkpoint: Checkpoint = _field(_part(Checkpoint), Checkpoint)
    init: str | None = _field(_or_none(text_read), None)  # an adapter or a checkpoint to begin with
    seconds: float | None = _field(_or_none(_float()), None)  # when to end at the latest
    seed: int = _field(_whole(), 0)
    precision: str = _field(_one_of("auto", "float32", "bf16"), "auto")  # auto: bf16 on a GPU
    device: str = _field(_one_of("auto", "cpu"), "auto")
    gradient_checkpointing: bool = _field(_boolean, True)
    fused: Any = _field(_one_of("auto", True, False), "auto")  # auto: on a GPU, where the model allows it
    compile: Any = _field(lambda value, where: value if isinstance(value, bool) else text_read(value, where), False)

    @property
    def tokens(self) -> int:
        return sum(stage.tokens for stage in self.stages)


def _stages_changed(value: Any) -> Any:
    """`all_stages` goes over the values of every stage."""
    if not isinstance(value, dict) or "all_stages" not in value:
        return value
    value = dict(value)
    changes, stages = value.pop("all_stages"), value.get("stages")
    if not isinstance(changes, dict):
        raise ConfigError(f"all_stages must be a mapping (key: value), not {short(changes)}")
    if isinstance(stages, list):
        value["stages"] = [{**stage, **changes} if isinstance(stage, dict) else stage for stage in stages]
    return value


def config_parse(value: Any) -> Config:
    """A configuration of plain values, with what depends on several of them checked."""
    value = _stages_changed(value)
    total = None
    if isinstance(value, dict) and "tokens" in value:
        value = dict(value)
        total = _amount(value.pop("tokens"), "tokens")
    config = _part(Config)(value, "")
    if total is not None:  # the stages keep their shares
        share = total / config.tokens
        stages = [dataclasses.replace(stage, tokens=max(1, round(stage.tokens * share))) for stage in config.stages]
        config = dataclasses.replace(config, stages=stages)
    for at, stage in enumerate(config.stages):
        for length in stage.lengths:
            for name, value in (("data", stage.data), ("batch", stage.batch)):
                if isinstance(value, dict) and length not in value:
                    raise ConfigError(f"stages[{at}].{name} has nothing for length {length}")
            rows = stage.rows(length)
            if stage.micro and rows % stage.micro:
                raise ConfigError(f"stages[{at}].batch is {rows}, which is not a multiple of micro {stage.micro}")
            folder = stage.data[length] if isinstance(stage.data, dict) else stage.data
            if not os.path.isdir(folder):
                raise ConfigError(f"stages[{at}].data: there is no folder {folder}")
    for name, each in (config.evaluation.sets.items() if config.evaluation else ()):
        if not os.path.isdir(each.data):
            raise ConfigError(f"evaluation.sets.{name}.data: there is no folder {each.data}")
    return config


def plain(config: Config) -> dict:
    """The configuration as JSON has it, for checkpoints."""
    def tidy(value: Any) -> Any:
        if isinstance(value, Random):
            return {"random": value.choices}
        if dataclasses.is_dataclass(value):
            return {each.name: tidy(getattr(value, each.name)) for each in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {str(key): tidy(each) for key, each in value.items()}
        return [tidy(each) for each in value] if isinstance(value, (list, tuple)) else value
    return tidy(config)
