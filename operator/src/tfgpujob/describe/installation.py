"""Problems of an installation: pure rules over the API server's answers.

Every finding names the problem and the fix. What the user may not read is no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tfgpujob.names import ANNOTATION_OFF

Object = Mapping[str, Any]
GPU: Final = "nvidia.com/gpu"
_CLOCKS_APART_SECONDS: Final = 60
_STALE_LEASES: Final = 4
"""After this many lease durations without a renewal no operator leads."""
_MANY_RESTARTS: Final = 3
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_NEVER_STARTS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff"}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `stops`: it keeps jobs from running."""

    what: str
    fix: str
    stops: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What was read. None: it may not be read; an empty list: there is none."""

    now: datetime
    version: str
    """Version of this tool."""
    ours: Object
    """The CRD of this tool's release."""
    definition: Object | None
    deployments: Sequence[Object] | None
    pods: Sequence[Object] | None
    """Pods of the operator."""
    lease: Object | None
    nodes: Sequence[Object] | None
    node_leases: Sequence[Object] | None
    dns_pods: Sequence[Object] | None
    storage_classes: Sequence[Object] | None
    denied: Sequence[str] = ()
    """What the operator's ServiceAccount is not permitted, as `create pods`."""
    namespace: str = ""
    """The caller's."""
    served: Sequence[str] | None = None
    """The namespaces whose jobs the operators run; None: all, or not known."""
    sent: Object = field(default_factory=dict)
    """A job as it was sent in a dry run, and as it was returned; `refused`: the message of a refusal."""
    returned: Object | None = None
    refused: str = ""


def examine(found: Installation) -> tuple[Finding, ...]:
    """All findings, those that stop jobs first."""
    findings = [finding for rule in _RULES for finding in rule(found)]
    return tuple(sorted(findings, key=lambda finding: not finding.stops))


def _definition(found: Installation) -> Iterator[Finding]:
    if found.definition is None:
        return
    if not found.definition:
        yield Finding(
            "the cluster does not know TFGPUJobs: the definition tfgpujobs.tfgpu.dev is not installed",
            "helm install the chart, or: kubectl apply --server-side -f crds/tfgpujobs.yaml",
        )
        return
    missing = sorted(_fields(found.ours) - _fields(found.definition))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield Finding(
            f"the definition is older than this tool ({found.version}): it drops {', '.join(missing[:3])}{more}",
            "helm upgrade with crds.install=true, or: kubectl apply --server-side -f crds/tfgpujobs.yaml",
        )


def _fields(definition: Object) -> set[str]:
    """Paths of all fields of the stored version."""
    versions = [v for v in definition["spec"]["versions"] if v.get("storage")]
    return {path for v in versions for path in _below("", v["schema"]["openAPIV3Schema"])}


def _below(path: str, schema: Object) -> Iterator[str]:
    for name, inner in (schema.get("properties") or {}).items():
        yield f"{path}{name}"
        yield from _below(f"{path}{name}.", inner)
    if isinstance(items := schema.get("items"), Mapping):
        yield from _below(f"{path.removesuffix('.')}[].", items)


def _operator(found: Installation) -> Iterator[Finding]:
    if found.deployments is None:
        return
    if not found.deployments:
        yield Finding("no operator is installed", "helm install the chart; docs/install.md says how")
    if len(found.deployments) > 1:
        places = ", ".join(d["metadata"]["namespace"] for d in found.deployments)
        fix = "keep one, or give each its own watchNamespaces"
        yield Finding(f"{len(found.deployments)} operators are installed, in {places}", fix, stops=False)
    for deployment in found.deployments:
        version = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version", found.version)
        if version != found.version:
            fix = "use the same release of both"
            yield Finding(f"the operator is {version}, this tool {found.version}", fix, stops=False)
        if not (deployment.get("spec") or {}).get("replicas", 1):
            yield Finding("the operator has 0 copies", f"kubectl scale deployment {_named(deployment)} --replicas=1")


def _namespace(found: Installation) -> Iterator[Finding]:
    if found.served is not None and found.namespace not in found.served:
        what = f"no operator runs jobs of the namespace {found.namespace}, only of {', '.join(found.served)}"
        yield Finding(what, f"helm upgrade with {found.namespace} in watchNamespaces, or name another namespace by -n")


def _protections(found: Installation) -> Iterator[Finding]:
    for deployment in found.deployments or ():
        off = (deployment["metadata"].get("annotations") or {}).get(ANNOTATION_OFF, "").splitlines()
        if off:
            named = ", ".join(line.partition(":")[0] for line in off)
            fix = "helm upgrade with profile=multiTenant; what is left then, docs/security.md#many-tenants explains"
            yield Finding(f"if authors of jobs don't trust each other, too little is on: {named}", fix, stops=False)


def _pods(found: Installation) -> Iterator[Finding]:
    for pod in found.pods or ():
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason = waiting.get("reason")
            if reason == "CrashLoopBackOff":
                fix = f"kubectl logs {_named(pod)} --previous"
                yield Finding(f"the operator's pod {pod['metadata']['name']} ends again and again", fix)
            elif reason in _NEVER_STARTS:
                fix = "correct image.repository and image.tag, or name a pull secret in imagePullSecrets"
                yield Finding(f"the image {container.get('image')} can't be pulled: {reason}", fix)
            elif (restarts := int(container.get("restartCount") or 0)) >= _MANY_RESTARTS:
                yield _restarted(pod, restarts, (container.get("lastState") or {}).get("terminated") or {})


