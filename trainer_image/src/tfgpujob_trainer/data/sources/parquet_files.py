"""Parquet files, of which only the columns that are asked for are read.

With the package pyarrow, which the trainer imports only for such files.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.sources.tables import Columns, Format, joined
from tfgpujob_trainer.data.sources.text import as_text

_FIX = 'leave it out by "columns": [...], or read it in data()'


def _header(files: Sequence[str], what: str) -> dict[str, bool]:
    """The names of the columns, and which of them are text; all files must have them alike."""
    types = _arrow(what, "pyarrow.types")
    header: dict[str, bool] | None = None
    for file in files:
        schema = _open(file, what).schema_arrow
        columns = {field.name: _is_text(types, field.type) for field in schema}
        if header is not None and columns != header:
            raise ConfigError(f"{what}: {file} has the columns {[*columns]}, another file {[*header]}")
        header = columns
    return header or {}


def _read(
    files: Sequence[str], _header: Sequence[str], wanted: Sequence[str], text: Collection[str], what: str
) -> Columns:
    types = _arrow(what, "pyarrow.types")
    blocks: list[Columns] = []
    for file in files:
        rows = _open(file, what).read(columns=list(wanted))
        if rows.num_rows:
            column = f"{what}: {file}: the column"
            blocks.append(
                {name: _column(types, rows.column(name), f"{column} {name!r}", text=name in text) for name in wanted}
            )
    return joined(blocks, wanted, PARQUET.name, what)


def _column(types: Any, column: Any, what: str, *, text: bool) -> np.ndarray:
    if column.null_count:
        raise ConfigError(f"{what} has no value in {column.null_count} of {len(column)} rows", f"fill them, or {_FIX}")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_number = any(is_kind(kind) for is_kind in (types.is_boolean, types.is_integer, types.is_floating))
    if text and (is_number or _is_text(types, kind)):
        return as_text(np.asarray(column.cast("string").to_pylist(), object), what)
    if is_number:
        numbers: np.ndarray = column.cast("float64", safe=False).to_numpy()
        return numbers
    raise ConfigError(f"{what} is of type {column.type}, and neither a number nor text", _FIX)


def _is_text(types: Any, kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view))


def _open(file: str, what: str) -> Any:
    parquet = _arrow(what, "pyarrow.parquet")
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{what}: {file}: {reason}", "name Parquet files only") from error


def _arrow(what: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} names Parquet files, and the package pyarrow is not here",
            "pip install pyarrow, in a cluster in an image made FROM the trainer's",
        ) from error


PARQUET = Format("Parquet", _header, _read)
