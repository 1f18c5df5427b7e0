"""What Kubernetes refuses in a pod beyond its schema: words, forms, ranges, and fields that exclude each other.

Models are named as in Kubernetes' Python client, without `V1`. Every release refuses these values. The API server
checks the rest: what a release accepts, and what needs the cluster's objects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from tfgpujob.api.base import MAX_INT32, is_quantity, quantity, value_at
from tfgpujob.api.invalid import Invalid
from tfgpujob.api.translate import nearest, no_quantity, shown

Together = tuple[str, Callable[[Mapping[str, Any]], Any], str, str]
"""A field, what is true of an object with a wrong one, the problem and the fix."""


class _Form(NamedTuple):
    """A text that this matches."""

    pattern: re.Pattern[str]
    fix: str
    most: int = 253

    def __call__(self, value: Any) -> tuple[str, str] | None:
        wrong = isinstance(value, str) and not (len(value) <= self.most and self.pattern.fullmatch(value))
        return (f"{shown(value)} is not valid", self.fix) if wrong else None


class _Within(NamedTuple):
    """A whole number in this range."""

    least: int
    most: int = MAX_INT32
    fix: str = ""

    def __call__(self, value: Any) -> tuple[str, str] | None:
        if not isinstance(value, int) or self.least <= value <= self.most:
            return None
        too, bound = ("small", f"{self.least} or more") if value < self.least else ("large", f"{self.most} or less")
        return f"{value} is too {too}", self.fix or f"set {bound}"


class _Words(NamedTuple):
    """One of these words."""

    words: tuple[str, ...]

    def __call__(self, value: Any) -> tuple[str, str] | None:
        wrong = isinstance(value, str) and value and value not in self.words
        return (f"{shown(value)} is not one of {', '.join(self.words)}", nearest(value, self.words)) if wrong else None


Check = _Form | _Within | _Words
"""From a value to the problem and the fix; None: Kubernetes accepts it."""

_LABEL: Final = _Form(
    re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"), "use lower-case letters, digits and -, at most 63", 63
)
_SUBDOMAIN: Final = _Form(re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"), "use lower-case letters, digits, - and .")
_KEY: Final = _Form(
    re.compile(r"([A-Za-z0-9][-A-Za-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"),
    "write it as name or example.com/name, of letters, digits, -, _ and ., the name at most 63",
    317,
)
_LABEL_VALUE: Final = _Form(
    re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"),
    "use letters, digits, -, _ and ., at most 63; longer texts belong in annotations",
    63,
)
_PORT_NAME: Final = _Form(
    re.compile(r"\A(?=[-0-9]*[a-z])[a-z0-9]+(-[a-z0-9]+)*"),
    "use lower-case letters, digits and -, at most 15 with a letter",
    15,
)
_RESOURCE: Final = _Form(
    re.compile(r"\A(cpu|memory|ephemeral-storage|hugepages-.+|[A-Za-z0-9][-A-Za-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*)"),
    "use cpu, memory, ephemeral-storage, or domain/name such as nvidia.com/gpu",
)
_RELATIVE: Final = _Form(
    re.compile(r"\A(?!/)(?!(.*/)?\.\.(/|$)).*"), "write a path below the volume, without ..", 65536
)
_PORT: Final = _Within(1, 65535)
_MODE: Final = _Within(0, 0o777, "write it in octal, such as 0644")
_COUNT: Final = _Within(0)
_SETS: Final = ("In", "NotIn")
_BARE: Final = ("Exists", "DoesNotExist")
_SIZES: Final = ("Gt", "Lt")

_VALUES: Final[Mapping[str, Check]] = {
    # The API server takes any length, the kubelet no name beyond 255. The status keeps it.
    "Container.image": _Form(re.compile(r"(\S(.*\S)?)?"), "remove the space around it", 1024),
    "Container.name": _LABEL,
    "Container.restartPolicy": _Words(("Always", "Never", "OnFailure")),
    "ContainerPort.name": _PORT_NAME,
    "DownwardAPIVolumeFile.path": _RELATIVE,
    "EmptyDirVolumeSource.medium": _Form(
        re.compile(r"(Memory|HugePages(-.+)?)?"), "remove it for the node's disk, or write Memory"
    ),
    "EnvVar.name": _Form(re.compile(r"[ -<>-~]+"), "use printable ASCII characters but =", 65536),
    "KeyToPath.path": _RELATIVE,
    "LabelSelectorRequirement.key": _KEY,
    "LabelSelectorRequirement.operator": _Words((*_SETS, *_BARE)),
    "NFSVolumeSource.path": _Form(re.compile(r"/.*"), "give an absolute path", 65536),
    "NodeSelectorRequirement.key": _KEY,
    "NodeSelectorRequirement.operator": _Words((*_SETS, *_BARE, *_SIZES)),
    "ResourceFieldSelector.resource": _Form(
        re.compile(r"(limits|requests).(cpu|memory|ephemeral-storage|hugepages-.+)"),
        "use one such as limits.memory",
    ),
    "ServiceAccountTokenProjection.path": _RELATIVE,
    "Toleration.key": _KEY,
    "Toleration.operator": _Words(("Equal", "Exists", *_SIZES)),
    "Toleration.value": _LABEL_VALUE,
    "Volume.name": _LABEL,
    "activeDeadlineSeconds": _Within(1),
    "conditionType": _KEY,
    "containerPort": _PORT,
    "defaultMode": _MODE,
    "dnsPolicy": _Words(("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")),
    "effect": _Words(("NoExecute", "NoSchedule", "PreferNoSchedule")),
    "failureThreshold": _COUNT,
    "fsGroup": _COUNT,
    "fsGroupChangePolicy": _Words(("Always", "OnRootMismatch")),
    "imagePullPolicy": _Words(("Always", "IfNotPresent", "Never")),
    "initialDelaySeconds": _COUNT,
    "maxSkew": _Within(1),
    "mode": _MODE,
    "mountPropagation": _Words(("Bidirectional", "HostToContainer", "None")),
    "periodSeconds": _COUNT,
    "port": _PORT,
    "priorityClassName": _SUBDOMAIN,
    "protocol": _Words(("SCTP", "TCP", "UDP")),
    "runAsGroup": _COUNT,
    "runAsUser": _COUNT,
    "runtimeClassName": _SUBDOMAIN,
    "scheme": _Words(("HTTP", "HTTPS")),
    "serviceAccountName": _SUBDOMAIN,
    "subPath": _RELATIVE,
    "successThreshold": _COUNT,
    "terminationMessagePolicy": _Words(("FallbackToLogsOnError", "File")),
    "timeoutSeconds": _COUNT,
    "topologyKey": _KEY,
    "weight": _Within(1, 100),
    "whenUnsatisfiable": _Words(("DoNotSchedule", "ScheduleAnyway")),
}
"""By model and field, or by field alone where it means the same everywhere."""

_FIELDS: Final = r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
_ENV_FIELD: Final = re.compile(rf"{_FIELDS}|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)")
_FILE_FIELD: Final = re.compile(rf"{_FIELDS}|metadata\.(labels|annotations)")
_KEEP_ONE: Final = "keep one of them"
_SELECTOR: Final[tuple[Together, ...]] = (
    ("values", lambda r: r["operator"] in _SETS and not r.get("values"), "is empty", "list some, or set Exists"),
    ("values", lambda r: r["operator"] in _BARE and r.get("values"), "is set beside Exists", "remove it, or set In"),
    (
        "values",
        lambda r: r["operator"] in _SIZES and len(r.get("values") or ()) != 1,
        "is not one number",
        "give one, in quotes",
    ),
)


def _lacks(field: str) -> tuple[Together]:
    return ((field, lambda value: not value.get(field), "is missing", "add it"),)


def _passes_on(known: re.Pattern[str], fix: str) -> tuple[Together]:
    def wrong(value: Mapping[str, Any]) -> bool:
        path = value_at(value, "fieldRef", "fieldPath")
        return isinstance(path, str) and known.fullmatch(path) is None

    return (("fieldRef.fieldPath", wrong, "{} can't be passed on", fix),)


def _once(probe: str) -> Together:
    def wrong(container: Mapping[str, Any]) -> bool:
        return (value_at(container, probe, "successThreshold") or 1) > 1

    return f"{probe}.successThreshold", wrong, "is more than 1", "remove it: only a readinessProbe may have more"


_TOGETHER: Final[Mapping[str, tuple[Together, ...]]] = {
    **dict.fromkeys(("ConfigMapEnvSource", "ConfigMapKeySelector", "ConfigMapProjection"), _lacks("name")),
    **dict.fromkeys(("SecretEnvSource", "SecretKeySelector", "SecretProjection"), _lacks("name")),
    "ConfigMapVolumeSource": _lacks("name"),
    "Container": (_once("livenessProbe"), _once("startupProbe")),
    "DownwardAPIVolumeFile": _passes_on(_FILE_FIELD, "use metadata.labels, annotations, name, namespace or uid"),
    "EnvVar": (("valueFrom", lambda v: v.get("value") and v.get("valueFrom"), "is set beside value", _KEEP_ONE),),
    "EnvVarSource": _passes_on(_ENV_FIELD, "use one such as metadata.name, spec.nodeName or status.podIP"),
    "ExecAction": _lacks("command"),
    "LabelSelectorRequirement": _SELECTOR,
    "NodeSelector": _lacks("nodeSelectorTerms"),
    "NodeSelectorRequirement": _SELECTOR,
    "PodSpec": (
        (
            "dnsConfig.nameservers",
            lambda s: s.get("dnsPolicy") == "None" and not value_at(s, "dnsConfig", "nameservers"),
            "is missing beside dnsPolicy None",
            "name a DNS server, or remove dnsPolicy",
        ),
    ),
    "SecretVolumeSource": _lacks("secretName"),
    "Toleration": (
        ("value", lambda t: t.get("operator") == "Exists" and t.get("value"), "is set beside Exists", "remove it"),
        (
            "key",
            lambda t: t.get("operator") != "Exists" and not t.get("key"),
            "is missing",
            "name the taint's key, or set operator Exists to tolerate every taint",
        ),
        (
            "tolerationSeconds",
            lambda t: t.get("tolerationSeconds") is not None and t.get("effect") != "NoExecute",
            "is set beside another effect than NoExecute",
            "remove it, or set effect NoExecute",
        ),
    ),
    "VolumeMount": (
        ("subPathExpr", lambda m: m.get("subPath") and m.get("subPathExpr"), "is set beside subPath", _KEEP_ONE),
    ),
}
_ONE_OF: Final[Mapping[str, bool]] = {
    "EnvFromSource": True,
    "EnvVarSource": True,
    "LifecycleHandler": True,
    "Probe": True,
    "Volume": False,
    "VolumeProjection": False,
}
"""Models with at most one field that is an object, and whether there must be one."""
_UNIQUE: Final[Mapping[str, tuple[str, ...]]] = {
    "ports": ("name",),
    "sysctls": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("name",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Fields by which the items of a list differ. Containers: rules/template.py."""
