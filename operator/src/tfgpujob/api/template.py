"""The parts of a pod template that rules read. The rest is kept as given and checked by Kubernetes when the pod is
created."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from tfgpujob.api.base import PRESERVE, OpenModel, value_at
from tfgpujob.names import CONTAINER

AnyObject = Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE: True})]
ShortText = Annotated[str, Field(max_length=253)]
MAX_CONTAINERS = 64


class TemplateMetadata(OpenModel):
    """Labels and annotations for the pods. The operator names the pods."""

    name: ShortText | None = None
    """Not allowed: the operator names the pods <job>-<role>-<index>."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for the pods, besides the operator's own."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations for the pods."""


class EnvVar(OpenModel):
    """An environment variable, as in a Pod."""

    name: str
    """Name of the variable. The operator sets TF_CONFIG and its own TFGPU_ variables."""


class SecurityContext(OpenModel):
    """The container's security context, as in a Pod."""

    privileged: bool | None = None
    """Refused unless an administrator allows host access in this namespace."""


class Container(OpenModel):
    """A container, as in a Pod. The one named `tensorflow` is the training process."""

    name: ShortText
    """Name of the container."""
    image: str | None = None
    """Image of the container. For `tensorflow`, spec.image or the bundled trainer's if absent."""
    command: list[str] | None = None
    """Command to run. For `tensorflow`, not together with spec.trainer."""
    args: list[str] | None = None
    """Arguments. For `tensorflow`, not together with spec.trainer."""
    env: list[EnvVar] = Field(default_factory=list)
    """Environment variables."""
    security_context: SecurityContext | None = None
    """Security settings of the container."""


class Volume(OpenModel):
    """A volume, as in a Pod."""

    name: str
    """Name of the volume."""
    host_path: AnyObject | None = None
    """Refused unless an administrator allows host access in this namespace."""


class PodSpec(OpenModel):
    """A pod's spec, as in a Pod. Optional: image, command and GPUs have defaults."""

    restart_policy: ShortText | None = None
    """Leave it out, or set Never: replicaSpecs.<role>.restartPolicy decides whether a replica restarts."""
    hostname: ShortText | None = None
    """Not allowed: the operator sets it to the pod's name, by which the other replicas find it."""
    subdomain: ShortText | None = None
    """Not allowed: the operator sets it to the job's name, by which the other replicas find it."""
    service_account_name: str | None = None
    """ServiceAccount of the pods. An administrator may restrict which ones jobs may use."""
    service_account: str | None = None
    """Old name of serviceAccountName."""
    host_network: bool | None = None
    """Refused unless an administrator allows host access in this namespace."""
    host_pid: Annotated[bool | None, Field(alias="hostPID")] = None
    """Refused unless an administrator allows host access in this namespace."""
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    """Refused unless an administrator allows host access in this namespace."""
    containers: Annotated[list[Container], Field(max_length=MAX_CONTAINERS)] = Field(default_factory=list)
    """Containers of the pod. The one named `tensorflow` is the training process; it is added if missing, when
    spec.trainer or spec.image sets what it runs."""
    init_containers: Annotated[list[Container], Field(max_length=MAX_CONTAINERS)] = Field(default_factory=list)
    """Containers that run before the others."""
    volumes: list[Volume] = Field(default_factory=list)
    """Volumes of the pod."""

    def training_container(self) -> tuple[str, Container] | None:
        """The container named `tensorflow`, with its place."""
        return next((f for f in self.each_container() if f[1].name == CONTAINER and f[0][0] == "c"), None)

    def each_container(self) -> Iterator[tuple[str, Container]]:
        """All containers with their place: `containers[0]`, `initContainers[1]`."""
        for index, container in enumerate(self.containers):
            yield f"containers[{index}]", container
        for index, container in enumerate(self.init_containers):
            yield f"initContainers[{index}]", container


class PodTemplate(OpenModel):
    """A PodTemplateSpec, to which the operator adds its own fields."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)
    """Labels and annotations for the pods."""
    spec: PodSpec = Field(default_factory=PodSpec)
    """The pods' spec."""


def part(model: OpenModel, *keys: str) -> Any:
    """The template's value at these keys, which no model declares; None if it is absent or has another type."""
    return value_at(model.model_extra, *keys)


def items(model: OpenModel, *keys: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list at these keys, with their indexes."""
    found = part(model, *keys)
    if isinstance(found, list):
        yield from ((index, item) for index, item in enumerate(found) if isinstance(item, Mapping))


def read_template(template: Mapping[str, Any]) -> PodTemplate:
    """Raises pydantic's ValidationError, with locations below the template."""
    return PodTemplate.model_validate(template, by_alias=True, by_name=False)


def without_empty(value: Any) -> Any:
    """A copy without the keys of mappings that have no value. A value without such keys is returned itself."""
    if isinstance(value, Mapping):
        kept = {key: without_empty(item) for key, item in value.items() if item is not None}
        return value if len(kept) == len(value) and all(kept[key] is value[key] for key in kept) else kept
    if isinstance(value, list):
        items = [without_empty(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    return value
