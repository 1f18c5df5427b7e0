"""Pods that are lost, and replicas that start again alone."""

from __future__ import annotations

from tests.harness.resources import Object
from tests.harness.scenario import (
    Step,
    after,
    apply,
    at_once,
    counts,
    created,
    delete,
    evict,
    fail_init,
    finish,
    job,
    linger,
    nothing,
    quota,
    refuse,
    restart_in_place,
    restarted,
    shows,
    story,
    then,
    told_in_place,
    training,
    trains_again,
    vanish,
)
from tests.harness.scenarios.common import (
    FAILED,
    MWM,
    RUNNING,
    SECOND_CHIEF,
    SECOND_TIME,
    SERVERS,
    STARTING,
    STATUS,
    lasting,
    once_it_runs,
    submit,
)
from tests.harness.scenarios.refusals import reject

from tfgpujob import names


def _with(**pod_spec: object) -> Object:
    """A job whose workers' template says this."""
    return job("train", spec={"replicaSpecs": {"worker": {"replicas": 2, "template": {"spec": pod_spec}}}})


PREPARED = _with(initContainers=[{"name": "prepare", "image": "example.com/prepare:1"}])
WITH_PROXY = _with(containers=[{"name": names.CONTAINER}, {"name": "proxy", "image": "example.com/proxy:1"}])

LOSSES = (
    story(
        "fails-again-after-a-long-run",
        submit(MWM),
        Step(trains_again("train"), nothing),
        Step(after(660), finish("train-worker-0", 137)),
        ends={"worker": (137, None, 0)},
    ),
    story(
        "evicted-as-another-fails",
        submit(MWM),
        *once_it_runs(then(finish("train-worker-1", 1), evict("train-worker-0"))),
        ends=SECOND_TIME,
        without_faults=True,
    ),
    lasting(
        "recorded-success-vanishes",
        submit(job("train", "Custom", worker=2, spec={"successPolicy": "AllWorkers"})),
        Step(training("train"), finish("train-worker-0", 0)),
        Step(counts("train", "succeeded", 1), vanish("train-worker-0")),
        Step(after(60), finish("train-worker-1", 0)),
    ),
    story("evicted", submit(MWM), Step(training("train"), evict("train-worker-1")), ends=SECOND_TIME),
    story("vanished", submit(MWM), *once_it_runs(vanish("train-worker-0")), ends=SECOND_TIME),
    story("drained", submit(MWM), *once_it_runs(delete("Pod", "train-worker-1")), ends=SECOND_TIME),
    story(
        "init-container-fails",
        submit(PREPARED),
        Step(shows("train", "Created", "True"), fail_init("train-worker-1", "prepare", 1)),
        missing_images=frozenset({"example.com/train:1"}),
        phases=FAILED,
    ),
    lasting(
        "second-container-never-ends",
        submit(WITH_PROXY),
        *once_it_runs(then(linger("train-worker-0", 0), linger("train-worker-1", 0))),
    ),
    lasting(
        "second-container-never-ends-after-a-failure",
        submit(WITH_PROXY),
        *once_it_runs(linger("train-worker-1", 1)),
        phases=FAILED,
    ),
    story(
        "vanished-while-starting",
        submit(MWM),
        Step(created("train", 2), vanish("train-worker-0")),
        forgives=dict.fromkeys(
            (
                f"{STATUS}disruptions",
                f"{STATUS}consecutiveDisruptions",
                f"{STATUS}lastFailure",
                f"{STATUS}conditions/Restarting",
            ),
            STARTING,
        ),
    ),
)

RECOVERING = job(
    "train",
    "ParameterServer",
    chief=1,
    worker=2,
    ps=1,
    spec={"trainer": {"entrypoint": "digits", "globalBatchSize": 64, "epochs": 1}},
    run_policy={"recovery": "InPlace"},
)

REPLICAS = (
    story("worker-alone", submit(SERVERS), ends={"worker-1": (137, None), **SECOND_CHIEF}),
    story("chief-alone", submit(SERVERS), ends={"chief": (143, 0)}),
    story("server-and-chief", submit(SERVERS), ends={"ps-0": (137, None), **SECOND_CHIEF}),
    story("server-and-chief-that-follows", submit(SERVERS), ends={"ps-0": (137, None), "chief": (160, 0)}),
    lasting(
        "servers-in-place",
        submit(RECOVERING),
        *once_it_runs(restart_in_place("train-chief-0", 1)),
        Step(told_in_place("train", 1), restart_in_place("train-chief-0", 3)),
        Step(told_in_place("train", 3), finish("train-worker-1", 137)),
        Step(restarted("train-worker-1"), restart_in_place("train-chief-0", 4)),
        # With a server the chief starts again, whose last words come after that.
        Step(told_in_place("train", 4), evict("train-ps-0")),
        Step(restarted("train-chief-0"), finish("train-chief-0", 0)),
        forgives={f"{STATUS}progress": "how far it was when it was asked last"},
    ),
    story("worker-drained", submit(SERVERS), *once_it_runs(delete("Pod", "train-worker-1")), ends=SECOND_CHIEF),
    story(
        "worker-alone-without-room",
        submit(SERVERS),
        Step(training("train"), apply(quota(pods="1"))),
        Step(shows("train", "Created", "True", "QuotaExceeded"), delete("ResourceQuota", "quota")),
        ends={"worker-1": (137, None), **SECOND_CHIEF},
    ),
    lasting(
        "worker-refused-for-good",
        submit(SERVERS),
        *once_it_runs(refuse(reject("train-worker-1"))),
        Step(at_once, finish("train-worker-1", 137)),
        Step(shows("train", "Accepted", "False", "TemplateRefused"), finish("train-worker-0", 137)),
        Step(restarted("train-worker-0"), finish("train-chief-0", 0)),
    ),
    story("worker-for-good", submit(SERVERS), ends={"worker-1": (1,), "chief": (None,)}, phases=FAILED),
    story(
        "custom-replica",
        submit(job("train", "Custom", chief=1, worker=2, run_policy={"restartScope": "Replica"})),
        ends={"worker-0": (None,), "worker-1": (137, None), **SECOND_CHIEF},
    ),
    story(
        "evaluator-alone",
        submit(job("train", "Mirrored", worker=1, evaluator=1)),
        ends={"evaluator": (137, None), "worker": (None, 0)},
    ),
    story(
        "evaluator-for-good",
        submit(job("train", "Mirrored", worker=1, evaluator=1)),
        ends={"evaluator": (1,), "worker": (None,)},
        phases=RUNNING,
    ),
)
