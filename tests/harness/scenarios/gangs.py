"""Jobs with a pod group: it is there before the pods of each attempt, and gone when nothing is to be scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.scenario import (
    Scenario,
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
    Scenario(
        name="gang",
        script=(submit(MWM), *once_it_runs(evict("train-worker-1"))),
        ends=SECOND_TIME,
        in_gangs=True,
    ),
    Scenario(
        # The evaluator's pod, which a scheduler would count for one of the workers', comes when these run.
        name="gang-with-evaluator",
        script=(submit(job("train", worker=2, evaluator=1)), *once_it_runs(evict("train-worker-1"))),
        ends={"worker": (None, 0), "evaluator": (None,)},
        in_gangs=True,
    ),
    Scenario(
        name="gang-suspended",
        script=(
            submit(MWM),
            *once_it_runs(suspend("train", on=True)),
            Step(no_pods("train"), nothing),
        ),
        ends=FOREVER,
        in_gangs=True,
        phases={"train": "Suspended"},
    ),
    Scenario(
        name="gang-refused",
        script=(
            Step(at_once, refuse(_denied)),
            submit(MWM),
            Step(shows("train", "Created", "False", "Forbidden"), nothing),
            Step(after(5), refuse_no_more),
        ),
        in_gangs=True,
    ),
)
