"""Jobs that report their progress, and jobs that stall."""

from __future__ import annotations

from typing import Any

from tests.harness.resources import Object
from tests.harness.scenario import Step, after, edit, finish, job, nothing, running, shows, story, tells, then
from tests.harness.scenarios.common import SECOND_TIME, STATUS, lasting, submit

TRAINER = {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}


def trains(**run_policy: Any) -> Object:
    return job("train", worker=2, spec={"trainer": TRAINER}, run_policy=run_policy)


PROGRESS = (
    lasting(
        "progress-told",
        submit(trains()),
        Step(tells("train"), nothing),
        Step(after(60), then(finish("train-worker-0", 0), finish("train-worker-1", 0))),
        forgives={f"{STATUS}progress": "how far it was when it was asked last"},
    ),
    lasting(
        "stalled",
        submit(trains(stallSeconds=40)),
        Step(shows("train", "Stalled", "True"), nothing),
        stuck=frozenset({"worker-1"}),
        phases={"train": "Running"},
    ),
    story(
        "stalled-then-restarted",
        submit(trains(stallSeconds=40, stallPolicy="Restart")),
        ends=SECOND_TIME,
        stuck=frozenset({"worker-1"}),
        forgives={
            f"{STATUS}lastFailure/index": "who blocks the others shows once all were polled",
            f"{STATUS}progress": "the second run may end before it is asked",
        },
    ),
    story(
        "idle-then-suspended-then-resumed",
        submit(trains(suspendIdleSeconds=60)),
        Step(shows("train", "Suspended", "True", "NotUsed"), nothing),
        Step(running("train", 0), edit("train", runPolicy=None)),
        ends=SECOND_TIME,
        unused=frozenset({"worker-0", "worker-1"}),
        forgives={f"{STATUS}progress": "the second run may end before it is asked"},
    ),
    lasting(
        "idle-but-for-one",
        submit(trains(suspendIdleSeconds=60)),
        Step(tells("train"), nothing),
        Step(after(120), then(finish("train-worker-0", 0), finish("train-worker-1", 0))),
        unused=frozenset({"worker-0"}),
        forgives={f"{STATUS}progress": "how far it was when it was asked last"},
    ),
)