_MAPS: Final[Mapping[str, tuple[Check, Check | None]]] = {
    "annotations": (_KEY, None),
    "labels": (_KEY, _LABEL_VALUE),
    "matchLabels": (_KEY, _LABEL_VALUE),
    "nodeSelector": (_KEY, _LABEL_VALUE),
}
"""The checks of keys and of values."""
QUANTITY: Final = frozenset({"sizeLimit", "divisor"})
QUANTITIES: Final = frozenset({"limits", "requests", "overhead"})
_OF_RUNNING: Final = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def refused(value: Any, model: str, field: str, path: str, *, required: bool) -> Iterator[Invalid]:
    """The problems of a field that is no object. `required`: a text that must be there."""
    if required and value == "" and field not in {"type", "value"}:
        yield Invalid(path, "is empty", "give it a value")
    elif field in QUANTITY:
        yield from _no_amount(value, path)
    elif field in QUANTITIES:
        for name, amount in value.items():
            yield from _no_amount(amount, f"{path}.{name}")
    elif field in _MAPS:
        of_key, of_value = _MAPS[field]
        for key, item in value.items():
            if problem := of_key(key) or (of_value and of_value(item)):
                yield Invalid(f"{path}[{key}]", *problem)
    elif (check := _VALUES.get(f"{model}.{field}") or _VALUES.get(field)) and (problem := check(value)):
        yield Invalid(path, *problem)


