"""spec.managedBy, and runPolicy.managedBy, where a TFJob has it: the controller that manages the job."""

from __future__ import annotations

from tfgpujob.api.rules.rule import Refusal, rules_of
from tfgpujob.names import MULTIKUEUE

_ABSENT = "!has(self.runPolicy) || !has(self.runPolicy.managedBy)"
RULES = rules_of(
    Refusal(
        "manager.one",
        of=lambda job: job.spec,
        breaks=lambda spec: len({spec.managed_by, spec.run_policy.managed_by} - {None}) > 1,
        at="spec",
        field="runPolicy.managedBy",
        cel=f"!has(self.managedBy) || {_ABSENT} || self.managedBy == self.runPolicy.managedBy",
        problem="spec.managedBy names another controller",
        fix="remove one of both",
    ),
    Refusal(
        "manager.where-it-is-read",
        of=lambda job: job.spec.run_policy.managed_by,
        breaks=lambda managed_by: managed_by == MULTIKUEUE,
        at="spec",
        field="runPolicy.managedBy",
        cel=f"{_ABSENT} || self.runPolicy.managedBy != '{MULTIKUEUE}'",
        problem="MultiKueue reads spec.managedBy, not this",
        fix="write it there instead",
    ),
)
