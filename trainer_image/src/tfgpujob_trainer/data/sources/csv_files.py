"""CSV files, read into memory: numbers, and text in the columns that are declared to hold some."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.arrays import Arrays
from tfgpujob_trainer.data.sources.matching import matching
from tfgpujob_trainer.data.sources.text import as_text

_KIND = "CSV rows in memory"
_NO_NUMBER = (
    'give every cell a number, name columns of text in "text": [...], leave columns out by "columns": [...], '
    "or read it in data()"
)


def table(declared: Mapping[str, Any], split: str) -> Arrays:
    """`{"csv": pattern or patterns, "label": column, "columns": [...], "text": [...], "classes": [...]}`.

    x is a matrix of numbers or, with columns of text, a dict of all columns by name. A label of text is the place of
    its name among the classes, which are all labels in order unless they are given. Columns that are not asked for may
    hold anything.
    """
    label, text, classes = declared.get("label"), set(declared.get("text", ())), declared.get("classes")
    files = matching(declared["csv"], split)
    header = _header(files, split)
    named = list(declared.get("columns", [name for name in header if name != label]))
    wanted = [*named, *([] if label is None else [label])]
    for name in (*wanted, *text):
        if name not in header:
            raise ConfigError(f"data({split!r}): there is no CSV column {name!r}", f"known: {', '.join(header)}")
    if not text <= {*wanted}:
        raise ConfigError(f"data({split!r}): 'text' names {min(text - {*wanted})!r}, and 'columns' does not", "add it")
    if classes is not None and label is not None:
        text.add(label)
    columns = _columns(files, header, wanted, text, split)
    x: Any = {name: _as_keras_float(columns[name]) for name in named}
    if not text & {*named}:
        x = np.stack([x[name] for name in named], axis=1)
    if label is None:
        return Arrays((x,), kind=_KIND)
    y = columns[label]
    if y.dtype == object:
        known, places = _classes(y, classes, f"data({split!r}): the CSV column {label!r}")
        found = Arrays((x, places), kind=_KIND)
        found.classes = known
        return found
    whole = bool((y == np.floor(y)).all())
    return Arrays((x, y.astype(np.int64) if whole else _as_keras_float(y)), kind=_KIND)


def _as_keras_float(column: np.ndarray) -> np.ndarray:
    return column if column.dtype == object else column.astype(keras.config.floatx())


def _header(files: Sequence[str], split: str) -> list[str]:
    """The names of the columns, which all files must have alike."""
    header: list[str] | None = None
    for file in files:
        with Path(file).open(newline="") as lines:
            columns = next(csv.reader(lines), [])
        if header is not None and columns != header:
            raise ConfigError(f"data({split!r}): {file} has the columns {columns}, another file {header}")
        header = columns
    return header or []


def _columns(
    files: Sequence[str], header: Sequence[str], wanted: Sequence[str], text: Collection[str], split: str
) -> dict[str, np.ndarray]:
    """The columns by name, numbers in float64 and text as bytes."""
    places = {name: header.index(name) for name in wanted}
    blocks: list[dict[str, np.ndarray]] = []
    for file in files:
        with Path(file).open(newline="") as lines:
            next(csv.reader(lines), [])
            try:
                block = _with_text(lines, places, text) if text else _numbers(lines, places)
            except (ValueError, IndexError) as error:
                raise ConfigError(f"data({split!r}): {file}: {error}", _NO_NUMBER) from error
        if block:
            blocks.append(block)
    if not blocks:
        raise ConfigError(f"data({split!r}): the CSV files hold no rows")
    return {name: np.concatenate([block[name] for block in blocks]) for name in wanted}


def _numbers(lines: Iterable[str], places: Mapping[str, int]) -> dict[str, np.ndarray]:
    rows = [line for line in lines if line.strip()]
    if not rows:
        return {}
    values = np.loadtxt(rows, delimiter=",", ndmin=2, quotechar='"', usecols=list(places.values()))
    return dict(zip(places, values.T, strict=True))


def _with_text(lines: Iterable[str], places: Mapping[str, int], text: Collection[str]) -> dict[str, np.ndarray]:
    rows = [row for row in csv.reader(lines) if row]
    found = {}
    for name, place in places.items() if rows else ():
        cells = [row[place] for row in rows]
        found[name] = as_text(np.asarray(cells), name) if name in text else np.asarray(cells, np.float64)
    return found


def _classes(labels: np.ndarray, declared: Sequence[str] | None, what: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and the place of each label among them."""
    found = [label.decode() for label in labels]
    classes = tuple(sorted(set(found)) if declared is None else declared)
    place = {name: number for number, name in enumerate(classes)}
    unknown = next((label for label in found if label not in place), None)
    if unknown is not None:
        raise ConfigError(f"{what} holds {unknown!r}, which is not in 'classes'", "name every class")
    return classes, np.asarray([place[label] for label in found])
