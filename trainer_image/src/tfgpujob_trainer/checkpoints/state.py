"""The state in a checkpoint: JSON, and arrays, which are written beside the variables as `state/0000` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

OF_STATE = "state/"
"""Begins the names of these arrays."""
_ARRAY = "$array"


def apart(state: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The state with names in place of its arrays, as JSON has it, and the arrays by these names."""
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = f"{OF_STATE}{len(arrays):04d}"
            arrays[name] = value
            return {_ARRAY: name}
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    return plain(state), arrays


def together(state: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `apart` was given, with lists in place of tuples."""
    if isinstance(state, list):
        return [together(one, arrays) for one in state]
    if not isinstance(state, dict):
        return state
    return arrays[state[_ARRAY]] if _ARRAY in state else {key: together(one, arrays) for key, one in state.items()}
