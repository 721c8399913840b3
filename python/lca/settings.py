"""Settings as the package passes them around: a dict with the fields of a settings file."""

from __future__ import annotations

from . import _lca


def resolve(preset: str | None, carried: dict | None, knobs: dict) -> dict:
    """All fields: those of `preset`, else of `carried` over preset `training`, changed by `knobs`.

    A value may be a list with one entry per layer, as in a checkpoint's "lca" key.
    """
    chosen = dict(_lca.settings_preset(preset or "training"))
    changes = dict(carried or {}) if preset is None else {}
    changes.update(knobs)
    unknown = sorted(set(changes) - set(chosen))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]}; known: {', '.join(chosen)}")
    chosen.update(changes)
    return chosen


def settings_of_layers(chosen: dict, layers: int) -> list[dict]:
    """The settings of every layer, each checked."""
    for name, value in chosen.items():
        if isinstance(value, (list, tuple)) and len(value) != layers:
            raise ValueError(f"{name} has {len(value)} values; the model has {layers} layers")
    result = []
    for layer in range(layers):
        one = {name: value[layer] if isinstance(value, (list, tuple)) else value for name, value in chosen.items()}
        _lca.settings_check(one)
        result.append(one)
    return result
