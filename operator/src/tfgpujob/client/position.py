"""The position in the log of a pod, so that a broken stream continues without losing or repeating a line.

The kubelet takes a start time in whole seconds and returns all lines that are not older, in the order of writing. Times
alone don't identify a line: two lines may have the same time, and a node's clock may be set back. So the position
counts lines, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tfgpujob.kube.lines import Part

MARGIN: Final = timedelta(seconds=10)
"""This much is read again: a clock that is set back by less loses no line."""
_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class Position:
    """The last line that was read of a log whose lines begin with their time, as the kubelet writes it."""

    last: str = ""
    """Time of the last line, as `_comparable` gives it; empty before the first."""
    _same: int = 0
    """Number of consecutive lines with this time."""
    _highest: str = ""
    """The latest time of any line."""
    _given: int = 0
    """Bytes of the last line that were read."""
    _open: bool = False
    """True: the last line was not complete."""
    _old: bool = False
    """True: the lines that arrive were read before."""
    _again: int = 0
    """In a resumed stream: lines with the time `last` that have arrived again."""
    _passed: int | None = None
    """Bytes of the last line that have arrived again; None: it is not being repeated."""

    def since(self) -> str:
        """Value for the query `sinceTime`; empty: from the beginning. Pass the answer to `new`."""
        self._old, self._again, self._passed = bool(self.last), 0, None
        if not self.last:
            return ""
        return (datetime.fromisoformat(self.last[:19]) - MARGIN).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new(self, part: Part) -> Part | None:
        """The part, without its time, if it was not read before; None if it was."""
        if not part.begins:
            return None if self._old else self._further(part)
        stamp, _, text = part.text.partition(b" ")
        time = _comparable(stamp.decode(errors="replace"))
        if not time:
            # A message of the kubelet itself, such as that the log is gone.
            return None if self._old else part
        if self._old and self._is_old(time):
            return None
        part = Part(text, part.begins, part.ends)
        if self._passed is None:
            self._same = self._same + 1 if time == self.last else 1
            self.last, self._given = time, 0
            self._highest = max(self._highest, time)
        return self._further(part)

    def _is_old(self, time: str) -> bool:
        """True if the line read last has not arrived yet, or is just arriving."""
        if time == self.last:
            self._again += 1
            if self._again < self._same:
                return True
            self._passed = 0
        elif not self._again and time <= self._highest:
            return True
        # It has just passed, or is not in the log any more.
        self._old = False
        return False

    def _further(self, part: Part) -> Part | None:
        """A part of the last line. If the line is repeated, only what the broken stream had not delivered."""
        if self._passed is None:
            self._given += len(part.text)
            self._open = not part.ends
            return part
        text = part.text[max(0, self._given - self._passed) :]
        self._passed += len(part.text)
        self._given = max(self._given, self._passed)
        if part.ends:
            self._passed = None
        if not text and not (part.ends and self._open):
            return None
        self._open = not part.ends
        return Part(text, begins=False, ends=part.ends)


def _comparable(stamp: str) -> str:
    """The time in a form that sorts as text: RFC 3339 leaves out zeros, and a node may have another zone. Empty: no
    time.
    """
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return ""
    seconds, fraction, zone = found.groups(default="")
    if zone != "Z":
        seconds = datetime.fromisoformat(f"{seconds}{zone}").astimezone(UTC).isoformat()[:19]
    return f"{seconds}.{fraction:0<9}"
