"""What this release can't do yet. Each of these rules is deleted when the release that can arrives; nothing else
needs to change."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Cel, Job, JobRule
from tfgpujob.names import Strategy

_TRAINER_RUNS = (
    Strategy.ONE_DEVICE,
    Strategy.MIRRORED,
    Strategy.MULTI_WORKER_MIRRORED,
    Strategy.PARAMETER_SERVER,
)
_CHOICE = f"{', '.join(_TRAINER_RUNS[:-1])} or {_TRAINER_RUNS[-1]}"


def _trainer_strategy(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer is not None and not job.spec.predicts and job.spec.strategy not in _TRAINER_RUNS:
        yield Invalid(
            "spec.trainer",
            f"the bundled trainer can't run {job.spec.strategy} in this release",
            f"use {_CHOICE}, or remove spec.trainer and run your own image",
        )


RELEASE_LIMITS = (
    JobRule(
        "release.trainer-strategy",
        _trainer_strategy,
        cel=(
            Cel(
                at="spec",
                rule=f"!has(self.trainer) || {predicts('self.trainer')} || "
                f"self.strategy in [{', '.join(repr(str(strategy)) for strategy in _TRAINER_RUNS)}]",
                field="trainer",
                message=f"the bundled trainer can't run this strategy in this release; use {_CHOICE}, or remove "
                "spec.trainer and run your own image",
            ),
        ),
    ),
)
