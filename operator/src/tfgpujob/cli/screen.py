"""Output of a local run: the lines of the leading replica, restarts, and a progress line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from tfgpujob.cli.output import StatusLine, coloured
from tfgpujob.core.observed.progress_series import LINE
from tfgpujob.describe.progress_words import progress_words

_COLOURS: Final = ("cyan", "magenta", "green", "blue", "yellow")
_TRAINER: Final = "tfgpu-train: "
_FOR_LOGS: Final = (f"{_TRAINER}goodput ", f"{_TRAINER}weights sha256 ")
"""Lines with figures that are only written to the log."""
_BAR: Final = 20


class Screen:
    """`replicas` in the order of the plan. Only the lines of `lead` are shown, as all train the same model.

    `everything` shows each line of each replica: always for a user's own command, whose lines are unknown. `script`
    shows all lines of the leading replica, because a script prints for its user.
    """

    def __init__(self, replicas: Sequence[str], lead: str, *, everything: bool, script: bool = False) -> None:
        self._lead, self._everything, self._script = lead, everything, script
        self._width = max(map(len, replicas))
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(replicas)}
        self._progress = StatusLine()
        self._line = ""

    def said(self, replica: str, line: str) -> None:
        """A line of a replica's output. What is not shown is in its log."""
        line, mark, record = line.partition(LINE)  # a script's own progress bar may not have ended its line
        if mark and replica == self._lead:
            self._show_progress(mark + record)
        if mark and not line:
            return
        if self._everything:
            self._print(replica, line)
        elif replica == self._lead and (self._script or line.startswith(_TRAINER)) and not line.startswith(_FOR_LOGS):
            self._print(replica, line.removeprefix(_TRAINER))

    def say(self, text: str, colour: str | None = None) -> None:
        """A line of our own."""
        self._write(coloured(text, colour) if colour else text)

    def close(self) -> None:
        """No more progress."""
        self._line = ""
        self._progress.clear()

    def _print(self, replica: str, line: str) -> None:
        self._write(f"{coloured(f'{replica:<{self._width}} |', self._colours[replica])} {line}")

    def _write(self, line: str) -> None:
        self._progress.clear()
        # The reader, such as `head`, may have closed the pipe, or a disk is full: the job continues, and its logs are
        # complete.
        with suppress(OSError):
            click.echo(line)
        if self._line:
            self._progress.show(self._line)

    def _show_progress(self, line: str) -> None:
        try:
            self._line = progress_line(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return
        self._progress.show(self._line)


def progress_line(record: Mapping[str, Any]) -> str:
    """`[#####.....] step 60/240, …`; without the bar if the number of steps is unknown."""
    if not record.get("steps"):
        return progress_words(record)
    bar = "#" * (_BAR * int(record["step"]) // int(record["steps"]))
    return f"[{bar:.<{_BAR}}] {progress_words(record)}"
