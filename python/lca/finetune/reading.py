"""Configurations in YAML files: files that change others, tables of runs, changes from the command line."""

from __future__ import annotations

import copy
import os
import pathlib
from typing import Any

from lca.finetune.config import Config, ConfigError, config_parse, short, text_read

RECIPES = pathlib.Path(__file__).parent / "recipes"


def _place(tree: Any, path: str, value: Any) -> None:
    """Puts a value at a.b.0.c."""
    *way, last = path.split(".")
    try:
        for name in way:
            tree = tree[int(name)] if isinstance(tree, list) else tree.setdefault(name, {})
        tree[int(last) if isinstance(tree, list) else last] = value
    except (ValueError, IndexError, TypeError, AttributeError):
        raise ConfigError(f"there is no place {path}") from None


def _assign(tree: Any, text: str, yaml: Any) -> None:
    """stages.0.tokens=1M."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text} is not KEY=VALUE")
    try:
        _place(tree, path, yaml.safe_load(value))
    except yaml.YAMLError:
        raise ConfigError(f"{text}: the value is no YAML") from None


def _merged(under: Any, over: Any) -> Any:
    """Mappings part by part; anything else is replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{name: _merged(under.get(name), value) for name, value in over.items()}}


def _content(path: str | os.PathLike, yaml: Any, depth: int = 0) -> Any:
    """What a YAML file or a recipe of that name says, over what its `base` says."""
    file = pathlib.Path(path)
    if not file.exists() and (RECIPES / f"{file.name}.yaml").exists() and file.name == os.fspath(path):
        file = RECIPES / f"{file.name}.yaml"
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path} is no YAML{place}: {getattr(error, 'problem', None) or 'it cannot be parsed'}") \
            from None
    if not isinstance(content, dict) or "base" not in content:
        return content
    base = text_read(content.pop("base"), f"{path}: base")
    if depth == 8:
        raise ConfigError(f"{path}: base leads from file to file without end")
    beside = file.parent / base
    return _merged(_content(beside if beside.exists() else base, yaml, depth + 1), content)


def _changed(content: Any, changes: list[str] | tuple[str, ...], yaml: Any) -> Any:
    for change in changes:
        _assign(content, change, yaml)
    return content


def configs_read(path: str | os.PathLike, changes: list[str] | tuple[str, ...] = ()) -> dict[str, Config]:
    """The configurations of a file by name: those of its `runs`, or a single one whose name is empty."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading YAML needs PyYAML: pip install 'lca[finetune]'") from None
    content = _content(path, yaml)
    try:
        _changed(content, changes, yaml)
        if not isinstance(content, dict) or "runs" not in content:
            return {"": config_parse(content)}
        runs, found = content.pop("runs"), {}
        if not isinstance(runs, dict) or not runs:
            raise ConfigError(f"runs must be a mapping of names to changes, not {short(runs)}")
        for name, own in runs.items():
            where = f"runs.{text_read(name, 'runs (name)')}"
            if not isinstance(own, dict):
                raise ConfigError(f"{where} must be a mapping (key: value), not {short(own)}")
            one = copy.deepcopy(content)
            one["output"] = f"{text_read(content.get('output'), 'output')}/{name}"
            for key, value in own.items():  # loss.text: 10
                _place(one, text_read(key, f"{where} (key)"), value)
            try:
                found[name] = config_parse(one)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
        return found
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def config_read(path: str | os.PathLike, changes: list[str] | tuple[str, ...] = ()) -> Config:
    """The configuration in a YAML file, or in a recipe of that name; `changes` are KEY=VALUE."""
    found = configs_read(path, changes)
    if "" not in found:
        raise ConfigError(f"{path} has {len(found)} runs")
    return found[""]
