"""CSVLogger across a resume: Keras truncates its file whenever training begins, and keeps no rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import keras


def sizes(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, int]:
    """The size of each CSVLogger's file by its name, for a checkpoint."""
    files = [Path(logger.filename) for logger in _loggers(callbacks)]
    return {str(file): file.stat().st_size for file in files if file.exists()}


@contextmanager
def continued(callbacks: Sequence[keras.callbacks.Callback], kept: Mapping[str, int]) -> Iterator[None]:
    """Used while training begins after a resume: each file continues after the rows that it had at the checkpoint."""
    loggers = [logger for logger in _loggers(callbacks) if logger.filename in kept]
    appends = [logger.append for logger in loggers]
    for logger in loggers:
        file = Path(logger.filename)
        if file.exists() and file.stat().st_size > kept[logger.filename]:
            os.truncate(file, kept[logger.filename])  # epochs that are repeated
        logger.append = True
    try:
        yield
    finally:
        for logger, append in zip(loggers, appends, strict=True):
            logger.append = append


def _loggers(callbacks: Sequence[keras.callbacks.Callback]) -> list[keras.callbacks.CSVLogger]:
    return [callback for callback in callbacks if isinstance(callback, keras.callbacks.CSVLogger)]
