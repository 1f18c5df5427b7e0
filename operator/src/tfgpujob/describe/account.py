"""What a job's time was spent on, and how it recovered from its last failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfgpujob.core.status import goodput_account, recovery
from tfgpujob.describe.facts import moment
from tfgpujob.units import duration
from tfgpujob_contract.goodput import MOMENTS, PARTS

_MEANING: Final[Mapping[str, str]] = {
    "queued": "until the pod had a node",
    "pulling": "images, and starting containers",
    "waiting": "for the other replicas",
    "importing": "Python, TensorFlow, the user's module",
    "building": "model, data, steps",
    "restoring": "the checkpoint",
    "tracing": "the first step of each process",
    "input": "waiting for data",
    "allReduce": "exchanging gradients, and waiting for the slowest",
    "saving": "checkpoints and the model",
    "evaluating": "validation and test splits",
    "recomputing": "steps that had been done before",
    "useful": "steps done for the first time",
    "lost": "from the last sign of life of what failed",
    "restarting": "until the next process or pod",
    "backoff": "between two tries",
    "suspended": "by runPolicy.suspend",
    "other": "unaccounted: no report from the pods",
}
_MOMENTS: Final[Mapping[str, str]] = {
    "failed": "last sign of life",
    "detected": "noticed",
    "ended": "the processes are gone",
    "created": "the next pod is created",
    "started": "its program starts",
    "restored": "the checkpoint is restored",
    "stepped": "the first new step is done",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job's time."""

    name: str
    seconds: int
    share: float
    """Share of the whole time."""
    meaning: str


def parts(account: Mapping[str, Any]) -> Sequence[Part]:
    """The parts of status.goodput, in the order of a job's life; empty if nothing is known."""
    known = {name: int(account[name]) for name in PARTS if account.get(name)}
    whole = sum(known.values())
    return [Part(name, seconds, seconds / whole, _MEANING[name]) for name, seconds in known.items()]


def goodput_table(account: Mapping[str, Any]) -> str:
    """The parts of the time, with their shares; empty if nothing is known."""
    found = parts(account)
    if not found:
        return ""
    share = goodput_account.share(account)
    good = f", goodput {share:.1%}" if share is not None else ""
    lines = [f"Time        {duration(sum(part.seconds for part in found))} until {account['time']}{good}"]
    lines += [f"  {part.name:<12}{duration(part.seconds):>9}{part.share:>8.1%}  {part.meaning}" for part in found]
    return "\n".join(lines)


def lost_time(status: Mapping[str, Any]) -> str:
    """What failures and disruptions cost in time; empty if there was none, or it is unknown."""
    told, account = status.get("lastRecovery") or {}, status.get("goodput") or {}
    found, without_a_step = [], recovery.seconds(told)
    if without_a_step is not None:
        found.append(f"no new step for {duration(without_a_step)} after the last")
    if again := account.get("recomputing"):
        found.append(f"{duration(again)} of steps done again in all")
    return ", ".join(found)


def recovery_table(told: Mapping[str, Any]) -> str:
    """The last failure and what followed, each step with the seconds since the failure; empty without one."""
    failed = moment(told.get("failed"))
    if failed is None:
        return ""
    # A recovery in place is timed to the millisecond.
    where, digits = ("in place", 3) if told.get("how") == "InPlace" else ("with new pods", 0)
    lines = [f"Recovery    the last one, {where}"]
    for name in MOMENTS:
        at = moment(told.get(name))
        if at is not None:
            after = "" if name == "failed" else f"{(at - failed).total_seconds():+.{digits}f} s"
            lines.append(f"  {at.strftime('%H:%M:%S'):<10}{after:>10}  {_MOMENTS[name]}")
    return "\n".join(lines)
