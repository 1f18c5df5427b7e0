"""Numbered steps with elapsed time: a live line on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Step = tuple[str, Callable[[], None]]
_INSIDE: ContextVar[bool] = ContextVar("inside a step", default=False)


def run_steps(steps: Sequence[Step]) -> None:
    """Run the steps in order, showing the number, the title and the seconds of each on standard error."""
    for number, (title, action) in enumerate(steps, start=1):
        _run(f"      {title}" if _INSIDE.get() else f"[{number}/{len(steps)}] {title}", action)


@contextmanager
def inside_a_step() -> Iterator[None]:
    """Steps that are run in it are lines below a step that has a number: two counters would be taken for one."""
    before = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(before)


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


def _run(label: str, action: Callable[[], None]) -> None:
    # Two concurrent steps would overwrite each other's line.
    live = sys.stderr.isatty() and threading.active_count() == 1
    started = time.monotonic()
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(label, started, done), daemon=True)
    if live:
        ticker.start()
    else:
        say(f"{label} ...")
    outcome = "failed after"
    try:
        action()
        outcome = "done in"
    finally:
        done.set()
        if live:
            ticker.join()
        say(f"{chr(13) if live else ''}{label}: {outcome} {time.monotonic() - started:.1f} s")


def _tick(label: str, started: float, done: threading.Event) -> None:
    while not done.wait(0.5):
        print(f"\r{label} {time.monotonic() - started:.0f} s", end="", file=sys.stderr, flush=True)
