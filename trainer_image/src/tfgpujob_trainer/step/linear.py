"""What a step does to the gradients of its rows before an optimizer has them.

The sum over the replicas is that of all rows only if all of it is linear. Numbers alone do not show it: signs, for
example, may agree on the rows of a trial, and not later. So the graph is asked for the operations in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import keras
import tensorflow as tf

_LINEAR = frozenset(
    "AddN AddV2 BroadcastTo Cast CheckNumerics ConcatV2 Conj Cumsum EnsureShape ExpandDims Identity IdentityN "  # noqa: SIM905
    "MatrixBandPart Mean Neg Pack Pad PadV2 PreventGradient Reshape ReverseV2 Roll Slice Split SplitV Squeeze "
    "StopGradient StridedSlice Sub Sum Tile Transpose Unpack UnsortedSegmentSum".split()
)
_BILINEAR = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul", "Mul"})
"""Linear if one input is a gradient."""
_IN_SOME = {"DivNoNan": (0,), "Gather": (0,), "GatherNd": (0,), "GatherV2": (0,), "RealDiv": (0,), "SelectV2": (1, 2)}
"""Linear in these inputs."""
_OF_SHAPES = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})


class Gradients:
    """The gradients of variables that a step takes while it is traced."""

    def __init__(self) -> None:
        self._taken: dict[Any, Any] = {}
        self.changed_by: dict[str, str] = {}
        """The types of operations that are not linear between these gradients and an optimizer, by their names."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note those that tapes are asked for."""
        original = tf.GradientTape.gradient

        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(tape, target, sources, *args, **kwargs)
            for source, one in zip(tf.nest.flatten(sources), tf.nest.flatten(found), strict=True):
                if isinstance(source, tf.Variable | keras.Variable) and one is not None:
                    self._taken[_key(_values(one))] = one
            return found

        try:
            with mock.patch.object(tf.GradientTape, "gradient", gradient):
                yield
        finally:
            self._taken.clear()

    def used(self, uses: Sequence[Any]) -> None:
        """Look at how those became what an optimizer is given."""
        depends: dict[Any, bool] = {}
        left = [_values(one) for one in uses if one is not None]
        while left:
            tensor, operation = left[-1], left[-1].op
            key, inputs = _key(tensor), list(operation.inputs)
            if key in self._taken or operation.type in _OF_SHAPES:
                inputs = []
            if key not in depends:
                depends[key] = key in self._taken
                left += inputs
                continue
            left.pop()
            places = [place for place, one in enumerate(inputs) if depends[_key(one)]]
            depends[key] |= bool(places)
            if places and not _is_linear(operation.type, places):
                self.changed_by[operation.name] = operation.type


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _key(tensor: Any) -> Any:
    return id(tensor.graph), tensor.name


def _is_linear(kind: str, places: Sequence[int]) -> bool:
    """Whether an operation is linear in its inputs at these places together."""
    return kind in _LINEAR or (kind in _BILINEAR and len(places) == 1) or {*places} <= {*_IN_SOME.get(kind, ())}