def _restarted(pod: Object, restarts: int, last: Object) -> Finding:
    what = f"the operator's pod {pod['metadata']['name']} was restarted {restarts} times"
    if last.get("reason") == "OOMKilled":
        return Finding(
            f"{what}, the last time because its memory was full", "raise resources.limits.memory", stops=False
        )
    ended = f", the last time after exit code {last['exitCode']}" if "exitCode" in last else ""
    return Finding(f"{what}{ended}", f"kubectl logs {_named(pod)} --previous", stops=False)


def _leader(found: Installation) -> Iterator[Finding]:
    if found.lease is None or not found.deployments:
        return
    spec = found.lease.get("spec") or {}
    renewed = _time(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed is None:
        yield Finding("no copy of the operator leads", "look at the logs of its deployment")
        return
    age = (found.now - renewed).total_seconds()
    if age > _STALE_LEASES * int(spec.get("leaseDurationSeconds") or 15):
        yield Finding(f"no copy of the operator has led for {age:.0f} s", "look at the logs of its deployment")
    elif age < -_CLOCKS_APART_SECONDS:
        fix = "set the clocks by NTP, on the operator's node or here"
        yield Finding(f"the operator's clock is {-age:.0f} s ahead of this machine's", fix, stops=False)


def _clocks(found: Installation) -> Iterator[Finding]:
    """A clock that is behind looks like a node that is gone."""
    renewed = {lease["metadata"]["name"]: _time(lease["spec"].get("renewTime")) for lease in found.node_leases or ()}
    known = sorted((at, node) for node, at in renewed.items() if at is not None)
    if len(known) < 2:
        return
    middle = known[(len(known) - 1) // 2][0]
    for at, node in known:
        ahead = (at - middle).total_seconds()
        if ahead > _CLOCKS_APART_SECONDS:
            fix = f"set its clock by NTP: deadlines and restarts on {node} go wrong"
            yield Finding(f"the clock of node {node} is {ahead:.0f} s ahead of the others", fix, stops=False)


def _rights(found: Installation) -> Iterator[Finding]:
    if found.denied:
        fix = "helm upgrade with rbac.create=true, or give them as charts/tfgpujob/templates/rbac.yaml does"
        yield Finding(f"the operator may not: {', '.join(found.denied)}", fix)


def _gpus(found: Installation) -> Iterator[Finding]:
    if found.nodes is None:
        return
    offers = [n for n in found.nodes if int((n["status"].get("allocatable") or {}).get(GPU, "0"))]
    if not offers:
        fix = "install NVIDIA's device plugin, or name another resource in spec.gpu.resourceName, or 0 in gpus"
        yield Finding(f"no node offers {GPU}", fix)


def _dns(found: Installation) -> Iterator[Finding]:
    if not found.dns_pods:
        return  # it may be a program outside of the cluster, or have other labels
    ready = [
        pod
        for pod in found.dns_pods
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    if not ready:
        fix = "kubectl --namespace kube-system get pods -l k8s-app=kube-dns"
        yield Finding("no pod of the cluster's DNS is ready, and replicas find each other by name", fix)


def _storage(found: Installation) -> Iterator[Finding]:
    if found.storage_classes is None:
        return
    if not any((c["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true" for c in found.storage_classes):
        fix = f"annotate one with {_DEFAULT_CLASS}=true, or name storageClassName in each claim"
        yield Finding("there is no default StorageClass: a claim that names none stays Pending", fix, stops=False)


def _trial(found: Installation) -> Iterator[Finding]:
    if found.refused:
        yield Finding(f"a job sent on trial is refused: {found.refused}", "see who does: a quota, a policy, a webhook")
    if found.returned is not None:
        changed = sorted(_changed("spec.", found.sent["spec"], found.returned["spec"]))
        if changed:
            fix = "kubectl get mutatingwebhookconfigurations: exclude tfgpujobs.tfgpu.dev from the one that does it"
            yield Finding(f"a job sent on trial comes back with other values in {', '.join(changed)}", fix)


def _changed(path: str, sent: Object, got: Object) -> Iterator[str]:
    """Fields that were sent and are missing or different in the answer; added fields are defaults."""
    for name, value in sent.items():
        if isinstance(value, Mapping) and isinstance(got.get(name), Mapping):
            yield from _changed(f"{path}{name}.", value, got[name])
        elif got.get(name) != value:
            yield f"{path}{name}"


def _named(obj: Object) -> str:
    return f"{obj['metadata']['name']} --namespace {obj['metadata']['namespace']}"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


_RULES: tuple[Callable[[Installation], Iterator[Finding]], ...] = (
    _definition,
    _operator,
    _namespace,
    _pods,
    _leader,
    _rights,
    _dns,
    _trial,
    _gpus,
    _clocks,
    _storage,
    _protections,
)
