"""What a job may access outside its pods. Refused by default; an administrator permits it, so only the operator checks
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tfgpujob.api.base import value_at
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules import host
from tfgpujob.api.rules.rule import Job, JobRule
from tfgpujob.api.template import PodTemplate, items, part

_DEFAULT: Final = "default"
"""The ServiceAccount of a pod that sets none."""
_TOKEN_KEY: Final = "token"  # noqa: S105 - the key, not the token
"""Key of the token in a Secret of type kubernetes.io/service-account-token."""
_BY_CONFIG: Final = "an administrator opens it by namespace in the operator's settings, which CEL can't see"


def _host(job: Job) -> Iterator[Invalid]:
    if job.allow_host:
        return
    for role, replica in job.spec.replica_specs.items():
        path = f"spec.replicaSpecs.{role}.template"
        yield from host.host_access(replica.template or {}, path, restricted=job.restricted)
    policy = job.spec.run_policy.scheduling_policy
    if policy is not None:
        yield from host.system_priority(policy.priority_class, "spec.runPolicy.schedulingPolicy.priorityClass")


def _service_account(job: Job) -> Iterator[Invalid]:
    allowed = job.allowed_service_accounts
    if allowed is None:
        return
    use = f"use one of {', '.join(sorted(allowed))}" if allowed else "ask an administrator to allow one here"
    for role in (role for role, _ in job.spec.replica_specs.items()):
        template = job.templates.get(role) or PodTemplate()
        path = f"spec.replicaSpecs.{role}.template.spec"
        names = {
            "serviceAccountName": template.spec.service_account_name,
            "serviceAccount": template.spec.service_account,
        }
        for key, account in names.items():
            if account and account not in allowed:
                yield Invalid(f"{path}.{key}", f"jobs may not use the ServiceAccount {account!r}", use)
        if not any(names.values()) and _DEFAULT not in allowed:
            # Also without its token: clouds grant a pod the rights of its ServiceAccount by name.
            problem = f"is missing: the pods would run as {_DEFAULT!r}, which jobs may not use"
            yield Invalid(f"{path}.serviceAccountName", problem, use)
        for field in _token_secrets(template, path):
            problem = f"may give the pod the {_TOKEN_KEY!r} of a Secret, which can be another ServiceAccount's"
            yield Invalid(field, problem, f"name the keys that it needs, none of them {_TOKEN_KEY!r}")


def _token_secrets(template: PodTemplate, path: str) -> Iterator[str]:
    """Where the template uses a Secret without excluding a token.

    The operator may not read Secrets, and need not: only the API server creates token Secrets, always with this key.
    """
    for index, volume in enumerate(template.spec.volumes):
        if _has_token(part(volume, "secret")):
            yield f"{path}.volumes[{index}].secret"
        for number, source in items(volume, "projected", "sources"):
            if _has_token(source.get("secret")):
                yield f"{path}.volumes[{index}].projected.sources[{number}].secret"
    for place, container in template.spec.each_container():
        for index, source in items(container, "envFrom"):
            if source.get("secretRef") is not None:
                yield f"{path}.{place}.envFrom[{index}].secretRef"
        for index, variable in enumerate(container.env):
            if part(variable, "valueFrom", "secretKeyRef", "key") == _TOKEN_KEY:
                yield f"{path}.{place}.env[{index}].valueFrom.secretKeyRef"


_OF_A_CLAIM: Final = frozenset(
    ("accessModes", "resources", "storageClassName", "volumeMode", "volumeAttributesClassName", "dataSource")
)
"""Fields that a claim may have: it requests a new volume, or a copy of a volume in its namespace."""
_CLUSTERS_OWN: Final = ("kubernetes.io", "k8s.io")


def _claims(job: Job) -> Iterator[Invalid]:
    """Claims are created with the operator's rights, or for a pod that it creates, so a user without them could bind
    volumes of others."""
    for path, claim in _claims_of(job) if not job.allow_host else ():
        for key, value in _fields(claim, "spec").items():
            within = key == "dataSourceRef" and isinstance(value, Mapping) and not value.get("namespace")
            if value is not None and key not in _OF_A_CLAIM and not within:
                problem = "may bind or copy a volume that is not the job's"
                yield Invalid(f"{path}.spec.{key}", problem, f"remove it, {host.ASK}")
        for key in _fields(claim, "metadata", "annotations"):
            if str(key).partition("/")[0].endswith(_CLUSTERS_OWN):
                problem = "is the cluster's own, by which it places and binds volumes"
                yield Invalid(f"{path}.metadata.annotations[{key}]", problem, f"remove it, {host.ASK}")


def _claims_of(job: Job) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Its templates of claims, and those of ephemeral volumes."""
    for role, replica in job.spec.replica_specs.items():
        path = f"spec.replicaSpecs.{role}"
        for index, claim in enumerate(replica.volume_claim_templates or ()):
            metadata = {"annotations": claim.metadata.annotations}
            yield f"{path}.volumeClaimTemplates[{index}]", {"spec": claim.claim_spec, "metadata": metadata}
    for role, template in job.templates.items():
        for index, volume in enumerate(template.spec.volumes):
            found = part(volume, "ephemeral", "volumeClaimTemplate")
            if isinstance(found, Mapping):
                path = f"spec.replicaSpecs.{role}.template.spec.volumes[{index}].ephemeral.volumeClaimTemplate"
                yield path, found


def _fields(value: object, *keys: str) -> Mapping[str, Any]:
    found = value_at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def _has_token(source: Any) -> bool:
    """True if a Secret as a volume exposes the file with its token, as it does when no keys are listed."""
    if source is None:
        return False
    keys = source.get("items") if isinstance(source, Mapping) else None
    named = [item.get("key") for item in keys if isinstance(item, Mapping)] if isinstance(keys, list) else []
    return not named or _TOKEN_KEY in named


RULES = (
    JobRule("access.host", _host, only_python=_BY_CONFIG),
    JobRule("access.claims", _claims, only_python=_BY_CONFIG),
    JobRule("access.service-account", _service_account, only_python=_BY_CONFIG),
)
