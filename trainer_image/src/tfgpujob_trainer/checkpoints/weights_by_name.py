"""Loads weights by the names of their layers and by shape, for a new head on an old model.

Keras matches a file's weights by the order of the layers, which a new head changes. A file has each layer's name with
its weights, so the model's weights are written to a file, replaced by the old ones, and read.
"""

from __future__ import annotations

import fnmatch
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import counted, did_you_mean

_SHOWN = 5
_SEEDS = "seed_generator"
"""Keras' name for the state of random numbers, which is no weight."""


def load_by_name(path: Path, model: keras.Model, new_layers: Sequence[str]) -> str:
    """Load a .keras or .weights.h5 file except `new_layers`, which are globs; returns a log line.

    Raises ConfigError if another weight of the model is missing, or has another shape.
    """
    with tempfile.TemporaryDirectory(prefix="tfgpu-weights-") as folder:
        own = Path(folder, "own.weights.h5")
        model.save_weights(own)
        with _opened(path) as old, h5py.File(own, "r+") as new:
            wanted, found = _datasets(new), _datasets(old)
            taken = taken_over(
                {name: data.shape for name, data in wanted.items()},
                {name: data.shape for name, data in found.items()},
                new_layers,
                str(path),
            )
            for name in taken:
                wanted[name][...] = found[name][...]
        model.load_weights(own)
    return said(taken, wanted, found)


def taken_over(
    wanted: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]], new_layers: Sequence[str], where: str
) -> list[str]:
    """The weights that the model takes from `where`: all except those of new layers. Names are layer/…/weight.

    Raises ConfigError unless each exists with its shape, and each glob matches a layer.
    """
    layers = {name: name.split("/")[:-1] for name in wanted}
    for glob in new_layers:
        known = sorted({part for parts in layers.values() for part in parts})
        if not fnmatch.filter(known, glob):
            raise ConfigError(f"trainer.newLayers: no layer with weights is named {glob!r}", did_you_mean(glob, known))
    taken = [name for name, parts in layers.items() if not any(fnmatch.filter(parts, glob) for glob in new_layers)]
    missing = [name for name in taken if tuple(found.get(name, (-1,))) != tuple(wanted[name])]
    if missing:
        shapes = [
            f"{name} {list(wanted[name])} ({list(found[name]) if name in found else 'nothing'} there)"
            for name in missing
        ]
        more = f" and {counted(len(missing) - _SHOWN, 'other')}" if len(missing) > _SHOWN else ""
        names = json.dumps(list(dict.fromkeys(layers[name][-1] for name in missing if layers[name]))[:_SHOWN])
        raise ConfigError(
            f"trainer.initialWeights: {where} does not fit the model, which has {', '.join(shapes[:_SHOWN])}{more}",
            f"use weights of a model with the same layers, or set newLayers: {names} if these are new",
        )
    if not taken:
        raise ConfigError(f"trainer.newLayers is {json.dumps(list(new_layers))}, every layer", "remove initialWeights")
    return taken


def said(taken: Sequence[str], wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """`: 4 weights by name; out is new; not used: head`."""
    new = _layers(set(wanted) - set(taken))
    unused = _layers(set(found) - set(taken))
    parts = [f": {counted(len(taken), 'weight')} by name"]
    parts += [f"{', '.join(new)} {'is' if len(new) == 1 else 'are'} new"] if new else []
    parts += [f"not used: {', '.join(unused)}"] if unused else []
    return "; ".join(parts)


def _layers(names: set[str]) -> list[str]:
    return sorted({name.rpartition("/")[0] for name in names} - {""})


def _opened(path: Path) -> Any:
    if path.suffix != ".keras":
        return h5py.File(path, "r")
    with zipfile.ZipFile(path) as archive:
        return h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r")


def _datasets(file: Any) -> dict[str, Any]:
    """The weights by the names of their layers, and their index in these."""
    found: dict[str, Any] = {}

    def look(group: Any, names: tuple[str, ...], *, top: bool = False) -> None:
        own = group.get("vars")
        name = str(own.attrs.get("name", "")) if own is not None else ""
        if name and not top:
            names = (*names, name)
        if own is not None and not (names and names[-1].startswith(_SEEDS)):
            found.update({"/".join((*names, number)): data for number, data in own.items()})
        for key, below in group.items():
            if key != "vars" and not (top and key == "optimizer") and hasattr(below, "items"):
                look(below, names)

    look(file, (), top=True)
    return found
