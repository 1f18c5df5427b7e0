"""Jobs as a cluster may have them, for the pages: one that trains and lost an hour, one that failed, some that wait."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tfgpujob import names
from tfgpujob.core.observed.progress_report import Report, parse
from tfgpujob.core.observed.progress_series import Series
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.ui.seen import Seen

NOW = datetime(2026, 3, 4, 15, 20, tzinfo=UTC)


def at(minutes: float) -> str:
    """This many minutes ago."""
    return (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str, reason: str, message: str, minutes: float) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(minutes),
        "observedGeneration": 1,
    }


OUT_OF_MEMORY = {
    "phase": "Failed",
    "conditions": [condition("Failed", "True", "ReplicaFailed", "worker-1 failed.", 5)],
    "lastFailure": {"role": "worker", "index": 1, "cause": "OutOfMemory", "action": "Use a smaller batch."},
}
"""The status of a job that has failed."""


def job(
    name: str, status: Mapping[str, Any], *, namespace: str = "research", workers: int = 4, **trainer: Any
) -> Object:
    settings = {"entrypoint": "resnet50", "globalBatchSize": 1024, "epochs": 90, "seed": 7, **trainer}
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": at(190),
        "generation": 1,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": metadata,
        "spec": {
            "strategy": "MultiWorkerMirrored",
            "image": "registry.example.com/tfgpujob-trainer:9.9.9-gpu",
            "gpu": {"perReplica": 2},
            "replicaSpecs": {"worker": {"replicas": workers}},
            "trainer": settings,
        },
        "status": status,
    }


def pod(job_name: str, index: int, *, attempt: int = 2, minutes: float = 120, node: str = "") -> Object:
    labels = {
        names.LABEL_JOB_NAME: job_name,
        names.LABEL_REPLICA_TYPE: "worker",
        names.LABEL_REPLICA_INDEX: str(index),
        names.LABEL_ATTEMPT: str(attempt),
    }
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "uid": f"uid-{job_name}", "controller": True}
    running = {"running": {"startedAt": at(minutes - 2)}}
    return {
        "metadata": {
            "name": f"{job_name}-worker-{index}",
            "namespace": "research",
            "uid": f"pod-{job_name}-{index}",
            "labels": labels,
            "creationTimestamp": at(minutes),
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node or f"gpu-node-{index + 1}"},
        "status": {
            "phase": "Running",
            "startTime": at(minutes - 0.5),
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": names.CONTAINER, "ready": True, "state": running}],
        },
    }


def event(job_name: str, reason: str, message: str, minutes: float) -> Object:
    return {
        "metadata": {"name": f"{job_name}.{minutes}", "namespace": "research"},
        "involvedObject": {"kind": names.KIND, "name": job_name, "uid": f"uid-{job_name}"},
        "reason": reason,
        "message": message,
        "firstTimestamp": at(minutes),
        "count": 1,
    }


def curves(pace: float = 1.0, bumps: float = 0.08, end: int = 25_600) -> Series:
    """A loss that falls, and what goes with it."""
    steps = range(100, end + 1, 100)

    def loss(step: int) -> float:
        wobble = bumps * math.sin(step * 0.7) * math.exp(-step / 30_000)
        return 0.9 + 6 * math.exp(-pace * step / 5200) + wobble

    return {
        "loss": [(step, loss(step)) for step in steps],
        "accuracy": [(step, 0.78 * (1 - math.exp(-pace * step / 7000))) for step in steps],
        "val_loss": [(step, 1.06 * loss(step) + 0.05 + step / 400_000) for step in steps if step % 1300 == 0],
        "val_accuracy": [(step, 0.74 * (1 - math.exp(-pace * step / 7400))) for step in steps if step % 1300 == 0],
        "stepSeconds": [(step, 0.241 + 0.012 * math.sin(step) + 0.2 * (step == 11_200)) for step in steps],
        "examplesPerSecond": [
            (step, 1024 / (0.241 + 0.012 * math.sin(step) + 0.2 * (step == 11_200))) for step in steps
        ],
    }


def report(**told: Any) -> Report:
    found = parse(json.dumps({"phase": "training", "step": 25_600, "steps": 112_590, **told}).encode())
    assert found is not None
    return found


_RUNNING = [
    condition("Accepted", "True", "Valid", "The spec is valid.", 190),
    condition("Created", "True", "AllCreated", "Attempt 2: created 4 pods.", 120),
    condition("Running", "True", "AllReady", "All 4 required replicas are ready.", 117),
    condition("Restarting", "False", "Running", "It runs.", 117),
]
_GOODPUT = {
    "queued": 240,
    "pulling": 95,
    "waiting": 20,
    "importing": 34,
    "building": 22,
    "restoring": 11,
    "tracing": 64,
    "input": 210,
    "allReduce": 1310,
    "saving": 74,
    "evaluating": 380,
    "recomputing": 405,
    "useful": 7890,
    "lost": 62,
    "restarting": 41,
    "backoff": 12,
    "time": at(0.5),
}
TRAINS = Seen(
    job=job(
        "resnet50-imagenet",
        {
            "phase": "Running",
            "ready": "4/4",
            "attempt": 2,
            "restarts": 1,
            "startTime": at(186),
            "conditions": _RUNNING,
            "plan": {"counts": {"worker": 4}},
            "gpuTime": {"seconds": 82_000, "gpus": 8, "time": at(1)},
            "goodput": _GOODPUT,
            "progress": {
                "epoch": 21,
                "totalEpochs": 90,
                "step": 25_600,
                "totalSteps": 112_590,
                "percent": 22,
                "loss": "0.9437",
                "examplesPerSecond": 4249,
                "remainingSeconds": 20_960,
            },
            "lastCheckpoint": {"step": 25_000, "directory": "/output/checkpoints/step-0000025000", "seconds": 9},
            "lastRecovery": {
                "how": "Pods",
                "failed": at(121),
                "detected": at(120.9),
                "created": at(120),
                "started": at(118),
                "restored": at(117.3),
                "stepped": at(116.8),
            },
        },
    ),
    pods=[pod("resnet50-imagenet", index) for index in range(4)],
    events=[
        event("resnet50-imagenet", "Created", "Attempt 1: created 4 pods and the service.", 189.9),
        event("resnet50-imagenet", "Running", "All 4 required replicas are ready.", 183),
        event(
            "resnet50-imagenet", "Restarting", "resnet50-imagenet-worker-2 ended (NodeLost); attempt 2 follows.", 121
        ),
        event("resnet50-imagenet", "Created", "Attempt 2: created 4 pods.", 120),
    ],
    series=curves(),
    report=report(workerSeconds={"worker-0": 0.171, "worker-1": 0.169, "worker-2": 0.232, "worker-3": 0.173}),
    logs={
        f"resnet50-imagenet-worker-{index}": [
            "tfgpu-train: resuming after step 15200 (epoch 13, batch 188)",
            "tfgpu-train: epoch 20/90: loss 0.9512, accuracy 0.7594, 4251 examples/s, input wait 2%, all-reduce 13%",
            "tfgpu-train: validation after step 25020: loss 1.1270, accuracy 0.7201",
            "tfgpu-train: straggler: 13% of the time is waiting for worker-2, which needs 0.232 s of its own",
        ]
        for index in range(4)
    },
)
WAITS = Seen(
    job=job(
        "bert-large",
        {
            "phase": "Pending",
            "ready": "0/8",
            "attempt": 1,
            "conditions": [
                condition("Accepted", "True", "Valid", "The spec is valid.", 190),
                condition(
                    "Created",
                    "False",
                    "QuotaExceeded",
                    "Pod bert-large-worker-3 does not fit: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, "
                    "used: requests.nvidia.com/gpu=14, limited: requests.nvidia.com/gpu=16. Nothing is "
                    "held meanwhile; it is tried again.",
                    40,
                ),
                condition("Running", "False", "QuotaExceeded", "Pods are missing.", 40),
            ],
        },
        workers=8,
    )
)
FAILED = Seen(
    job=job(
        "unet-cells",
        {
            "phase": "Failed",
            "ready": "0/4",
            "attempt": 1,
            "startTime": at(90),
            "completionTime": at(60),
            "conditions": [
                condition("Accepted", "True", "Valid", "The spec is valid.", 95),
                condition(
                    "Failed", "True", "ReplicaFailed", "unet-cells-worker-1 ended with exit code 70 (Error).", 60
                ),
                condition("Finished", "True", "Failed", "The job failed.", 60),
            ],
            "lastFailure": {
                "role": "worker",
                "index": 1,
                "cause": "OutOfMemory",
                "exitCode": 70,
                "message": "out of memory: OOM when allocating tensor with shape[512,64,224,224] on GPU:0",
                "action": "lower trainer.globalBatchSize, or ask for more memory",
            },
        },
        namespace="biology",
        globalBatchSize=4096,
    ),
    series=curves(end=800),
)
DONE = Seen(
    job=job(
        "resnet50-lr-04",
        {
            "phase": "Succeeded",
            "ready": "0/4",
            "attempt": 1,
            "startTime": at(180),
            "completionTime": at(20),
            "gpuTime": {"seconds": 76_000, "gpus": 0, "time": at(20)},
            "conditions": [
                condition("Accepted", "True", "Valid", "The spec is valid.", 185),
                condition("Succeeded", "True", "Succeeded", "All workers have succeeded.", 20),
                condition("Finished", "True", "Succeeded", "The job succeeded.", 20),
            ],
        },
        params={"learningRate": 0.4},
        globalBatchSize=2048,
    ),
    series=curves(pace=1.6, bumps=0.3, end=20_000),
)
ALL: Sequence[Seen] = (TRAINS, WAITS, FAILED, DONE)


class Planted:
    """A source of pages that has these jobs."""

    def __init__(self, seen: Sequence[Seen] = ALL) -> None:
        self.known = {f"{one.job['metadata']['namespace']}/{one.job['metadata']['name']}": one for one in seen}

    async def jobs(self) -> tuple[Mapping[str, Object], Sequence[str]]:
        return {key: one.job for key, one in self.known.items()}, []

    async def seen(self, key: str) -> Seen:
        return self.known[key]

    async def curves(self, key: str) -> Seen:
        return self.known[key]
