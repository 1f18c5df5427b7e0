"""status.digests: which images the pods of the attempt have their code and models from.

A tag may be moved, so that only its digest says what was run. The kubelets tell it of the init containers that copy,
and of image volumes where their server has ImageVolumeWithDigest.
"""

from __future__ import annotations

from typing import Final

from tfgpujob.core.observed.observed_pods import ObservedPods
from tfgpujob.core.status.builder import StatusBuilder

_MOST: Final = 16
"""Digests of a kind that are kept: more than one says already that a tag has moved."""


def update(builder: StatusBuilder, observed: ObservedPods) -> None:
    """What has been told in this attempt. Pods that have gone leave what they told, so that a moved tag stays seen."""
    pods = observed.pods.values()
    told = {"code": {pod.code_digest for pod in pods}, "models": {pod.models_digest for pod in pods}}
    before = builder.fields.get("digests") or {}
    known = {part: before.get(part) or [] for part in told}
    found = {part: [*known[part], *sorted(told[part] - {"", *known[part]})][:_MOST] for part in told}
    builder.put("digests", {part: sorted(digests) for part, digests in found.items() if digests} or None)
