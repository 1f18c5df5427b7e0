"""The rows of a tf.data.Dataset in its own order, even if its author has given that up for speed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf

_PARALLEL = ("map", "interleave", "batch")


def keep_rows_in_order() -> None:
    """Let these take deterministic=False for what it is without it: then tf.data.Options say it, which are set here.

    What is said in the call counts more than the options, and cannot be seen in the dataset: each worker would read
    other rows, and so would each start.
    """
    for name in _PARALLEL:
        setattr(tf.data.Dataset, name, _in_order(getattr(tf.data.Dataset, name)))


def _in_order(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("deterministic") is False:
            given["deterministic"] = None
        return method(**given)

    return call
