"""The strategies, and how jobs end."""

from __future__ import annotations

from tests.harness.scenario import Step, ended, gone, job, no_pods, nothing, story
from tests.harness.scenarios.common import FAILED, FOREVER, MWM, STATUS, submit

STRATEGIES = (
    story("one-device", submit(job("train", "OneDevice", worker=1))),
    story("mirrored-evaluator", submit(job("train", "Mirrored", worker=1, evaluator=1)), ends={"evaluator": (None,)}),
    story("multi-worker", submit(job("train", worker=3))),
    story("parameter-server", submit(job("train", "ParameterServer", chief=1, worker=2, ps=1))),
    story("custom", submit(job("train", "Custom", chief=1, worker=1, ps=1)), ends={"worker": (None,)}),
)

ENDINGS = (
    story("permanent-failure", submit(MWM), ends={"worker-0": (None,), "worker-1": (1,)}, phases=FAILED),
    story(
        "retryable-failure",
        submit(MWM),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
    ),
    story(
        "budget-spent",
        submit(job("train", worker=2, run_policy={"backoffLimit": 1})),
        ends={"worker-0": (137,), "worker-1": (None,)},
        phases=FAILED,
    ),
    story(
        "expires",
        submit(job("train", worker=1, run_policy={"ttlSecondsAfterFinished": 20})),
        Step(gone("train"), nothing),
        phases={},
    ),
    story(
        "active-deadline",
        submit(job("train", worker=2, run_policy={"activeDeadlineSeconds": 90})),
        ends=FOREVER,
        phases=FAILED,
    ),
    story(
        "clean-all",
        submit(job("train", worker=2, run_policy={"cleanPodPolicy": "All"})),
        Step(ended("train", 2), nothing),
        Step(no_pods("train"), nothing),
    ),
)
