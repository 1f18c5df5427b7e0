"""A training log of a run of several workers."""

from __future__ import annotations

from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.reporting.timing import WorkerTimes
from tfgpujob_trainer.reporting.training_log import TrainingLog


def progress_of(*workers, one_machine=False):
    return TrainingLog(
        steps=10,
        epochs=2,
        log_every_seconds=1,
        input_fix="do this",
        run_status=RunStatus(),
        workers=WorkerTimes(workers),
        one_machine=one_machine,
    )
