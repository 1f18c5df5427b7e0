"""The job's one headless service: every pod's host name resolves, even before the pod is ready."""

from __future__ import annotations

from tfgpujob import names
from tfgpujob.core.observed.metadata import job_labels, owner_reference
from tfgpujob.core.observed.snapshot import Object


def build_service(job: Object) -> Object:
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": job_labels(metadata["name"]),
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            # Tasks look each other up before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB_NAME: metadata["name"]},
            "ports": [{"name": names.PORT_NAME, "port": names.PORT, "targetPort": names.PORT}],
        },
    }
