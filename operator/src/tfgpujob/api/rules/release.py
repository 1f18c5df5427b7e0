"""Features that this release does not have yet. The release that adds one deletes its rule; nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Cel, Job, JobRule, strategy_in
from tfgpujob.api.strategies import having, listed

_TRAINER_RUNS = having(lambda traits: traits.trainer_trains)
_CHOICE = listed(_TRAINER_RUNS, "or")


def _trainer_strategy(job: Job) -> Iterator[Invalid]:
    if job.spec.trainer is not None and not job.spec.predicts and not job.spec.traits.trainer_trains:
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
                rule=f"!has(self.trainer) || {predicts('self.trainer')} || {strategy_in(_TRAINER_RUNS)}",
                field="trainer",
                message=f"the bundled trainer can't run this strategy in this release; use {_CHOICE}, or remove "
                "spec.trainer and run your own image",
            ),
        ),
    ),
)
