"""Jobs whose replicas have volumes of their own, or claim devices: the claims come before the pods, and stay those of
the replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.harness.resources import Object
from tests.harness.scenario import (
    Step,
    after,
    at_once,
    delete,
    evict,
    job,
    nothing,
    refuse,
    refuse_no_more,
    shows,
    story,
)
from tests.harness.scenarios.common import FOREVER, SECOND_TIME, once_it_runs, submit

from tfgpujob.kube.errors import ApiError


def _with_claims(name: str, strategy: str, count: int, **more: Any) -> Object:
    obj = job(name, strategy, worker=count)
    obj["spec"]["replicaSpecs"]["worker"] |= {
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "cache"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
        "template": {
            "spec": {"containers": [{"name": "tensorflow", "volumeMounts": [{"name": "cache", "mountPath": "/c"}]}]}
        },
        **more,
    }
    return obj


def _full(verb: str, kind: str, obj: Mapping[str, Any]) -> ApiError | None:
    if (verb, kind, obj["metadata"]["name"]) != ("create", "PersistentVolumeClaim", "cache-train-worker-1"):
        return None
    return ApiError(403, "Forbidden", "exceeded quota: storage, requested: requests.storage=1Gi")


CLAIMS = (
    story(
        "claims",
        submit(_with_claims("train", "MultiWorkerMirrored", 2)),
        *once_it_runs(evict("train-worker-1")),
        ends=SECOND_TIME,
    ),
    story(
        "claims-that-go-with-the-job",
        submit(_with_claims("train", "OneDevice", 1, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"})),
        *once_it_runs(delete("TFGPUJob", "train")),
        ends=FOREVER,
        phases={},
    ),
    story(
        "device-claim",
        submit(job("train", worker=2, spec={"gpu": {"claim": {"deviceClassName": "gpu.example.com"}}})),
        *once_it_runs(evict("train-worker-1")),
        ends=SECOND_TIME,
    ),
    story(
        "claim-refused",
        Step(at_once, refuse(_full)),
        submit(_with_claims("train", "MultiWorkerMirrored", 2)),
        Step(shows("train", "Created", "False", "QuotaExceeded"), nothing),
        Step(after(5), refuse_no_more),
    ),
)