def refused_together(value: Mapping[str, Any], model: str, objects: Set[str], path: str) -> Iterator[Invalid]:
    """The problems of several fields of an object. `objects`: its fields whose values are objects, or lists of them."""
    for field, wrong, problem, fix in _TOGETHER.get(model, ()):
        if wrong(value):
            yield Invalid(f"{path}.{field}", problem.format(shown(value_at(value, *field.split(".")))), fix)
    given = [key for key in value if key in objects]
    if model in _ONE_OF and len(given) > 1:
        yield Invalid(path, f"{' and '.join(given)} are both set", _KEEP_ONE)
    elif _ONE_OF.get(model) and not given:
        yield Invalid(path, "is empty", f"add one of {', '.join(objects)}")
    for key in (key for key in given if key in _UNIQUE):
        yield from _same(value[key], _UNIQUE[key], f"{path}.{key}")
    if model == "ResourceRequirements":
        yield from _resources(value, path)
    elif model == "PodSpec":
        yield from _init_containers(value.get("initContainers") or (), f"{path}.initContainers")


def _same(items: list[Any], fields: tuple[str, ...], path: str) -> Iterator[Invalid]:
    for same, count in Counter(tuple(item.get(field) for field in fields) for item in items).items():
        if count > 1 and None not in same:
            yield Invalid(path, f"{count} have {fields[0]} {shown(same[0])}", "give each its own")


