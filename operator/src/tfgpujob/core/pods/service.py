"""The job's one headless service: every pod's host name resolves, even before the pod is ready."""

from __future__ import annotations

from tfgpujob import names
from tfgpujob.core.observed.metadata import dependent_metadata
from tfgpujob.core.observed.snapshot import Object


def build_service(job: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": dependent_metadata(job),
        "spec": {
            "clusterIP": "None",
            # Tasks look each other up before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB_NAME: job["metadata"]["name"]},
            "ports": [{"name": names.PORT_NAME, "port": names.PORT, "targetPort": names.PORT}],
        },
    }
