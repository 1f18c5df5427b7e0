"""What a job may reach outside its pods. Refused by default; an administrator opens it, so only the operator knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Job, JobRule
from tfgpujob.api.rules.template import each_template
from tfgpujob.api.template import PodTemplate

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


RULES = (
    JobRule("access.host", _host, only_python=_BY_CONFIG),
    JobRule("access.service-account", _service_account, only_python=_BY_CONFIG),
)
