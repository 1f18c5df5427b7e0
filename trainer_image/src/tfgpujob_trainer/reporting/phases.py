"""Deadlines of the phases, which the watchdog keeps."""

from __future__ import annotations

from tfgpujob_contract.phases import PEERS, SCRIPT, SERVING, STARTING, WAITING

UNTIMED = (STARTING, PEERS, WAITING, SERVING, SCRIPT)
"""Phases in which stepSeconds does not apply: start-up and serving have deadlines of their own, the others none."""


def grace_seconds(step_seconds: float) -> float:
    """How much longer than stepSeconds a process may be silent before it is ended.

    Within it, a worker that only waits for a stalled peer leaves its collective (cluster/collective_deadline.py). So a
    process that is silent for longer is the stalled one.
    """
    return min(5.0, 0.2 * step_seconds)
