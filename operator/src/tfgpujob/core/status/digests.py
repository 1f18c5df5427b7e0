"""status.digests: the images that the pods of the attempt have their code and models from.

A tag may be moved, so only its digest identifies what was run. The kubelets report it for init containers that copy,
and for image volumes if their server has ImageVolumeWithDigest.
"""

from __future__ import annotations

from typing import Final

from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.status.builder import StatusBuilder

_MOST: Final = 16
"""Maximum of digests of a kind that are kept: two already show that a tag was moved."""


def update(builder: StatusBuilder, observed: ObservedPods) -> None:
    """Add what was reported in this attempt. Digests of deleted pods are kept, so that a moved tag stays visible."""
    pods = observed.pods.values()
    told = {"code": {pod.code_digest for pod in pods}, "models": {pod.models_digest for pod in pods}}
    before = builder.fields.get("digests") or {}
    known = {part: before.get(part) or [] for part in told}
    found = {part: [*known[part], *sorted(told[part] - {"", *known[part]})][:_MOST] for part in told}
    builder.put("digests", {part: sorted(digests) for part, digests in found.items() if digests} or None)
