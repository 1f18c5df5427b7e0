"""status.digests: which images the pods of the attempt have their code and models from.

A tag may be moved, so that only its digest says what was run. The kubelets tell it of the init containers that copy,
and of image volumes where their server has ImageVolumeWithDigest.
"""

from __future__ import annotations

from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.status.builder import StatusBuilder


def update(builder: StatusBuilder, observed: ObservedPods) -> None:
    """What is told by now. Pods that have gone leave what they told."""
    pods = observed.pods.values()
    told = {"code": {pod.code_digest for pod in pods}, "models": {pod.models_digest for pod in pods}}
    found = {part: sorted(digests - {""}) for part, digests in told.items()}
    digests = {**(builder.fields.get("digests") or {}), **{part: names for part, names in found.items() if names}}
    builder.put("digests", digests or None)
