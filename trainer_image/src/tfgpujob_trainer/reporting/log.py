"""Log lines for people. Does not import TensorFlow."""

from __future__ import annotations

from functools import cache


def say(message: str) -> None:
    """One line for people."""
    print(f"tfgpu-train: {message}", flush=True)


@cache
def say_once(message: str) -> None:
    """The same, unless this process has said it."""
    say(message)
