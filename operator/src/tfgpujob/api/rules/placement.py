"""schedulingPolicy: the nodes that pods are placed on."""

from __future__ import annotations

from tfgpujob.api.rules.rule import Refusal, rules_of

RULES = rules_of(
    Refusal(
        "placement.topology-mode",
        of=lambda job: job.spec.run_policy.scheduling_policy,
        breaks=lambda policy: policy.topology_mode is not None and policy.topology_key is None,
        at="spec.runPolicy.schedulingPolicy",
        field="topologyMode",
        cel="!has(self.topologyMode) || has(self.topologyKey)",
        problem="is set, and topologyKey is not",
        fix="set topologyKey to the label of the nodes that they are to share, or remove topologyMode",
    ),
)
