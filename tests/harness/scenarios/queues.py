"""Jobs in queues of Kueue: admitted late, evicted and readmitted, suspended, edited and created again."""

from __future__ import annotations

from tests.harness.resources import Object, with_meta
from tests.harness.scenario import (
    Step,
    after,
    at_once,
    delete,
    edit,
    gone,
    job,
    no_pods,
    nothing,
    open_queues,
    shows,
    story,
    suspend,
    take_quota,
)
from tests.harness.scenarios.common import MWM, SECOND_TIME, SERVERS, STATUS, lasting, once_it_runs, submit

from tfgpujob import names


def _queued(obj: Object) -> Object:
    return with_meta(obj, labels={names.LABEL_QUEUE: "gpus"})


ELSEWHERE = _queued(job("train", worker=2, spec={"managedBy": names.MULTIKUEUE}))
ARRIVES = dict.fromkeys(
    (f"/TFGPUJob {namespace}/train/status/conditions/Suspended" for namespace in ("default", "elsewhere")),
    "whoever saw it there before its Workload has had it wait",
)
RUNS = Step(shows("train", "Running", "True"), nothing)
WAITS = Step(shows("train", "Suspended", "True", "WaitingForAdmission"), nothing)
QUEUES = (
    story(
        "queued",
        Step(at_once, open_queues(False)),
        submit(_queued(MWM)),
        WAITS,
        Step(after(30), open_queues(True)),
        in_queues=True,
    ),
    story("queued-evicted", submit(_queued(MWM)), *once_it_runs(take_quota("train")), ends=SECOND_TIME, in_queues=True),
    story("queued-with-servers", submit(_queued(SERVERS)), in_queues=True),
    story(
        "queued-suspended",
        submit(_queued(MWM)),
        *once_it_runs(suspend("train", on=True)),
        Step(no_pods("train"), nothing),
        Step(after(5), suspend("train", on=False)),
        ends=SECOND_TIME,
        forgives={f"{STATUS}conditions/Suspended": "resumed before its Workload was deleted, it has not waited"},
        in_queues=True,
    ),
    story(
        "queued-edited",
        Step(at_once, open_queues(False)),
        submit(_queued(MWM)),
        WAITS,
        Step(at_once, edit("train", replicaSpecs={"worker": {"replicas": 3}})),
        Step(at_once, open_queues(True)),
        in_queues=True,
    ),
    lasting(
        "queued-again",
        submit(_queued(MWM)),
        *once_it_runs(delete(names.KIND, "train")),
        Step(gone("train"), open_queues(False)),
        submit(_queued(MWM)),
        WAITS,
        Step(after(10), open_queues(True)),
        *once_it_runs(nothing),
        in_queues=True,
        phases={"train": "Running"},
    ),
    story("queued-elsewhere", submit(ELSEWHERE), forgives=ARRIVES, in_queues=True),
    lasting(
        "queued-elsewhere-evicted",
        submit(ELSEWHERE),
        RUNS,
        Step(at_once, take_quota("train")),
        WAITS,
        RUNS,
        forgives=ARRIVES,
        in_queues=True,
        phases={"train": "Running"},
    ),
    lasting(
        "queued-elsewhere-suspended",
        submit(ELSEWHERE),
        RUNS,
        Step(at_once, suspend("train", on=True)),
        Step(shows("train", "Suspended", "True", "Suspended"), nothing),
        Step(after(5), suspend("train", on=False)),
        RUNS,
        forgives={
            **ARRIVES,
            "/TFGPUJob elsewhere/train/spec/runPolicy": "resumed before its Workload was deleted, it was not sent anew",
        },
        in_queues=True,
        phases={"train": "Running"},
    ),
)
