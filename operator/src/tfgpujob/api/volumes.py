"""spec.replicaSpecs.<role>.volumeClaimTemplates: a volume of its own for each replica, as in a StatefulSet."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from tfgpujob.api.base import Model, OpenModel, Quantity

MAX_CLAIM_TEMPLATES = 16


class WhenDeleted(StrEnum):
    """persistentVolumeClaimRetentionPolicy.whenDeleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ClaimMetadata(Model):
    """The name of the volume, and labels and annotations for the claims."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """The volume's name, which volumeMounts of the template refer to. The claim of a replica is NAME-<pod>, as in
    data-train-worker-0."""
    labels: dict[str, str] | None = None
    """Labels for the claims, besides the operator's own."""
    annotations: dict[str, str] | None = None
    """Annotations for the claims."""


class ClaimRequests(OpenModel):
    """What the volume must have."""

    storage: Quantity
    """The minimum size of the volume."""


class ClaimResources(OpenModel):
    """The volume's resources, as in a PersistentVolumeClaim."""

    requests: ClaimRequests
    """What the volume must have."""


class ClaimSpec(OpenModel):
    """The claims' spec, as in a PersistentVolumeClaim."""

    access_modes: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=8)]
    """How the volume may be mounted. ReadWriteOnce suits a volume that one pod uses."""
    resources: ClaimResources
    """The volume's resources."""


class ClaimTemplate(Model):
    """A PersistentVolumeClaim of which each replica gets its own."""

    metadata: ClaimMetadata
    """The name of the volume, and labels and annotations for the claims."""
    spec: ClaimSpec
    """The claims' spec."""

    @property
    def claim_spec(self) -> dict[str, Any]:
        """The spec as it was written."""
        return self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


class ClaimRetention(Model):
    """What happens to the claims of volumeClaimTemplates."""

    when_deleted: Annotated[WhenDeleted, Field(strict=False)] = WhenDeleted.RETAIN
    """When the job is deleted. Retain: they are kept, and a job of the same name finds them again. Delete: they are
    deleted with the job. Takes effect for claims that are created from then on. While the job exists they are always
    kept: after restarts, a suspension, its end, and those of workers removed by a resize."""
