"""The strategies, and how jobs end."""

from __future__ import annotations

from tests.harness.scenario import Scenario, Step, ended, gone, job, no_pods, nothing
from tests.harness.scenarios.common import FAILED, FOREVER, MWM, STATUS, submit

STRATEGIES = (
    Scenario(name="one-device", script=(submit(job("train", "OneDevice", worker=1)),)),
    Scenario(
        name="mirrored-evaluator",
        script=(submit(job("train", "Mirrored", worker=1, evaluator=1)),),
        ends={"evaluator": (None,)},
    ),
    Scenario(name="multi-worker", script=(submit(job("train", worker=3)),)),
    Scenario(
        name="parameter-server",
        script=(submit(job("train", "ParameterServer", chief=1, worker=2, ps=1)),),
    ),
    Scenario(
        name="custom",
        script=(submit(job("train", "Custom", chief=1, worker=1, ps=1)),),
        ends={"worker": (None,)},
    ),
)

ENDINGS = (
    Scenario(
        name="permanent-failure", script=(submit(MWM),), ends={"worker-0": (None,), "worker-1": (1,)}, phases=FAILED
    ),
    Scenario(
        name="retryable-failure",
        script=(submit(MWM),),
        ends={"worker": (143, 0)},
        forgives={f"{STATUS}lastFailure/index": "both fail, and the event of the first may be missed"},
    ),
    Scenario(
        name="budget-spent",
        script=(submit(job("train", worker=2, run_policy={"backoffLimit": 1})),),
        ends={"worker-0": (137,), "worker-1": (None,)},
        phases=FAILED,
    ),
    Scenario(
        name="expires",
        script=(
            submit(job("train", worker=1, run_policy={"ttlSecondsAfterFinished": 20})),
            Step(gone("train"), nothing),
        ),
        phases={},
    ),
    Scenario(
        name="active-deadline",
        script=(submit(job("train", worker=2, run_policy={"activeDeadlineSeconds": 90})),),
        ends=FOREVER,
        phases=FAILED,
    ),
    Scenario(
        name="clean-all",
        script=(
            submit(job("train", worker=2, run_policy={"cleanPodPolicy": "All"})),
            Step(ended("train", 2), nothing),
            Step(no_pods("train"), nothing),
        ),
    ),
)
