"""What goes when a job is over: runPolicy.cleanPodPolicy.

Auto      everything that still runs, and parameter servers and evaluators altogether; finished chiefs and workers
          stay, for their logs
Running   everything that still runs
All       every pod
None      nothing
"""

from __future__ import annotations

from tfgpujob.api import CleanPodPolicy
from tfgpujob.core.observed.observed_pods import has_ended
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.names import Role

_ONLY_SERVE = frozenset({str(Role.PS), str(Role.EVALUATOR)})


def pods_to_clean(policy: CleanPodPolicy, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """`pods`: the job's own, of any attempt. Those that are going already are left out."""
    return tuple(pod for pod in pods if not pod.deleting and _goes(policy, pod))


def _goes(policy: CleanPodPolicy, pod: Pod) -> bool:
    if policy is CleanPodPolicy.NONE:
        return False
    if policy is CleanPodPolicy.ALL or not has_ended(pod):
        return True
    return policy is CleanPodPolicy.AUTO and pod.role in _ONLY_SERVE