def _init_containers(containers: Sequence[Any], path: str) -> Iterator[Invalid]:
    for index, container in enumerate(containers):
        for key in _OF_RUNNING if container.get("restartPolicy") != "Always" else ():
            if container.get(key):
                fix = "remove it, or set restartPolicy Always for a sidecar"
                yield Invalid(f"{path}[{index}].{key}", "is only for containers that keep running", fix)


def _no_amount(value: Any, path: str) -> Iterator[Invalid]:
    if not is_quantity(value):
        yield Invalid(path, *no_quantity(value))
    elif quantity(str(value)) < 0:
        yield Invalid(path, f"{shown(value)} is negative", "set 0 or more")


def _resources(value: Mapping[str, Any], path: str) -> Iterator[Invalid]:
    limits, requests = ({**(value.get(key) or {})} for key in ("limits", "requests"))
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if unknown := _RESOURCE(name):
                yield Invalid(f"{path}.{key}.{name}", *unknown)
            elif "/" in name and quantity(str(amount)) % 1 > 0:
                yield Invalid(f"{path}.{key}.{name}", f"{shown(amount)} is not a whole number", "round it")
    for name in (name for name in requests if name in limits):
        asked, most = (quantity(str(amounts[name])) for amounts in (requests, limits))
        # Floats: 9m is not exactly 0.009.
        if asked > most * (1 + 1e-9) or ("/" in name and asked < most):
            than, fix = (
                ("not", "set both to the same") if "/" in name else ("more than", "lower it, or raise the limit")
            )
            problem = f"{shown(requests[name])} is {than} the limit, {shown(limits[name])}"
            yield Invalid(f"{path}.requests.{name}", problem, fix)
