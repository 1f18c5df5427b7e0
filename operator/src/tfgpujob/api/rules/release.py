"""Features that this release does not have yet. The release that adds one deletes its rule; nothing else changes."""

from __future__ import annotations

from tfgpujob.api.rules.predict import predicts
from tfgpujob.api.rules.rule import Refusal, rules_of, strategy_in
from tfgpujob.api.strategies import having, listed

_TRAINER_RUNS = having(lambda traits: traits.trainer_trains)


RELEASE_LIMITS = rules_of(
    Refusal(
        "release.trainer-strategy",
        of=lambda job: job.spec if job.spec.trainer and not job.spec.predicts else None,
        breaks=lambda spec: not spec.traits.trainer_trains,
        at="spec",
        field="trainer",
        cel=f"!has(self.trainer) || {predicts('self.trainer')} || {strategy_in(_TRAINER_RUNS)}",
        shows=lambda spec: str(spec.strategy),
        problem="is a strategy that the bundled trainer can't run in this release",
        fix=f"use {listed(_TRAINER_RUNS, 'or')}, or remove spec.trainer and run your own image",
    ),
)
