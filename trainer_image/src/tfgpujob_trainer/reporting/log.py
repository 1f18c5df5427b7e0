"""Log lines for people. Imports no TensorFlow."""

from __future__ import annotations


def say(message: str) -> None:
    """One line for people."""
    print(f"tfgpu-train: {message}", flush=True)
