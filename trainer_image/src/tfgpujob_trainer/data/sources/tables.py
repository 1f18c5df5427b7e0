"""Tables in files, of numbers and text, read into memory: what CSV and Parquet files have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.arrays import Arrays
from tfgpujob_trainer.data.sources.base import matching

Columns = dict[str, np.ndarray]
"""By name: numbers in float64, and text as bytes objects."""


@dataclass(frozen=True, slots=True)
class Format:
    """How files of a kind are read. Both functions raise ConfigError."""

    name: str
    header: Callable[[Sequence[str], str], Mapping[str, bool]]
    """For these files of a split: the names of all columns, and whether the file declares them as text."""
    read: Callable[[Sequence[str], Sequence[str], Sequence[str], Collection[str], str], Columns]
    """These files, of which all columns are so named, for these columns, of which some are text, of a split."""


def table(declared: Mapping[str, Any], key: str, what: str, kind: Format) -> Arrays:
    """`{key: pattern or patterns, "label": column, "columns": [...], "text": [...], "classes": [...]}`.

    x is a matrix of numbers or, with columns of text, a dict of all columns by name. A label of text is the place of
    its name among the classes, which are all labels in order unless they are given. Columns that are not asked for may
    hold anything.
    """
    label, text, classes = declared.get("label"), set(declared.get("text", ())), declared.get("classes")
    files = matching(declared[key], what)
    header = kind.header(files, what)
    named = list(declared.get("columns", [name for name in header if name != label]))
    wanted = [*named, *([] if label is None else [label])]
    for name in (*wanted, *text):
        if name not in header:
            raise ConfigError(f"{what}: there is no {kind.name} column {name!r}", f"known: {', '.join(header)}")
    if not text <= {*wanted}:
        raise ConfigError(f"{what}: 'text' names {min(text - {*wanted})!r}, and 'columns' does not", "add it")
    if classes is not None and label is not None:
        text.add(label)
    text |= {name for name in wanted if header[name]}
    columns = kind.read(files, list(header), wanted, text, what)
    in_memory = f"{kind.name} rows in memory"
    x: Any = {name: _as_keras_float(columns[name]) for name in named}
    if not text & {*named}:
        x = np.stack([x[name] for name in named], axis=1)
    if label is None:
        return Arrays((x,), kind=in_memory)
    y = columns[label]
    if y.dtype == object:
        known, places = _classes(y, classes, f"{what}: the {kind.name} column {label!r}")
        found = Arrays((x, places), kind=in_memory)
        found.classes = known
        return found
    whole = bool((y == np.floor(y)).all())
    return Arrays((x, y.astype(np.int64) if whole else _as_keras_float(y)), kind=in_memory)


def joined(blocks: Sequence[Columns], wanted: Sequence[str], name: str, what: str) -> Columns:
    """The rows of all files, one after the other; raises ConfigError if there are none."""
    if not blocks:
        raise ConfigError(f"{what}: the {name} files hold no rows")
    return {name: np.concatenate([block[name] for block in blocks]) for name in wanted}


def _as_keras_float(column: np.ndarray) -> np.ndarray:
    return column if column.dtype == object else column.astype(keras.config.floatx())


def _classes(labels: np.ndarray, declared: Sequence[str] | None, what: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and the place of each label among them."""
    found = [label.decode() for label in labels]
    classes = tuple(sorted(set(found)) if declared is None else declared)
    place = {name: number for number, name in enumerate(classes)}
    unknown = next((label for label in found if label not in place), None)
    if unknown is not None:
        raise ConfigError(f"{what} holds {unknown!r}, which is not in 'classes'", "name every class")
    return classes, np.asarray([place[label] for label in found])
