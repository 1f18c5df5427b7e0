"""CSV files: numbers, and text in the columns that are declared to hold some."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.tables import Columns, Format, joined
from tfgpujob_trainer.data.sources.text import as_text

_NO_NUMBER = (
    'give every cell a number, name columns of text in "text": [...], leave columns out by "columns": [...], '
    "or read it in data()"
)


def _header(files: Sequence[str], what: str) -> dict[str, bool]:
    """The names of the columns, which all files must have alike; none of them says that it is text."""
    header: list[str] | None = None
    for file in files:
        with Path(file).open(newline="") as lines:
            columns = next(csv.reader(lines), [])
        if header is not None and columns != header:
            raise ConfigError(f"{what}: {file} has the columns {columns}, another file {header}")
        header = columns
    return dict.fromkeys(header or [], False)


def _read(
    files: Sequence[str], header: Sequence[str], wanted: Sequence[str], text: Collection[str], what: str
) -> Columns:
    places = {name: header.index(name) for name in wanted}
    blocks: list[Columns] = []
    for file in files:
        with Path(file).open(newline="") as lines:
            next(csv.reader(lines), [])
            try:
                block = _with_text(lines, places, text) if text else _numbers(lines, places)
            except (ValueError, IndexError) as error:
                raise ConfigError(f"{what}: {file}: {error}", _NO_NUMBER) from error
        if block:
            blocks.append(block)
    return joined(blocks, wanted, CSV.name, what)


def _numbers(lines: Iterable[str], places: Mapping[str, int]) -> Columns:
    rows = [line for line in lines if line.strip()]
    if not rows:
        return {}
    values = np.loadtxt(rows, delimiter=",", ndmin=2, quotechar='"', usecols=list(places.values()))
    return dict(zip(places, values.T, strict=True))


def _with_text(lines: Iterable[str], places: Mapping[str, int], text: Collection[str]) -> Columns:
    rows = [row for row in csv.reader(lines) if row]
    found = {}
    for name, place in places.items() if rows else ():
        cells = [row[place] for row in rows]
        found[name] = as_text(np.asarray(cells), name) if name in text else np.asarray(cells, np.float64)
    return found


CSV = Format("CSV", _header, _read)
