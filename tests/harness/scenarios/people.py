"""What people do to a job while it runs."""

from __future__ import annotations

from tests.harness.scenario import (
    Step,
    after,
    apply,
    created,
    delete,
    edit,
    empty_status,
    job,
    no_pods,
    nothing,
    running,
    shows,
    stopping,
    story,
    suspend,
    then,
    training,
)
from tests.harness.scenarios.common import (
    FAILED,
    MWM,
    RUNNING,
    SECOND_CHIEF,
    SECOND_TIME,
    lasting,
    once_it_runs,
    submit,
)

_BOUNDS = {"minReplicas": 1, "maxReplicas": 4}
ELASTIC = job(
    "train",
    spec={
        "replicaSpecs": {"worker": {"replicas": 2, **_BOUNDS}},
        "trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1},
    },
)

PEOPLE = (
    story("deleted-while-creating", submit(MWM), Step(created("train", 1), delete("TFGPUJob", "train")), phases={}),
    story(
        "deleted-once-accepted",
        submit(MWM),
        Step(shows("train", "Accepted", "True"), delete("TFGPUJob", "train")),
        phases={},
    ),
    lasting(
        "deleted-while-running",
        submit(MWM),
        Step(running("train", 2), delete("TFGPUJob", "train")),
        phases={},
    ),
    lasting(
        "deleted-in-the-foreground",
        submit(MWM),
        Step(created("train", 1), delete("TFGPUJob", "train", "Foreground")),
        phases={},
    ),
    lasting(
        "orphaned",
        submit(MWM),
        Step(running("train", 2), nothing),
        Step(shows("train", "Running", "True"), delete("TFGPUJob", "train", "Orphan")),
        phases={},
    ),
    story(
        "resized",
        submit(ELASTIC),
        *once_it_runs(edit("train", replicaSpecs={"worker": _BOUNDS | {"replicas": 3}})),
        ends=SECOND_TIME,
    ),
    story("recreated", submit(MWM), Step(running("train", 2), then(delete("TFGPUJob", "train"), apply(MWM)))),
    story(
        "recreated-while-creating",
        submit(MWM),
        Step(created("train", 1), then(delete("TFGPUJob", "train"), apply(job("train", worker=3)))),
    ),
    story(
        "suspended-and-resumed",
        submit(MWM),
        Step(training("train"), suspend("train", True)),
        Step(no_pods("train"), nothing),
        Step(after(20), suspend("train", False)),
        ends=SECOND_TIME,
    ),
    story(
        "suspended-for-longer-than-its-deadline",
        submit(job("train", worker=2, run_policy={"activeDeadlineSeconds": 90})),
        Step(training("train"), suspend("train", True)),
        Step(no_pods("train"), nothing),
        Step(after(120), suspend("train", False)),
        ends=SECOND_TIME,
    ),
    story("its-status-is-emptied", submit(MWM), *once_it_runs(empty_status("train")), ends=SECOND_TIME),
    lasting(
        "its-evaluator-ends-first",
        submit(job("train", worker=2, evaluator=1, run_policy={"activeDeadlineSeconds": 86_400})),
        phases=RUNNING,
    ),
    story(
        "suspended-from-the-start",
        submit(job("train", worker=2, run_policy={"suspend": True})),
        Step(shows("train", "Suspended", "True"), nothing),
        Step(after(5), suspend("train", False)),
    ),
    lasting(
        "suspended-parameter-server",
        submit(job("train", "ParameterServer", chief=1, worker=1, ps=1)),
        Step(training("train"), suspend("train", True)),
        Step(no_pods("train"), nothing),
        phases={"train": "Suspended"},
    ),
    story(
        "resumed-while-the-chief-stops",
        submit(job("train", "ParameterServer", chief=1, worker=1, ps=1)),
        Step(training("train"), suspend("train", True)),
        Step(stopping("train-chief-0"), suspend("train", False)),
        ends=SECOND_CHIEF,
    ),
    lasting(
        "edited-while-running",
        submit(MWM),
        Step(shows("train", "Running", "True"), edit("train", replicaSpecs={"worker": {"replicas": 3}})),
        Step(
            shows("train", "Accepted", "False", "ImmutableFieldChanged"),
            edit("train", replicaSpecs={"worker": {"replicas": 2}}),
        ),
        phases=RUNNING,
    ),
    story(
        "suspended-while-invalid",
        submit(MWM),
        Step(training("train"), edit("train", strategy="Nonsense")),
        Step(shows("train", "Accepted", "False", "InvalidSpec"), suspend("train", True)),
        Step(shows("train", "Suspended", "True"), nothing),
        Step(no_pods("train"), then(edit("train", strategy="MultiWorkerMirrored"), suspend("train", False))),
        ends=SECOND_TIME,
    ),
    lasting(
        "deadline-while-invalid",
        submit(job("train", worker=2, run_policy={"activeDeadlineSeconds": 90})),
        Step(training("train"), edit("train", strategy="Nonsense")),
        phases=FAILED,
    ),
    story(
        "managed-by-another",
        submit(job("train", worker=2, run_policy={"managedBy": "example.com/other"})),
        phases={"train": ""},
    ),
)
