"""Scheduler messages about pods without a node: which of them name what is missing, and which pod of a gang has the
best one. Also what is known of a pod that is not ready without a reason.

Under a gang scheduler all pods but one wait for the others, and each scheduler has its own message for that."""

from __future__ import annotations

import re
from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Pod

_NO_ROOM: Final = re.compile(r"\d nodes are (?:un)?available: ")
"""In the message about a pod that does not fit: `0/4 nodes are available: 4 Insufficient nvidia.com/gpu.` Volcano's
nodes are unavailable."""
_WAITS_FOR_GANG: Final = re.compile("sibling pods|gated pods|failed recently|rejection in |rejected due to timeout")
"""In a message of scheduler-plugins, of the same form, for a pod that only waits for the others of its gang."""


def names_what_lacks(message: str) -> bool:
    """True if the message names what a pod is missing."""
    return _NO_ROOM.search(message) is not None and _WAITS_FOR_GANG.search(message) is None


def silence(pod: Pod) -> str:
    """What is known of a pod that is not ready, without a reason; empty if it has a reason, has ended, or only waits
    for its peers."""
    if pod.waiting_reason or pod.deleting or pod.termination is not None or pod.running_init == names.GATE_CONTAINER:
        return ""
    if not pod.node:
        return "has no node, and no scheduler says why: is there a scheduler of that schedulerName?"
    if pod.status_reason:
        said = ": ".join(text for text in (pod.status_reason, pod.status_message.strip(". ")) if text)
        return f"is {pod.phase}: {said}."
    if pod.running_init:
        return f"still runs its init container {pod.running_init}."
    if pod.program_began and pod.phase == "Running":
        return "runs and is not ready: its readinessProbe does not pass."
    return (
        f"is on the node {pod.node}, and its containers are not created yet: images are being pulled, or a volume "
        "names a Secret, ConfigMap or claim that is not there."
    )
