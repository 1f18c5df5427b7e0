"""What `make endurance` is made of: parts that run side by side, each with figures of its own in the JSON line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a part gets: its time, a folder of its own, a function for its reports, and the event that ends it."""

    minutes: float
    folder: Path
    say: Callable[[str], None]
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass
class Result:
    """Figures by name for the JSON line, and a line for each bound that was broken: whose, which, by how much."""

    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all bounds held."""
        return not self.problems


Part = Callable[[Stage], Result]
