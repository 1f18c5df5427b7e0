"""The phases of a training process, as GET /progress reports them."""

from __future__ import annotations

STARTING = "starting"
PEERS = "waiting for peers"
"""Until the names of all peers resolve, for as long as pods may take to start."""

CACHING = "caching"
TRAINING = "training"
EVALUATING = "evaluating"
SAVING = "saving"
PREDICTING = "predicting"
EXPORTING = "exporting"
WAITING = "waiting"
"""An evaluator between two checkpoints, for as long as the training takes; a serving process that was asked to stop,
until the end of a step."""

SERVING = "serving"
"""A worker or parameter server under ParameterServer: it serves the chief's requests, for any time, and sends
heartbeats meanwhile."""

SCRIPT = "running the script"
"""What a plain script does between its calls of fit(), evaluate() and predict(), for any time."""
