"""How far the log of a pod has been read, so that a stream that broke off goes on there: no line lost, none twice.

The kubelet takes a time to begin from, in whole seconds, and gives all lines that are not older, in the order in which
they were written. What has been read before is known by where it stands, not by its time alone: two lines may have the
same time, and the clock of a node may be set back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tfgpujob.kube.lines import Part

MARGIN: Final = timedelta(seconds=10)
"""So much is read again: a clock that is set back by less than this loses nothing."""
_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class Position:
    """After which line of a log, of lines that begin with their time, as the kubelet writes it."""

    last: str = ""
    """Time of the line that was read last, as `_comparable`; empty before the first."""
    _same: int = 0
    """Lines in a row with this time."""
    _highest: str = ""
    """The latest time of any line."""
    _given: int = 0
    """Bytes of the last line that were read."""
    _open: bool = False
    """The last line had not come to its end."""
    _old: bool = False
    """What comes has been read before."""
    _again: int = 0
    """Of a stream that was resumed: lines with the time `last` that have come again."""
    _passed: int | None = None
    """Of the last line, while it comes again: bytes that have come. None: it does not."""

    def since(self) -> str:
        """For the query `sinceTime`; empty: from the beginning. `new` is for what this query brings."""
        self._old, self._again, self._passed = bool(self.last), 0, None
        return _earlier(self.last) if self.last else ""

    def new(self, part: Part) -> Part | None:
        """What of this part has not been read before, without its time; None: nothing."""
        if not part.begins:
            return None if self._old else self._further(part)
        stamp, _, text = part.text.partition(b" ")
        time = _comparable(stamp.decode(errors="replace"))
        if not time:
            # What the kubelet says itself, such as that there is no log any more.
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
        """Whether what was read last is still to come, or is just coming."""
        if time == self.last:
            self._again += 1
            if self._again < self._same:
                return True
            self._passed = 0
        elif not self._again and time <= self._highest:
            return True
        # It has just gone by, or is not in the log any more.
        self._old = False
        return False

    def _further(self, part: Part) -> Part | None:
        """A part of the last line. Where that comes again, what the stream had broken off before."""
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
    """So that times sort as texts: RFC 3339 leaves zeros out, and a node may have another zone. Empty for no time."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return ""
    seconds, fraction, zone = found.groups(default="")
    if zone != "Z":
        seconds = datetime.fromisoformat(f"{seconds}{zone}").astimezone(UTC).isoformat()[:19]
    return f"{seconds}.{fraction:0<9}"


def _earlier(comparable: str) -> str:
    return (datetime.fromisoformat(comparable[:19]) - MARGIN).strftime("%Y-%m-%dT%H:%M:%SZ")
