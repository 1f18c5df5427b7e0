"""schedulingPolicy.topologyKey: the pods of an attempt in one rack, block or zone, by pod affinity."""

from __future__ import annotations

from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import SchedulingPolicy, TopologyMode
from tfgpujob.names import Role

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_HEAVIEST: Final = 100


def add_topology(pod_spec: dict[str, Any], policy: SchedulingPolicy | None, labels: dict[str, str]) -> None:
    """`labels`: the pod's own. The scheduler may place the first pod of a group with affinity to itself anywhere.

    Evaluators are excluded: the gang must not follow one to nodes without enough capacity.
    """
    if policy is None or policy.topology_key is None or labels[names.LABEL_REPLICA_TYPE] == Role.EVALUATOR:
        return
    same = (names.LABEL_JOB_NAME, names.LABEL_ATTEMPT)
    others = {"key": names.LABEL_REPLICA_TYPE, "operator": "NotIn", "values": [str(Role.EVALUATOR)]}
    term = {
        "labelSelector": {"matchLabels": {key: labels[key] for key in same}, "matchExpressions": [others]},
        "topologyKey": policy.topology_key,
    }
    required = policy.topology_mode is TopologyMode.REQUIRED
    key, added = (_REQUIRED, term) if required else (_PREFERRED, {"weight": _HEAVIEST, "podAffinityTerm": term})
    affinity: dict[str, Any] = pod_spec.setdefault("affinity", {})
    near: dict[str, Any] = affinity.setdefault("podAffinity", {})
    near[key] = [*near.get(key, []), added]
