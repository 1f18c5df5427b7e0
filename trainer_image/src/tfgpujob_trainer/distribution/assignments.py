"""A step that assigns variables at its end, so that DTensor may combine the all-reduces of its gradients.

The combiner moves an all-reduce, with all that is computed from it, down to the last one: past reads of variables that
were assigned before. So an assigned variable is not read again in the step, which uses the new value itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

SEPARATELY = {
    "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION": "1",
    "DTENSOR_ALLREDUCE_COMBINE_OPTIMIZATION_GROUP_SIZE": "1",
}
"""The environment of everything else. The combiner is on or off for good; the size of a group is read when a function
is compiled."""
_GROUP_SIZE, _BUCKET = "DTENSOR_ALLREDUCE_COMBINE_OPTIMIZATION_GROUP_SIZE", "64"
"""A bucket of more gradients needs more memory for hardly less time."""


class _AssignedInsideError(BaseException):
    """A branch or loop of the step assigns a variable. No Exception, which layers may catch."""


class _Traced:
    """The step that is being traced: its graph, and the variables that it has assigned, with their values."""

    graph: Any = None
    assigned: dict[int, tuple[Any, Any]] = {}  # noqa: RUF012 (replaced for each step)


def new_value(variable: Any) -> Any:
    """The value that this step has assigned to the variable; None if it has not."""
    if tf.executing_eagerly() or id(variable) not in _Traced.assigned:
        return None
    with record.stop_recording():
        value = tf.identity(_Traced.assigned[id(variable)][1])
    # As a read: its gradient is the variable's.
    record.record_operation(
        "ReadVariableOp", [value], [variable.handle], backward_function=lambda x: [x], forward_function=lambda x: [x]
    )
    return value


def is_traced() -> bool:
    """Whether a step is being traced that assigns variables at its end."""
    return _Traced.graph is not None and not tf.executing_eagerly()


def assigned(variable: Any, value: Any) -> bool:
    """Whether the step that is being traced will assign it."""
    if not is_traced():
        return False
    if tf.compat.v1.get_default_graph() is not _Traced.graph:
        raise _AssignedInsideError
    _Traced.assigned[id(variable)] = variable, value
    return True


def compiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """tf.function of the step with its assignments at the end, or where they stand if a branch or loop makes some."""

    def at_the_end(*args: Any) -> Any:
        _Traced.graph = tf.compat.v1.get_default_graph()
        try:
            outputs = step(*args)
            made, _Traced.graph = list(_Traced.assigned.values()), None
            for variable, value in made:
                variable.assign(value)
        finally:
            _Traced.graph, _Traced.assigned = None, {}
        os.environ[_GROUP_SIZE] = _BUCKET
        return outputs

    function = tf.function(at_the_end, autograph=False)

    def run(*args: Any) -> Any:
        nonlocal function
        try:
            return function(*args)
        except _AssignedInsideError:
            function = tf.function(step, autograph=False)
        finally:
            os.environ |= SEPARATELY
        return function(*args)

    return run
