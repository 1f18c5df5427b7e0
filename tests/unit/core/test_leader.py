"""Which jobs the operator asks their leader about."""

from __future__ import annotations

import pytest

from tfgpujob.core.membership.leader import asks
from tfgpujob.core.observed.packed import packed
from tfgpujob.core.observed.snapshot import Object


def restarting(spec: Object) -> Object:
    status = {
        "phase": "Restarting",
        "plan": {"counts": {"worker": 2}},
        "restartRecords": [{"role": "worker", "index": 1}],
    }
    return {"metadata": {}, "spec": spec, "status": status}


@pytest.mark.parametrize("characters", [1, 4096])
def test_of_elastic_jobs_that_replace_a_pod_a_large_one_too(characters: int) -> None:
    worker = {"replicas": 2, "template": {"text": "x" * characters}}
    assert asks(packed(restarting({"replicaSpecs": {"worker": {**worker, "minReplicas": 1}}})))
    assert not asks(packed(restarting({"replicaSpecs": {"worker": worker}})))
