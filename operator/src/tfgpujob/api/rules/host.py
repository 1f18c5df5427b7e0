"""Host access: the controls of Pod Security "baseline" (Kubernetes 1.34), one a row, and what keeps a pod away from the
scheduler's and the system's own fields.

Checked by the operator because it creates the pods: in a namespace without Pod Security nothing else checks them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tfgpujob.api.base import value_at
from tfgpujob.api.invalid import Invalid

ASK: Final = "or ask an administrator to allow host access in this namespace"
CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


class OneOf(NamedTuple):
    """Accepts only these values."""

    values: tuple[Any, ...]

    def __call__(self, value: Any) -> bool:
        return any(type(value) is type(known) and value == known for known in self.values)

    def cel(self, value: str) -> str:
        """The CEL expression for it; `value` is CEL too."""
        return f"{value} in {json.dumps(self.values)}" if self.values else "false"


class NotOneOf(NamedTuple):
    """Accepts all values but these."""

    values: tuple[Any, ...]

    def __call__(self, value: Any) -> bool:
        return not OneOf(self.values)(value)

    def cel(self, value: str) -> str:
        """The CEL expression for it; `value` is CEL too."""
        return f"!({OneOf(self.values).cel(value)})"


class NotBeginning(NamedTuple):
    """Accepts strings that don't begin with this."""

    prefix: str

    def __call__(self, value: Any) -> bool:
        return isinstance(value, str) and not value.startswith(self.prefix)

    def cel(self, value: str) -> str:
        return f"!{value}.startsWith({json.dumps(self.prefix)})"


class NotNamed(NamedTuple):
    """Accepts environment variables that have none of these names, or literally one of these values."""

    names: tuple[str, ...]
    values: tuple[str, ...]

    def __call__(self, value: Any) -> bool:
        if not isinstance(value, dict) or value.get("name") not in self.names:
            return True
        return value.get("valueFrom") is None and (value.get("value") or "") in self.values

    def cel(self, value: str) -> str:
        """The CEL expression for it; `value` is CEL too."""
        plain = f"(!has({value}.valueFrom) || {value}.valueFrom == null)"
        passes = f"(!has({value}.value) || {value}.value == null || {value}.value in {json.dumps(self.values)})"
        return f"(!({value}.name in {json.dumps(self.names)}) || {plain} && {passes})"


@dataclass(frozen=True, slots=True)
class Control:
    """One control: the fields below the pod's spec that it reads, and the values that it accepts. An absent field
    passes.
    """

    name: str
    paths: tuple[str, ...]
    """`*` is each item of a list. `container.` is every container of any kind."""
    allowed: OneOf | NotOneOf | NotBeginning | NotNamed
    problem: str
    fix: str = "remove it"


def _one_of(*values: Any) -> OneOf:
    return OneOf(values)


def _secured(path: str) -> tuple[str, ...]:
    """A field of the pod's security context and of each container's."""
    return f"securityContext.{path}", f"container.securityContext.{path}"


_PAST_SCHEDULER: Final = "gives the container devices of its node past the scheduler"
_ASK_FOR_GPUS: Final = "remove it, and ask for GPUs by replicaSpecs.<role>.gpus"
_OFF: Final = _one_of(False)
_PROFILES: Final = _one_of("", "RuntimeDefault", "Localhost")
_CAPABILITIES: Final = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
_SYSCTLS: Final = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
)
_HANDLERS: Final = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")

CONTROLS: Final = (
    Control("host process", _secured("windowsOptions.hostProcess"), _OFF, "gives the container all rights on its node"),
    Control("host namespaces", ("hostNetwork", "hostPID", "hostIPC"), _OFF, "gives the pod a namespace of its node"),
    Control(
        "privileged", ("container.securityContext.privileged",), _OFF, "gives the container all rights on its node"
    ),
    Control(
        "capabilities",
        ("container.securityContext.capabilities.add.*",),
        _one_of(*_CAPABILITIES),
        "gives the container a right over its node or other pods",
    ),
    Control("host path", ("volumes.*.hostPath",), _one_of(), "gives the pod files of its node"),
    Control("host ports", ("container.ports.*.hostPort",), _one_of(0), "takes a port of its node"),
    Control(
        "host probes",
        tuple(f"container.{handler}.{action}.host" for handler in _HANDLERS for action in ("httpGet", "tcpSocket")),
        _one_of(""),
        "makes the kubelet connect to another host than the pod",
    ),
    Control("AppArmor", _secured("appArmorProfile.type"), _PROFILES, "takes the container out of AppArmor"),
    Control(
        "SELinux type",
        _secured("seLinuxOptions.type"),
        _one_of("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"),
        "gives the container a type of SELinux that is none of a container",
    ),
    Control(
        "SELinux user and role",
        (*_secured("seLinuxOptions.user"), *_secured("seLinuxOptions.role")),
        _one_of(""),
        "gives the container a user or a role of SELinux",
    ),
    Control("proc mount", ("container.securityContext.procMount",), _one_of("Default"), "bares /proc to the container"),
    Control("seccomp", _secured("seccompProfile.type"), _PROFILES, "takes the container out of seccomp"),
    Control(
        "sysctls", ("securityContext.sysctls.*.name",), _one_of(*_SYSCTLS), "changes the kernel's settings on its node"
    ),
    Control(
        "devices by name",
        ("container.env.*",),
        NotNamed(
            (
                "NVIDIA_VISIBLE_DEVICES",
                "NVIDIA_IMEX_CHANNELS",
                "NVIDIA_MIG_CONFIG_DEVICES",
                "NVIDIA_MIG_MONITOR_DEVICES",
                "AMD_VISIBLE_DEVICES",
                "ASCEND_VISIBLE_DEVICES",
                "HABANA_VISIBLE_DEVICES",
            ),
            ("", "none", "void"),
        ),
        _PAST_SCHEDULER,
        _ASK_FOR_GPUS,
    ),
    Control(
        "devices by mount",
        ("container.volumeMounts.*.mountPath",),
        NotBeginning("/var/run/nvidia-container-devices"),
        _PAST_SCHEDULER,
        _ASK_FOR_GPUS,
    ),
    Control("node name", ("nodeName",), _one_of(""), "puts the pod on a node past the scheduler", "use nodeSelector"),
    Control(
        "system priority",
        ("priorityClassName",),
        NotBeginning("system-"),
        "evicts other pods as only the cluster's own may",
        "use another PriorityClass",
    ),
)
"""The last four are not in the standard."""

