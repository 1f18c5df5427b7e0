"""Metrics as one number, for a log line, a curve or a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np


def one_number(value: Any) -> float:
    """The value itself; for a metric with a number for each class their mean."""
    return float(np.mean(value))
