"""Metrics where there is room for one number: a line of the log, a curve, a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np


def one_number(value: Any) -> float:
    """The value itself or, of a metric that has a number for each class, their mean."""
    return float(np.mean(value))
