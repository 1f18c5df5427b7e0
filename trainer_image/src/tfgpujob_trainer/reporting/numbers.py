"""Metrics as one number, for a log line, a curve or a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np


def one_number(value: Any) -> float:
    """The value itself; for a metric with a number for each class their mean."""
    return float(np.mean(value))


def rounded(value: Any) -> float:
    """As a single number with six significant digits."""
    return float(f"{one_number(value):.6g}")
