"""Jobs with a pod group: it is there before the pods of each attempt, and gone when nothing is to be scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.scenario import (
    Step,
    after,
    at_once,
    evict,
    job,
    no_pods,
    nothing,
    refuse,
    refuse_no_more,
    shows,
    story,
    suspend,
)
from tests.harness.scenarios.common import FOREVER, MWM, SECOND_TIME, once_it_runs, submit

from tfgpujob.kube.errors import ApiError


def _denied(verb: str, kind: str, obj: Mapping[str, Any]) -> ApiError | None:
    del obj
    if (verb, kind) != ("create", "PodGroup"):
        return None
    return ApiError(400, "BadRequest", "admission webhook said no: there is no queue research")


GANGS = (
    story("gang", submit(MWM), *once_it_runs(evict("train-worker-1")), ends=SECOND_TIME, in_gangs=True),
    story(
        "gang-with-evaluator",
        submit(job("train", worker=2, evaluator=1)),
        *once_it_runs(evict("train-worker-1")),
        ends={"worker": (None, 0), "evaluator": (None,)},
        in_gangs=True,
    ),
    story(
        "gang-suspended",
        submit(MWM),
        *once_it_runs(suspend("train", on=True)),
        Step(no_pods("train"), nothing),
        ends=FOREVER,
        in_gangs=True,
        phases={"train": "Suspended"},
    ),
    story(
        "gang-refused",
        Step(at_once, refuse(_denied)),
        submit(MWM),
        Step(shows("train", "Created", "False", "Forbidden"), nothing),
        Step(after(5), refuse_no_more),
        in_gangs=True,
    ),
)
