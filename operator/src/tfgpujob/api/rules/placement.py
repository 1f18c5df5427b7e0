"""schedulingPolicy: the nodes that pods are placed on."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule

_FIELD = "spec.runPolicy.schedulingPolicy"
_FIX = "set topologyKey to the label of the nodes that they are to share, or remove topologyMode"


def _mode_of_nothing(job: Job) -> Iterator[Invalid]:
    policy = job.spec.run_policy.scheduling_policy
    if policy is not None and policy.topology_mode is not None and policy.topology_key is None:
        yield Invalid(f"{_FIELD}.topologyMode", "is set, and topologyKey is not", _FIX)


RULES = (
    JobRule(
        "placement.topology-mode",
        _mode_of_nothing,
        cel=(
            Cel(
                at=_FIELD,
                rule="!has(self.topologyMode) || has(self.topologyKey)",
                field="topologyMode",
                message=f"is set, and topologyKey is not; {_FIX}",
            ),
        ),
    ),
)
