"""What a job may reach outside its pods. Refused by default; an administrator opens it, so only the operator knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Job, JobRule
from tfgpujob.api.rules.template import each_template
from tfgpujob.api.template import PodTemplate, items, part

_DEFAULT: Final = "default"
"""The ServiceAccount of a pod that names none."""
_ASK: Final = "remove it, or ask an administrator to allow host access in this namespace"
_BY_CONFIG: Final = "an administrator opens it by namespace in the operator's settings, which CEL can't see"


def host_access(template: PodTemplate, path: str) -> Iterator[Invalid]:
    """Host namespaces, host paths and privileged containers in the template; `path` is where it stands."""
    spec = template.spec
    switches = {"hostNetwork": spec.host_network, "hostPID": spec.host_pid, "hostIPC": spec.host_ipc}
    for name, on in switches.items():
        if on:
            yield Invalid(f"{path}.spec.{name}", "gives the pod a namespace of its node", _ASK)
    for index, volume in enumerate(spec.volumes):
        if volume.host_path is not None:
            yield Invalid(f"{path}.spec.volumes[{index}].hostPath", "gives the pod files of its node", _ASK)
    for place, container in spec.each_container():
        if container.security_context is not None and container.security_context.privileged:
            field = f"{path}.spec.{place}.securityContext.privileged"
            yield Invalid(field, "gives the container all rights on its node", _ASK)


def _host(job: Job) -> Iterator[Invalid]:
    if not job.allow_host:
        yield from each_template(host_access)(job)


def _service_account(job: Job) -> Iterator[Invalid]:
    allowed = job.allowed_service_accounts
    if allowed is None:
        return
    for role, template in job.templates.items():
        names = {
            "serviceAccountName": template.spec.service_account_name,
            "serviceAccount": template.spec.service_account,
        }
        for key, account in names.items():
            if account and account not in allowed:
                fix = f"use one of {', '.join(sorted(allowed))}" if allowed else "remove it: none is allowed here"
                field = f"spec.replicaSpecs.{role}.template.spec.{key}"
                yield Invalid(field, f"jobs may not use the ServiceAccount {account!r}", fix)
        token = _token(template, f"spec.replicaSpecs.{role}.template")
        if token and not any(names.values()) and _DEFAULT not in allowed:
            problem = f"gives the pod a token of the ServiceAccount {_DEFAULT!r}, which jobs may not use"
            yield Invalid(token, problem, f"remove it, or name one of {', '.join(sorted(allowed)) or 'those allowed'}")


def _token(template: PodTemplate, path: str) -> str:
    """Where the template asks for a token. Without one, the account that a pod runs as opens nothing to it."""
    if part(template.spec, "automountServiceAccountToken"):
        return f"{path}.spec.automountServiceAccountToken"
    for index, volume in enumerate(template.spec.volumes):
        if any("serviceAccountToken" in source for _, source in items(volume, "projected", "sources")):
            return f"{path}.spec.volumes[{index}].projected"
    return ""


RULES = (
    JobRule("access.host", _host, only_python=_BY_CONFIG),
    JobRule("access.service-account", _service_account, only_python=_BY_CONFIG),
)
