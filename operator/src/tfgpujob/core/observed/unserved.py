"""What a job requests and this cluster, or this installation of the operator, does not have. Checked before anything is
created, and not again once the job is accepted."""

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
    yield from _device_claim(spec, config)


def _volume_claims(spec: JobSpec, config: Config) -> Iterator[Invalid]:
    for role, replica in spec.replica_specs.items():
        if replica.volume_claim_templates and not config.volume_claims:
            yield Invalid(
                f"spec.replicaSpecs.{role}.volumeClaimTemplates",
                "this operator has no right to create PersistentVolumeClaims",
                "have an administrator set volumeClaims.enabled in the chart, or create the claims yourself and name "
                "them in the volumes of the template",
            )


def _device_claim(spec: JobSpec, config: Config) -> Iterator[Invalid]:
    """A server without device allocation silently drops the claim from a pod, which then has no GPU."""
    if spec.gpu.claim is None:
        return
    if config.device_template is None:
        yield Invalid(
            "spec.gpu.claim",
            "this cluster serves no ResourceClaimTemplates of resource.k8s.io/v1 or v1beta2, by which devices are "
            "claimed",
            "remove it and set spec.gpu.resourceName and spec.gpu.perReplica; or use Kubernetes 1.34 or later, and "
            "restart the operator",
        )
    elif spec.gpu.claim.template_name is None and not config.device_claims:
        yield Invalid(
            "spec.gpu.claim",
            "this operator has no right to create ResourceClaimTemplates",
            "create one yourself and name it in templateName, or have an administrator set deviceClaims.enabled in "
            "the chart",
        )
