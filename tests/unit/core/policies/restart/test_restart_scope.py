"""What starts again when a replica fails."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core import make

from tfgpujob.api import JobSpec
from tfgpujob.core.policies.restart import restart_scope
from tfgpujob.core.policies.restart.failure import Cause, Failure
from tfgpujob.names import Role

ROLES = {
    "OneDevice": {"worker": 1},
    "Mirrored": {"worker": 1},
    "MultiWorkerMirrored": {"worker": 2},
    "ParameterServer": {"worker": 2, "ps": 1},
    "Custom": {"worker": 2},
}


def failed(name: str, reason: str = "Error", code: int = 137) -> Failure:
    role, _, index = name.partition("-")
    return Failure((Role(role), int(index)), f"train-{name}", Cause.RETRYABLE, code, reason, "", "")


@pytest.mark.parametrize(
    ("strategy", "wish", "alone"),
    [
        ("OneDevice", "Auto", False),
        ("Mirrored", "Auto", False),
        ("MultiWorkerMirrored", "Auto", False),
        ("ParameterServer", "Auto", True),
        ("Custom", "Auto", False),
        ("OneDevice", "Replica", False),
        ("Mirrored", "Replica", False),
        ("MultiWorkerMirrored", "Replica", False),
        ("ParameterServer", "Replica", True),
        ("Custom", "Replica", True),
        ("ParameterServer", "Gang", False),
        ("Custom", "Gang", False),
    ],
)
def test_who_may_start_again_alone(strategy: str, wish: str, alone: bool) -> None:
    spec = make.parsed(make.job(strategy, **ROLES[strategy], run={"restartScope": wish}))
    assert spec.restarts_alone is alone


def predicting(**parts: Any) -> JobSpec:
    trainer = {"entrypoint": "digits", "mode": "predict", "predict": {"model": "/m.keras"}, "globalBatchSize": 8}
    return make.parsed(make.job("Custom", worker=3, image=None, trainer=trainer, **parts))


def test_a_worker_that_predicts_starts_again_alone_and_the_others_go_on() -> None:
    worker = (Role.WORKER, 1)
    assert predicting().restarts_alone
    assert predicting().runs_on_without({worker[0]})
    assert not predicting(run={"restartScope": "Gang"}).restarts_alone


@pytest.mark.parametrize(
    ("failures", "replicas_to_restart"),
    [
        ([failed("worker-1")], {"worker-1"}),
        ([failed("worker-0"), failed("worker-2")], {"worker-0", "worker-2"}),
        ([failed("chief-0")], {"chief-0"}),
        ([failed("chief-0", code=161)], {"chief-0", "worker-0", "worker-1", "worker-2"}),
        ([failed("worker-1", code=161)], {"worker-1"}),
        ([failed("ps-1")], {"ps-1", "chief-0"}),
        ([failed("worker-1", "NodeLost")], {"worker-1", "chief-0"}),
        ([failed("worker-1", "Vanished")], {"worker-1"}),
        ([failed("worker-1", "Evicted")], {"worker-1"}),
    ],
)
def test_who_goes_together_under_parameter_server(failures: list[Failure], replicas_to_restart: set[str]) -> None:
    job = make.job("ParameterServer", worker=3, ps=2)
    found = restart_scope.replicas_to_restart(make.parsed(job), make.plan(job), failures)
    assert {f"{role}-{index}" for role, index in found} == replicas_to_restart


def test_a_custom_job_is_not_known_to_need_anybody_else() -> None:
    job = make.job("Custom", worker=3, ps=2, chief=1, run={"restartScope": "Replica"})
    assert restart_scope.replicas_to_restart(make.parsed(job), make.plan(job), [failed("ps-1")]) == {(Role.PS, 1)}


def test_a_chief_that_fails_with_a_parameter_server_is_not_to_blame() -> None:
    spec = make.parsed(make.job("ParameterServer", worker=3, ps=2))
    chief, ps, worker = failed("chief-0"), failed("ps-0"), failed("worker-0")
    assert restart_scope.independent_failures(spec, [chief, ps, worker]) == [ps, worker]
    assert restart_scope.independent_failures(spec, [chief, worker]) == [chief, worker]


def test_a_worker_that_ends_with_the_chief_or_a_parameter_server_is_not_to_blame() -> None:
    spec = make.parsed(make.job("ParameterServer", worker=3, ps=2))
    chief, ps, peers = failed("chief-0", code=161), failed("ps-0"), [failed("worker-0", code=160)]
    assert restart_scope.independent_failures(spec, [*peers, chief]) == [chief]
    assert restart_scope.independent_failures(spec, [*peers, ps]) == [ps]
    assert restart_scope.independent_failures(spec, peers) == peers


def test_workers_that_may_still_read_their_data_run_on_when_the_chief_starts_again() -> None:
    job, (role, index) = make.job("ParameterServer", worker=3, ps=2), (Role.CHIEF, 0)
    message = '{"cause": "StartupDeadline"}'
    late = Failure((role, index), "train-chief-0", Cause.RETRYABLE, 161, "Error", message, "")
    assert restart_scope.replicas_to_restart(make.parsed(job), make.plan(job), [late]) == {(role, index)}


def test_training_goes_on_without_workers_only() -> None:
    spec = make.parsed(make.job("ParameterServer", worker=3, ps=2))
    assert spec.runs_on_without({Role.WORKER})
    assert not spec.runs_on_without({Role.WORKER, Role.CHIEF})
    custom = make.parsed(make.job("Custom", run={"restartScope": "Replica"}))
    assert not custom.runs_on_without({Role.WORKER}), "nothing is known of it"
