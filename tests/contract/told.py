"""The trainer's input and reports, with every field."""

from __future__ import annotations

from typing import Any

FULL: dict[str, Any] = {
    "entrypoint": "train.py",
    "params": {"units": 64, "lr": 0.001, "layers": [1, 2], "name": "größer", "nested": {"a": None}},
    "args": ["--epochs", "5", ""],
    "mode": "train",
    "predict": {"partRows": 1000},
    "globalBatchSize": 96,
    "accumulate": 3,
    "precision": "mixed_bfloat16",
    "jit": "replica",
    "allReduce": "float16",
    "communication": "Ring",
    "recompute": ["block_*"],
    "classWeights": {"0": 1, "1": 8.5},
    "steps": 5_000_000_000,
    "seed": 7,
    "deterministic": True,
    "allowCoupledLoss": True,
    "remainder": "drop",
    "data": {"cache": "disk", "shuffleWindow": 100, "parallelReads": 2},
    "profile": {"steps": [5, 8], "worker": 1},
    "initialWeights": "/data/pretrained.keras",
    "newLayers": ["head*"],
    "export": {"savedModel": True, "tflite": True, "int8": True},
    "code": {"volume": {"claimName": "code", "subPath": "src"}},
    "models": {"image": "example.com/models:1"},
    "requirements": ["einops==0.8.1", "-r requirements.txt"],
    "output": {"directory": "/results", "claim": "out", "subPath": "run/a", "store": "s3://models/digits"},
    "checkpoint": {"everySteps": 100, "everyEpochs": 2, "everySeconds": 60, "keep": 5},
    "evaluate": {"everyEpochs": 3, "everySteps": 50},
    "best": {"monitor": "accuracy", "mode": "max", "minDelta": 0.01, "patience": 4, "restore": False},
    "logEverySeconds": 30,
    "watchdog": {"startupSeconds": 900, "stepSeconds": 60},
}

TOLD: dict[str, Any] = {
    "phase": "training",
    "step": 1200,
    "steps": 9000,
    "epoch": 3,
    "epochs": 20,
    "loss": 0.31,
    "examplesPerSecond": 5120,
    "inputWait": 0.02,
    "stepSeconds": 0.025,
    "waitsForPeers": False,
    "idleSeconds": 7,
    "lastCheckpoint": {"step": 1000, "directory": "/output/c", "time": "2026-01-02T03:04:05Z"},
}
