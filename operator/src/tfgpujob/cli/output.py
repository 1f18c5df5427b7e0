"""Output for people and programs: tables, colours, JSON and YAML, units, and a progress line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

import click
import yaml

from tfgpujob.kubectl_yaml import Dumper
from tfgpujob.printable import OBEYED, printable

_COLUMN_GAP: Final = "   "
_NO_COLOUR: Final = "\x1b[0m"
_LEAST_SENTENCE: Final = 30


class Format(StrEnum):
    """`-o`: how a verb shows its result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def colours(stream: TextIO) -> bool:
    """True on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO | None = None, *, bold: bool = False) -> str:
    """The text in a colour of `click.style`, if the stream shows colours; standard output if None."""
    return click.style(text, fg=colour, bold=bold or None) if colours(stream or sys.stdout) else text


def log_line(text: str) -> str:
    """The final state of a log line on a terminal, where progress bars overwrite themselves."""
    line = printable(text.rstrip("\r").rpartition("\r")[2], colours=True)
    return f"{line}{_NO_COLOUR}" if "\x1b" in line else line


def data(value: Any, form: Format) -> str:
    """A value of plain dicts and lists as JSON or YAML, for programs. Control characters are escaped."""
    if form is not Format.YAML:
        return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False))
    text = _yaml(value, as_it_is=True)
    return _yaml(value, as_it_is=False) if OBEYED.search(text) else text


def _yaml(value: Any, *, as_it_is: bool) -> str:
    dumped: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=as_it_is, width=120)
    return dumped.rstrip("\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, as kubectl shows them; colours in cells don't count."""
    lines = [list(headers), *([printable(cell.replace("\n", " "), colours=True) for cell in row] for row in rows)]
    widths = [max(len(click.unstyle(line[i])) for line in lines) for i in range(len(headers))]
    return "\n".join(
        _COLUMN_GAP.join(_padded(c, w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def sentences_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose last column has sentences: on a terminal they are wrapped within their column."""
    before = [max(len(click.unstyle(line[i])) for line in (headers, *rows)) for i in range(len(headers) - 1)]
    width = shutil.get_terminal_size().columns - sum(before) - len(before) * len(_COLUMN_GAP)
    folded: list[Sequence[str]] = []
    for *cells, text in rows:
        first, *others = textwrap.wrap(text, max(width, _LEAST_SENTENCE)) if sys.stdout.isatty() else [text]
        folded += [[*cells, first], *([*("" for _ in cells), line] for line in others)]
    return table(headers, folded)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - len(click.unstyle(cell)))


def size(count: float) -> str:
    """Bytes in the largest unit that keeps three digits: 512 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} EiB"


class StatusLine:
    """A line on standard error that is overwritten. Silent if that is no terminal, so that logs stay clean."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._stream.isatty():
            # A longer line would wrap, and the rest could not be erased.
            line = printable(" ".join(text.split()))[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Erase the line, before other output and at the end."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
