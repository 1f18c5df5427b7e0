"""What a job asks for and this cluster, or this installation of the operator, does not have. It is told before anything
is created, and not again once the job is accepted."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api import Invalid, JobSpec
from tfgpujob.core.observed.gang import unserved_gang
from tfgpujob.core.observed.snapshot import Config


def unserved(spec: JobSpec, config: Config) -> Iterator[Invalid]:
    gang = unserved_gang(spec, config)
    if gang is not None:
        yield gang
    yield from _volume_claims(spec, config)


def _volume_claims(spec: JobSpec, config: Config) -> Iterator[Invalid]:
    for role, replica in spec.replica_specs.items():
        if replica.volume_claim_templates and not config.volume_claims:
            yield Invalid(
                f"spec.replicaSpecs.{role}.volumeClaimTemplates",
                "this operator has no right to create PersistentVolumeClaims",
                "have an administrator set volumeClaims.enabled in the chart, or create the claims yourself and name "
                "them in the volumes of the template",
            )
