"""What a failure costs (backoffLimit), and the backoff after it. Only functions of this file count.

restarts, disruptions                          totals, never reset; backoffLimit bounds restarts
consecutiveFailures, consecutiveDisruptions    those since the job last ran for 10 minutes: they set the backoff

A disruption (eviction, preemption, a lost or deleted pod) costs no restart. Its own limit only ends a job that the
cluster never lets run: 50 in a row, with the backoff some 4 hours in which no attempt lived for 10 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tfgpujob.core.policies import backoff
from tfgpujob.core.policies.restart.failure import Cause, Failure
from tfgpujob.core.status.builder import StatusBuilder, moment
from tfgpujob.names import Condition, Reason
from tfgpujob.units import counted

STABLE_AFTER = timedelta(minutes=10)
"""A job that ran this long did not crash at its start: its backoff starts over. The totals never do."""
DISRUPTIONS_IN_A_ROW = 50


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Why the job must not restart after this failure."""

    reason: Reason
    message: str


def count_restart(builder: StatusBuilder, limit: int, failure: Failure, disruptions_in_a_row: int) -> Exceeded | None:
    """Add the failure to `restarts` or `disruptions`, or return why it ends the job.

    `limit`: spec.runPolicy.backoffLimit. `disruptions_in_a_row`: those before this failure.
    """
    if failure.cause is Cause.PERMANENT:
        return Exceeded(Reason.REPLICA_FAILED, f"{failure}.")
    if failure.cause is Cause.RETRYABLE and _number(builder, "restarts") >= limit:
        text = f"{failure}; spec.runPolicy.backoffLimit ({counted(limit, 'restart')}) is spent."
        return Exceeded(Reason.BACKOFF_LIMIT_EXCEEDED, text)
    if failure.cause is Cause.DISRUPTION and disruptions_in_a_row >= DISRUPTIONS_IN_A_ROW:
        text = (
            f"{failure}; {DISRUPTIONS_IN_A_ROW} disruptions came in a row, and it never ran for 10 minutes between "
            "two of them. Give it a higher priority or other nodes, and create it again."
        )
        return Exceeded(Reason.DISRUPTION_LIMIT_EXCEEDED, text)
    total = "disruptions" if failure.cause is Cause.DISRUPTION else "restarts"
    builder.put(total, _number(builder, total) + 1)
    return None


def count_in_place(builder: StatusBuilder, restarts: int) -> None:
    """Count restarts that the pods have made by themselves, within their share of backoffLimit."""
    for total in ("restarts", "inPlaceRestarts"):
        builder.put(total, _number(builder, total) + restarts)


def count_gang_restart(builder: StatusBuilder, limit: int, failure: Failure) -> timedelta | Exceeded:
    """Count the restart of a gang, also among those in a row; returns the backoff before the next attempt."""
    _reset_if_stable(builder)
    exceeded = count_restart(builder, limit, failure, _number(builder, "consecutiveDisruptions"))
    if exceeded is not None:
        return exceeded
    disrupted = failure.cause is Cause.DISRUPTION
    in_a_row = "consecutiveDisruptions" if disrupted else "consecutiveFailures"
    tries = _number(builder, in_a_row) + 1
    builder.put(in_a_row, tries)
    return delay(tries, disrupted=disrupted, seed=f"{failure.name}/{'disruptions' if disrupted else 'restarts'}")


def delay(tries: int, *, disrupted: bool, seed: str) -> timedelta:
    """The backoff after `tries` ≥ 1 failures in a row. None after a first disruption: the job is not at fault."""
    if disrupted and tries == 1:
        return timedelta()
    return backoff.delay(tries, first=1 if disrupted else 10, cap=360, seed=seed)


def _reset_if_stable(builder: StatusBuilder) -> None:
    """Reset the counters of failures in a row, once the job has been Running for STABLE_AFTER."""
    since = builder.condition(Condition.RUNNING).get("lastTransitionTime")
    if builder.is_true(Condition.RUNNING) and since is not None and builder.now - moment(since) >= STABLE_AFTER:
        builder.put("consecutiveFailures", None)
        builder.put("consecutiveDisruptions", None)


def _number(builder: StatusBuilder, field: str) -> int:
    return int(builder.fields.get(field) or 0)
