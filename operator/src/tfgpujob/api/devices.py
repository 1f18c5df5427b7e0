"""spec.gpu.claim: GPUs by a resource claim (dynamic resource allocation) in place of an extended resource."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tfgpujob.api.base import Model, ObjectName, Text

MAX_SELECTORS: Final = 32
MAX_ALTERNATIVES: Final = 8
"""Both as Kubernetes bounds them."""
MAX_CLAIMED: Final = 64

Selectors = Annotated[list[Text], Field(min_length=1, max_length=MAX_SELECTORS)]


class DeviceAlternative(Model):
    """One of several kinds of GPU that would do."""

    device_class_name: ObjectName
    """The DeviceClass of the GPUs."""
    selectors: Selectors | None = None
    """CEL expressions about a device, all of which must hold: device.attributes["gpu.nvidia.com"].type == "mig"."""


class DeviceClaim(Model):
    """spec.gpu.claim."""

    template_name: ObjectName | None = None
    """A ResourceClaimTemplate of the job's namespace, by which each pod gets a claim of its own."""
    device_class_name: ObjectName | None = None
    """The DeviceClass of the GPUs, as gpu.nvidia.com or mig.nvidia.com. The operator makes the template."""
    selectors: Selectors | None = None
    """With deviceClassName: CEL expressions about a device, all of which must hold, such as
    device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0."""
    first_available: Annotated[list[DeviceAlternative], Field(min_length=1, max_length=MAX_ALTERNATIVES)] | None = None
    """Kinds of GPU of which the first that is free is taken: a whole GPU, else a slice."""
    count: Annotated[int, Field(ge=1, le=MAX_CLAIMED)] | None = None
    """GPUs, or slices, that each pod gets by its claim. Absent: 1. With templateName it must be said, since the
    operator does not read the template."""
