"""What is asked of a training run, and the account of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.harness.mutations.mutation import Mutation, instead

from tfgpujob.core.policies import idle, stall
from tfgpujob.core.policies.restart import restart_scope
from tfgpujob.core.status import goodput, progress
from tfgpujob.core.status.goodput_account import Account
from tfgpujob.shell import progress_poller


@instead
def _no_time_between(_real: Any, account: Account, old: Any, until: datetime, **_: Any) -> Account:
    return replace(account, time=max(until, account.time))


@instead
def _twice(real: Any, account: Account, *how: Any, **more: Any) -> Account:
    found: Account = real(account, *how, **more)
    return replace(found, before=found.before and found.parts)


@instead
async def _asks_all_the_time(real: Any, self: Any) -> None:
    self._interval = 2.0
    await real(self)


@instead
def _forgets_what_was_counted(real: Any, builder: Any, *what: Any) -> None:
    real(builder, *what)
    told = builder.fields.get("progress") or {}
    builder.put("progress", {key: value for key, value in told.items() if key != "inPlaceRestarts"})


@instead
def _counts_what_follows(_real: Any, spec: Any, failures: Sequence[Any]) -> list[Any]:
    del spec
    return list(failures)


MUTATIONS = (
    Mutation(
        "count a failure that follows from another",
        "failures_are_counted_once",
        (restart_scope, "independent_failures"),
        _counts_what_follows,
        ("server-and-chief-that-follows",),
    ),
    Mutation(
        "ask all the time",
        "progress_is_seldom",
        (progress_poller.ProgressPoller, "run"),
        _asks_all_the_time,
        ("progress-told",),
    ),
    Mutation(
        "forget the time without a pod", "time_adds_up", (goodput, "_without_pod"), _no_time_between, ("progress-told",)
    ),
    Mutation("count a pod's time on top of itself", "time_adds_up", (goodput, "_followed"), _twice, ("progress-told",)),
    Mutation(
        "count what the pods tell again with each report",
        "failures_are_counted_once",
        (progress, "update"),
        _forgets_what_was_counted,
        ("servers-in-place",),
    ),
    Mutation(
        "count what a pod has told again at its end",
        "failures_are_counted_once",
        (progress, "clear"),
        lambda _: lambda builder: builder.put("progress", None),
        ("servers-in-place",),
    ),
    Mutation(
        "take one worker's idle GPU for all",
        "only_idle_jobs_are_suspended",
        (idle, "_seconds"),
        lambda _: lambda ctx: max((r.gpu_idle_seconds for r in ctx.snapshot.reports.values()), default=None),
        ("idle-but-for-one",),
    ),
    Mutation(
        "see a stall in every step", "stalls_are_real", (stall, "limit"), lambda _: lambda spec: -1, ("progress-told",)
    ),
)
