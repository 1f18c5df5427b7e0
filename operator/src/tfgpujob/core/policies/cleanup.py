"""Which pods are deleted when a job is over: spec.runPolicy.cleanPodPolicy.

Auto      pods that still run, and parameter servers and evaluators in any state; finished chiefs and workers stay,
          for their logs
Running   pods that still run
All       every pod
None      no pod

A pod still runs while any of its containers does, whatever has become of its program: it holds its GPUs.
"""

from __future__ import annotations

from tfgpujob.api import CleanPodPolicy
from tfgpujob.core.observed.observed_pods import holds_node
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.names import Role

_NO_LOGS_TO_KEEP = frozenset({str(Role.PS), str(Role.EVALUATOR)})


def pods_to_clean(policy: CleanPodPolicy, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """`pods`: the job's own, of any attempt. Terminating ones are left out."""
    return tuple(pod for pod in pods if not pod.deleting and _is_cleaned(policy, pod))


def _is_cleaned(policy: CleanPodPolicy, pod: Pod) -> bool:
    if policy is CleanPodPolicy.NONE:
        return False
    if policy is CleanPodPolicy.ALL or holds_node(pod):
        return True
    return policy is CleanPodPolicy.AUTO and pod.role in _NO_LOGS_TO_KEEP
