"""What a training process is doing, as its heartbeat says it; each phase has a deadline of its own in the watchdog."""

from __future__ import annotations

STARTING = "starting"
CACHING = "caching"
TRAINING = "training"
EVALUATING = "evaluating"
SAVING = "saving"
PREDICTING = "predicting"
EXPORTING = "exporting"
WAITING = "waiting"
"""An evaluator between two checkpoints, for as long as the training takes; who serves and is told to stop, for the end
of a step."""

SERVING = "serving"
"""A worker or parameter server under ParameterServer: it does what the chief asks of it, for as long as that takes, and
says all the while that it is there."""

SCRIPT = "running the script"
"""What a plain script does between its calls of fit(), evaluate() and predict(), for as long as that takes."""

UNTIMED = (STARTING, WAITING, SERVING, SCRIPT)
"""Phases in which silence for stepSeconds means nothing: start-up and serving have deadlines of their own,
the others have none."""


def grace_seconds(step_seconds: float) -> float:
    """How much longer than stepSeconds a process may be silent before it is ended.

    Within it, a worker that only waits for a stalled peer leaves its collective (cluster/collective_deadline.py). So
    whoever is silent for longer is the one that is stuck.
    """
    return min(5.0, 0.2 * step_seconds)
