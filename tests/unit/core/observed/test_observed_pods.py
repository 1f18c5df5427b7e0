"""The current attempt as the pods show it."""

from __future__ import annotations

import pytest
from tests.unit.core import make

from tfgpujob.core.observed.observed_pods import has_ended, has_failed, has_succeeded
from tfgpujob.names import Role

W0, W1 = (Role.WORKER, 0), (Role.WORKER, 1)
RECORDED = {"replicaStatuses": {"worker": {"succeededIndexes": [1]}}}


def test_who_is_there_and_who_is_missing() -> None:
    observed = make.observed(make.job(), make.pod())
    assert set(observed.pods) == {W0}
    assert observed.missing() == (W1,)
    assert observed.name(W1) == "train-worker-1"


def test_a_replica_whose_success_is_recorded_is_not_missing() -> None:
    observed = make.observed(make.job(), make.pod(), status=RECORDED)
    assert observed.missing() == ()
    assert observed.succeeded(W1)
    assert observed.ready(W1)


def test_a_terminating_pod_of_this_attempt_is_there_but_not_ready() -> None:
    observed = make.observed(make.job(), make.pod(deleting=True))
    assert W0 in observed.pods
    assert not observed.ready(W0)


@pytest.mark.parametrize(
    "pod",
    [
        make.pod(attempt=0),
        make.pod(owner_uid="an-earlier-job"),
        make.pod(attempt=0, deleting=True),
        make.pod("train-worker-7", attempt=0),
        make.pod("train-worker-7"),
        make.pod(attempt=2),
    ],
)
def test_old_pods_are_stale_as_are_ours_that_no_plan_has(pod: object) -> None:
    observed = make.observed(make.job(), pod)  # type: ignore[arg-type]
    assert observed.stale_pods == (pod,)
    assert not observed.pods
    assert not observed.foreign


def test_pods_of_others_matter_only_under_our_names() -> None:
    taken, other = make.pod(owner_uid=""), make.pod("train-worker-9", owner_uid="")
    observed = make.observed(make.job(), taken, other)
    assert observed.foreign == (taken,)
    assert observed.stale_pods == ()
    assert set(observed.missing()) == {W0, W1}


def test_the_container_decides_how_a_pod_ended() -> None:
    through = make.pod(exit=0, phase="Running")
    assert has_succeeded(through), "though a sidecar runs on"
    failed = make.pod(exit=3, phase="Running")
    assert has_failed(failed)
    evicted = make.pod(phase="Failed")
    assert has_failed(evicted)
    stopped = make.pod(exit=0, phase="Failed", status_reason="Evicted")
    assert has_failed(stopped), "it exited with 0 because it was stopped"
    assert not has_succeeded(stopped)
    assert has_succeeded(make.pod(exit=0, phase="Failed")), "another container failed"
    assert not has_ended(make.pod())
    assert not has_ended(make.pod(phase="Succeeded")), "whatever that was, it was not the container"
