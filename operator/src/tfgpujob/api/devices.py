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
    """One of several acceptable kinds of GPU."""

    device_class_name: ObjectName
    """The DeviceClass of the GPUs."""
    selectors: Selectors | None = None
    """CEL expressions about a device, all of which must be true: device.attributes["gpu.nvidia.com"].type == "mig"."""


class DeviceClaim(Model):
    """spec.gpu.claim."""

    template_name: ObjectName | None = None
    """A ResourceClaimTemplate in the job's namespace, from which each pod gets a claim of its own."""
    device_class_name: ObjectName | None = None
    """The DeviceClass of the GPUs, as gpu.nvidia.com or mig.nvidia.com. The operator creates the template."""
    selectors: Selectors | None = None
    """With deviceClassName: CEL expressions about a device, all of which must be true, such as
    device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0."""
    first_available: Annotated[list[DeviceAlternative], Field(min_length=1, max_length=MAX_ALTERNATIVES)] | None = None
    """Kinds of GPU in order of preference, such as a whole GPU, else a slice. Each pod gets the first kind that is
    available."""
    count: Annotated[int, Field(ge=1, le=MAX_CLAIMED)] | None = None
    """GPUs, or slices, that each pod gets by its claim. Absent: 1. Required with templateName, because the operator
    does not read the template."""
