"""What scripts with keras.distribution find, held against plain Keras on one device."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.trainer.harness import Task

SCRIPT = Path(__file__).parent / "divided_script.py"
EXACT = 1e-10


def found(printed: str) -> list[float]:
    (line,) = [line for line in printed.splitlines() if line.startswith("found ")]
    return list(numbers(json.loads(line.removeprefix("found "))))


def numbers(value: Any):
    if isinstance(value, dict | list):
        for one in [value[name] for name in sorted(value)] if isinstance(value, dict) else value:
            yield from numbers(one)
    else:
        yield value


def of_one_device(tmp_path: Path, monkeypatch: Any, capsys: Any) -> tuple[list[float], list[np.ndarray]]:
    """What plain Keras finds, and its weights, by the file that it saves."""
    folder = tmp_path / "plain"
    folder.mkdir()
    monkeypatch.chdir(folder)
    runpy.run_path(str(SCRIPT))
    return found(capsys.readouterr().out), weights(folder)


def weights(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "divided.keras").get_weights()


def same(task: Task, folder: Path, plain: tuple[list[float], list[np.ndarray]]) -> None:
    expected, expected_weights = plain
    assert found(task.log) == pytest.approx(expected, rel=EXACT, abs=EXACT)
    for mine, theirs in zip(weights(folder), expected_weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT)
