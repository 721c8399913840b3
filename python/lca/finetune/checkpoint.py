"""Checkpoints and results that are there completely or not at all.

    OUT/checkpoints/step-00000100/state.json   step, place in the data, configuration
    OUT/checkpoints/step-00000100/state.pt     trained weights, optimizer, random state

A folder is written under another name, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any

import numpy
import torch

_PART = ".part"


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_written(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder to write into; it takes the place of `path` when all of it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + _PART)
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir()
    yield draft
    for each in sorted(draft.rglob("*")):
        _sync(each)
    _sync(draft)
    if path.exists():
        old = path.with_name(path.name + ".old" + _PART)
        if old.exists():
            shutil.rmtree(old)
        os.rename(path, old)
        os.rename(draft, path)
        shutil.rmtree(old)
    else:
        os.rename(draft, path)
    _sync(path.parent)


def random_state() -> dict[str, Any]:
    """Of Python, numpy, torch and its GPUs."""
    kind, keys, at, has_gauss, gauss = numpy.random.get_state()
    version, inner, following = random.getstate()
    return {"python": [version, list(inner), following],
            "numpy": [kind, torch.from_numpy(keys.astype(numpy.int64)), at, has_gauss, gauss],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def random_restore(state: dict[str, Any]) -> None:
    version, inner, following = state["python"]
    random.setstate((version, tuple(inner), following))
    kind, keys, at, has_gauss, gauss = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype(numpy.uint32), at, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _options():
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    return StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)


def weights_gather(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The trained weights of a model that may be sharded; on the first process, and to be called on all."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    trained = {name.removeprefix("module.") for name, each in model.named_parameters(remove_duplicate=False)
               if each.requires_grad}
    found = get_model_state_dict(model, options=_options())
    return {name: value for name, value in found.items() if name in trained}  # tied frozen ones come along


def checkpoint_save(folder: pathlib.Path, step: int, told: dict[str, Any], model: torch.nn.Module,
                    optimizer: torch.optim.Optimizer, keep: int, main: bool) -> None:
    """To be called on all processes; the first one writes. Older checkpoints beyond `keep` are removed."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    state = {"model": weights_gather(model),
             "optimizer": get_optimizer_state_dict(model, optimizer, options=_options()), "random": random_state()}
    if not main:
        return
    with folder_written(folder / f"step-{step:08d}") as draft:
        (draft / "state.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        torch.save(state, draft / "state.pt")
    for old in checkpoints(folder)[:-keep]:
        gone = old.with_name(old.name + _PART)  # half a checkpoint has no name of one
        os.rename(old, gone)
        shutil.rmtree(gone)


def checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    """Complete checkpoints, the oldest first."""
    return sorted(each for each in folder.glob("step-*") if not each.name.endswith(_PART))


def leftovers_remove(folder: pathlib.Path) -> None:
    """Removes what a killed run had begun to write: folders, and files such as curves.svg.part."""
    for each in folder.glob(f"*{_PART}"):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def checkpoint_read(path: pathlib.Path) -> dict[str, Any]:
    """state.json of a checkpoint."""
    try:
        return json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it to go on from an earlier one") from None


def checkpoint_load(path: pathlib.Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights, optimizer and random state of a checkpoint; to be called on all processes."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
    try:
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        line = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be read ({line}); remove it to go on from an earlier one") from None
    set_model_state_dict(model, state["model"], options=StateDictOptions(full_state_dict=True, strict=False))
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_options())
    random_restore(state["random"])