RESTRICTED: Final = (
    Control(
        "volume types",
        tuple(
            f"volumes.*.{kind}"
            for kind in (
                "awsElasticBlockStore",
                "azureDisk",
                "azureFile",
                "cephfs",
                "cinder",
                "fc",
                "flexVolume",
                "flocker",
                "gcePersistentDisk",
                "gitRepo",
                "glusterfs",
                "iscsi",
                "nfs",
                "photonPersistentDisk",
                "portworxVolume",
                "quobyte",
                "rbd",
                "scaleIO",
                "storageos",
                "vsphereVolume",
            )
        ),
        _one_of(),
        "mounts what no administrator has made a volume of",
        "use a persistentVolumeClaim",
    ),
    Control(
        "privilege escalation",
        ("container.securityContext.allowPrivilegeEscalation",),
        _OFF,
        "lets a process get more rights than its parent",
    ),
    Control("not root", _secured("runAsNonRoot"), _one_of(True), "lets the container run as root"),
    Control("user 0", _secured("runAsUser"), NotOneOf((0,)), "runs the container as root"),
    Control(
        "seccomp, explicitly",
        _secured("seccompProfile.type"),
        _one_of("RuntimeDefault", "Localhost"),
        "takes the container out of seccomp",
    ),
    Control(
        "all capabilities dropped",
        ("container.securityContext.capabilities.add.*",),
        _one_of("NET_BIND_SERVICE"),
        "gives the container a right that it could do without",
    ),
)
"""What Pod Security "restricted" also refuses. Fields that it requires are added by `core/pods/restricted.py`."""

ANNOTATIONS: Final = {
    "container.apparmor.security.beta.kubernetes.io/": ("AppArmor", ("", "runtime/default", "localhost/")),
    "seccomp.security.alpha.kubernetes.io/": ("seccomp", ("", "runtime/default", "docker/default", "localhost/")),
    "container.seccomp.security.alpha.kubernetes.io/": (
        "seccomp",
        ("", "runtime/default", "docker/default", "localhost/"),
    ),
}
"""The same controls as annotations, for API servers before 1.30 and 1.27: the prefix, and the accepted values or how
they begin."""


def host_access(template: Mapping[str, Any], path: str, *, restricted: bool = False) -> Iterator[Invalid]:
    """The fields of the pod template that give the pod host access; `path` is the template's. `restricted`: also what
    Pod Security "restricted" refuses."""
    spec = template.get("spec")
    for control in (*CONTROLS, *(RESTRICTED if restricted else ())):
        for pattern in control.paths:
            for field in _refused(spec, pattern, f"{path}.spec", control.allowed):
                yield Invalid(field, control.problem, f"{control.fix}, {ASK}")
    annotations = value_at(template, "metadata", "annotations")
    for key, value in annotations.items() if isinstance(annotations, Mapping) else ():
        for prefix, (what, passing) in ANNOTATIONS.items():
            if str(key).startswith(prefix) and not _passes(value, passing):
                yield Invalid(
                    f"{path}.metadata.annotations[{key}]", f"takes a container out of {what}", f"remove it, {ASK}"
                )


def system_priority(name: str | None, field: str) -> Iterator[Invalid]:
    """The same for a PriorityClass that is set outside a template."""
    control = CONTROLS[-1]
    if name is not None and not control.allowed(name):
        yield Invalid(field, control.problem, f"{control.fix}, {ASK}")


def _passes(value: Any, passing: tuple[str, ...]) -> bool:
    text = str(value)
    return any(text.startswith(known) if known.endswith("/") else text == known for known in passing)


def _refused(spec: Any, pattern: str, path: str, allowed: Callable[[Any], bool]) -> Iterator[str]:
    """The fields that the pattern matches and whose values are not accepted."""
    first, _, rest = pattern.partition(".")
    patterns = [f"{kind}.*.{rest}" for kind in CONTAINERS] if first == "container" else [pattern]
    for each in patterns:
        yield from _walk(spec, each.split("."), path, allowed)


def _walk(value: Any, keys: list[str], path: str, allowed: Callable[[Any], bool]) -> Iterator[str]:
    if not keys:
        if not allowed(value):
            yield path
    elif keys == ["*"]:
        # Build the path only of refused items: for thousands of variables it takes longer than the check.
        items = value if isinstance(value, list) else ()
        yield from (f"{path}[{index}]" for index, item in enumerate(items) if not allowed(item))
    elif keys[0] == "*":
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _walk(item, keys[1:], f"{path}[{index}]", allowed)
    elif isinstance(value, Mapping) and value.get(keys[0]) is not None:
        yield from _walk(value[keys[0]], keys[1:], f"{path}.{keys[0]}", allowed)
