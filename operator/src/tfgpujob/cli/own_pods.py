"""A pod that a verb creates for the user, and deletes when it is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import NoReturn, TypeVar

from tfgpujob.cli.output import StatusLine
from tfgpujob.client import GpuCheck, TensorBoard

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


S = TypeVar("S", TensorBoard, GpuCheck)


@contextmanager
def once_it_works(states: Generator[S]) -> Iterator[Iterator[S]]:
    """The states in which the pod does its work. Before, a status line shows what it waits for."""
    with _left_once(), closing(states):
        yield _working(states)


def _working(states: Iterator[S]) -> Iterator[S]:
    progress = StatusLine()
    try:
        for seen in states:
            if seen.waiting:
                progress.show(f"{seen.pod}: {seen.waiting}")
            else:
                progress.clear()
                yield seen
    finally:
        progress.clear()


@contextmanager
def _left_once() -> Iterator[None]:
    """The first of these signals ends the iteration. Later ones are ignored, so that the pod is deleted.

    That takes seconds at most. A closed terminal must not leave a pod behind either.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}

    def leave(received: int, _: object) -> NoReturn:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + received)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
