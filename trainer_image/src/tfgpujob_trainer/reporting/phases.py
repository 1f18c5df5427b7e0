"""The phases of a training process, as its heartbeat reports them; the watchdog has a deadline for each."""

from __future__ import annotations

STARTING = "starting"
CACHING = "caching"
TRAINING = "training"
EVALUATING = "evaluating"
SAVING = "saving"
PREDICTING = "predicting"
EXPORTING = "exporting"
WAITING = "waiting"
"""An evaluator between two checkpoints, for as long as the training takes; a serving process that was asked to stop,
until the end of a step."""

SERVING = "serving"
"""A worker or parameter server under ParameterServer: it serves the chief's requests, for any time, and sends
heartbeats meanwhile."""

SCRIPT = "running the script"
"""What a plain script does between its calls of fit(), evaluate() and predict(), for any time."""

UNTIMED = (STARTING, WAITING, SERVING, SCRIPT)
"""Phases in which stepSeconds does not apply: start-up and serving have deadlines of their own, the others none."""


def grace_seconds(step_seconds: float) -> float:
    """How much longer than stepSeconds a process may be silent before it is ended.

    Within it, a worker that only waits for a stalled peer leaves its collective (cluster/collective_deadline.py). So a
    process that is silent for longer is the stalled one.
    """
    return min(5.0, 0.2 * step_seconds)
