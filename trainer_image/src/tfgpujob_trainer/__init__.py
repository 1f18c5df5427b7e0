"""Trains, evaluates and checkpoints a plain Keras module under a TensorFlow distribution strategy.

For programs with their own training loop it is a library: strategy(), shard(), checkpoint(), report() and
should_stop(), all optional (own_loop/).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["checkpoint", "report", "shard", "should_stop", "strategy"]


def __getattr__(name: str) -> Any:
    """The library, imported when one of its functions is first used: TensorFlow takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.own_loop.library"), name)
