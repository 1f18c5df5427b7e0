"""What people and programs read: tables, colours, JSON and YAML, units, and a line that shows progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

import click
import yaml

_COLUMN_GAP: Final = "   "


class Format(StrEnum):
    """`-o`: how a verb shows its result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def colours(stream: TextIO) -> bool:
    """Whether to colour: only on a terminal, and never with NO_COLOR (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO | None = None, *, bold: bool = False) -> str:
    """The text in a colour of `click.style`, where the stream takes colours; standard output if None."""
    return click.style(text, fg=colour, bold=bold or None) if colours(stream or sys.stdout) else text


def data(value: Any, form: Format) -> str:
    """A value of plain dicts and lists as JSON or YAML, for programs."""
    if form is Format.YAML:
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
    return json.dumps(value, indent=2, ensure_ascii=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, as kubectl shows them; colours in cells don't count."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(click.unstyle(line[i])) for line in lines) for i in range(len(headers))]
    return "\n".join(
        _COLUMN_GAP.join(_padded(c, w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - len(click.unstyle(cell)))


def size(count: float) -> str:
    """Bytes in the largest unit that keeps three digits: 512 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


class Progress:
    """One line on standard error that is written over. Silent where that is no terminal, so that logs stay clean."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away, before other output and at the end."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
