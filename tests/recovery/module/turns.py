"""A small model that is trained in windows of steps which take turns: as it is, without in-memory checkpoints, and
without the ledger. All are in one process, so what the machine does otherwise hits all alike. Each worker prints a line
with what its windows took, in the order of ORDER, and after which steps it has copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfgpujob_trainer.checkpoints import in_memory
from tfgpujob_trainer.checkpoints.pace import Pace
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.ledger import Bookkeeper, Ledger

WINDOW = 100
"""Steps."""
WARM = 2 * WINDOW
"""Steps before the first window: tracing, and what else is done once."""
ORDER = ("whole", "no copies", "no ledger", "no ledger", "no copies", "whole")
"""Order of a turn; forward and back, so that a machine that slows down affects all equally."""
FEATURES, CLASSES = 20, 4


class Windows:
    """Which one a step belongs to, and what each has taken."""

    def __init__(self, turns: int) -> None:
        self.seconds: list[float] = []
        self.copies: list[int] = []
        self.costs: list[float] = []
        self.now = "whole"
        self.step = 0
        self.left_out = 0.0
        """Seconds in which no copies were made: they don't count for when the next is due."""
        self._turns, self._since = turns, 0.0

    def begin_step(self, now: float) -> None:
        """The next step begins."""
        self.step += 1
        done, rest = divmod(self.step - 1 - WARM, WINDOW)
        if rest or done < 0 or done > self._turns * len(ORDER):
            return
        if done:
            self.seconds.append(now - self._since)
            self.left_out += self.seconds[-1] if self.now == "no copies" else 0.0
        self.now, self._since = ORDER[done % len(ORDER)], now
        if done == self._turns * len(ORDER):
            found = {"seconds": self.seconds, "copies": self.copies, "copying": self.costs}
            print(f"turns {json.dumps(found)}", flush=True)


windows = Windows(int(os.environ["TURNS"]))


class PaceInTurns(Pace):
    """Stands still where there are no copies."""

    def begin_step(self, now: float) -> bool:
        windows.begin_step(now)
        return windows.now != "no copies" and super().begin_step(now - windows.left_out)

    def copied(self, began: float, ended: float) -> None:
        super().copied(began - windows.left_out, ended - windows.left_out)
        windows.copies.append(windows.step)
        windows.costs.append(ended - began)


def without(kind: str, original: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
    """`original`, which is left out in windows of this kind."""
    return lambda *args, **more: nothing if windows.now == kind else original(*args, **more)


setattr(in_memory, Pace.__name__, PaceInTurns)
REPLACED: tuple[tuple[type, str, Any], ...] = (
    (Heartbeat, "_spent", {}),
    (Bookkeeper, "beat", ""),
    (Ledger, "aside", None),
    (Ledger, "stepped", None),
)
for of, name, nothing in REPLACED:
    setattr(of, name, without("no ledger", getattr(of, name), nothing))


def model() -> keras.Model:
    net = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    return net


def data(split: str) -> Any:
    if split != "train":
        return None
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64_000, FEATURES)).astype(np.float32)
    return x, (x @ np.arange(FEATURES * CLASSES).reshape(FEATURES, CLASSES)).argmax(1)
