"""The condition Accepted=True, with advice to the job's author."""

from __future__ import annotations

from typing import Final

from tfgpujob.api import JobSpec
from tfgpujob.core.advice import advice
from tfgpujob.core.status.builder import StatusBuilder
from tfgpujob.names import LABEL_QUEUE, Condition, Reason

_UNQUEUED: Final = (
    f"metadata.labels[{LABEL_QUEUE}] has no effect: the job began without Kueue, which an administrator turns on in "
    "the operator's chart (kueue.enabled)."
)


def accept(builder: StatusBuilder, spec: JobSpec) -> None:
    plan = builder.fields.get("plan") or {}
    queue = builder.labels.get(LABEL_QUEUE)
    unqueued = (_UNQUEUED,) if queue and plan and not plan.get("queue") else ()
    advised = advice(spec, plan.get("gang", ""), queued=bool(plan.get("queue")))
    text = " ".join(("The spec is valid.", *unqueued, *advised))
    builder.set(Condition.ACCEPTED, True, Reason.VALID, text)
