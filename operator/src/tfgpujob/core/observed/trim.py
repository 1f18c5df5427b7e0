"""Kubernetes objects trimmed to what decisions need, so that thousands of them fit in memory.

A parser creates new strings for each key and value, though most objects have the same in most places. So strings that
other objects are likely to have are interned: this saves a third of a job's memory, and four tenths of a pod's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import orjson

from tfgpujob import names
from tfgpujob.api.limits import too_large
from tfgpujob.core.observed.packed import PACKED, packed
from tfgpujob.core.observed.snapshot import Dependent, Object, Pod, Termination, Workload
from tfgpujob.core.observed.waiting import names_what_lacks
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.variables import Variable

_EMPTY: Mapping[str, Any] = {}


_JOB_METADATA: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
)
MAX_TEXT: Final = 4096
"""Characters of a message of a pod that are kept. The kubelet cuts a termination message at 4,096 bytes."""
SHORT_TEXT: Final = 256
"""The same where there is no room for longer ones, and of names and reasons. Shorter texts are not counted."""


_JOB_LABELS: Final = (names.LABEL_QUEUE, names.LABEL_QUEUE_PRIORITY, names.PREBUILT_WORKLOAD)
_JOB_ANNOTATIONS: Final = (names.PREBUILT_WORKLOAD,)
_TOKEN: Final = re.compile("[0-9a-f]{1,64}")
_COPIERS: Final = frozenset({names.CODE_VOLUME, names.MODELS_VOLUME})
_BRINGERS: Final = frozenset({names.FETCH_CONTAINER, *_COPIERS})
NO_FOLDER: Final = re.compile(r"cp: (?:cannot|can't) stat '/(code|models)/\.'")
"""The error of a copying init container whose image has no such folder, by coreutils or busybox."""
_GRACE_SECONDS: Final = 30
"""Grace period of a pod that sets none."""
_COPY_FAILED = 1
"""cp's exit code for every error."""
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")


def reduced_job(obj: Object) -> Object:
    """The job with what decisions need of its metadata. A spec that is too large to be read is reduced to managedBy and
    runPolicy, and `unreadable` says why; reducing it again changes nothing.
    """
    metadata = obj["metadata"]
    reduced = {key: value for key, value in obj.items() if key in {"apiVersion", "kind", "spec", "status", PACKED}}
    reduced["metadata"] = {key: value for key, value in metadata.items() if key in _JOB_METADATA}
    for field, wanted in (("labels", _JOB_LABELS), ("annotations", _JOB_ANNOTATIONS)):
        found = metadata.get(field) or _EMPTY
        if kept := {key: found[key] for key in wanted if found.get(key)}:
            reduced["metadata"][field] = {key: _text(value) for key, value in kept.items()}
    spec = obj.get("spec")
    if problem := obj.get("unreadable") or too_large(spec):
        parts = {key: spec.get(key) for key in ("managedBy", "runPolicy")} if isinstance(spec, Mapping) else {}
        reduced["spec"] = {key: part for key, part in parts.items() if part is not None and not too_large(part)}
        reduced.pop(PACKED, None)
        reduced["unreadable"] = str(problem)
    return reduced


def trim_job(obj: Object, held: Object | None = None) -> Object:
    """The reduced job, with one copy of the strings that others may have.

    `held`: an earlier version of it, trimmed. Unchanged parts are taken from it.
    """
    if held is None or not _has_spec_of(held, obj):
        return {key: _interned(value) for key, value in packed(reduced_job(obj)).items()}
    kept = {**reduced_job({**obj, "spec": None}), **{key: held[key] for key in ("spec", PACKED) if key in held}}
    return {key: _kept(value, held.get(key)) for key, value in kept.items()}


def _has_spec_of(held: Object, obj: Object) -> bool:
    """True if the job's spec is the kept one. Equality is not enough: 1 and true are equal in Python."""
    before, metadata = held["metadata"], obj["metadata"]
    known = before.get("uid"), before.get("generation")
    same = None not in known and known == (metadata.get("uid"), metadata.get("generation"))
    readable = "unreadable" not in held and "unreadable" not in obj
    return same and readable and "spec" in held and _spec_text(held) == _spec_text(obj)


def _spec_text(job: Object) -> Any:
    """What two specs are compared by."""
    return packed(job).get(PACKED, job.get("spec"))


def trim_pod(obj: Object, held: Pod | None = None) -> Pod:
    """`held`: an earlier version of the pod, whose environment is reused, because it never changes, and so is the last
    scheduler message that names what is missing."""
    metadata = obj["metadata"]
    labels = metadata.get("labels") or _EMPTY
    spec = obj.get("spec") or _EMPTY
    status = obj.get("status") or _EMPTY
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    target = conditions.get("DisruptionTarget", _EMPTY)
    inits = _by_name(status.get("initContainerStatuses"))
    container = _by_name(status.get("containerStatuses")).get(names.CONTAINER, _EMPTY)
    if failed := status.get("phase") == "Failed":
        container = _ended(container)
    taken = _text(target.get("reason") or "DisruptionTarget") if target.get("status") == "True" else ""
    gate = inits.get(names.GATE_CONTAINER, _EMPTY).get("state") or _EMPTY
    gate_end = gate.get("terminated") or _EMPTY
    waiting_reason, waiting_message = _waiting(status, conditions)
    no_room = waiting_message if names_what_lacks(waiting_message) else held.no_room if held is not None else ""
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        job_name=_text(labels.get(names.LABEL_JOB_NAME)),
        owner_uid=_text(controller(metadata).get("uid")),
        role=_text(labels.get(names.LABEL_REPLICA_TYPE)),
        index=_number(labels.get(names.LABEL_REPLICA_INDEX), default=-1),
        attempt=_number(labels.get(names.LABEL_ATTEMPT), default=0),
        replica_restart=_number(labels.get(names.LABEL_REPLICA_RESTART), default=0),
        created_at=_time(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        deletion_due=_time(metadata.get("deletionTimestamp")),
        phase=_text(status.get("phase", "Pending")),
        ready=bool(container.get("ready")),
        node=_text(spec.get("nodeName")),
        status_reason=_text(status.get("reason")),
        waiting_reason=_text(waiting_reason),
        waiting_message=_message(waiting_message),
        disruption=taken,
        running_init=_text(_running_init(spec, inits)),
        lingers=_lingers(status, container),
        status_message=_message(
            status.get("message") or (taken and target.get("message")) or (failed and _earlier(status))
        ),
        termination=_termination(_fetch(inits), is_init=True) or _termination(container) or _of_another(spec, status),
        waited_in_vain=_waited_in_vain(gate_end, container, metadata),
        ip=_text(status.get("podIP")),
        progress_token=_token(spec, Variable.PROGRESS_TOKEN) if held is None else held.progress_token,
        recovery_token=_token(spec, Variable.RECOVERY_TOKEN) if held is None else held.recovery_token,
        started_at=_time(status.get("startTime")),
        unhealthy_device=_message(_unhealthy(container)),
        ended_at=_time(_ended_at(metadata, status, conditions)),
        scheduled_at=_scheduled_at(conditions),
        gate_began=_began(gate),
        gate_ended=_time(gate_end.get("finishedAt")),
        program_began=_began(container.get("state") or _EMPTY),
        code_digest=_digest(inits, container, names.CODE_VOLUME),
        models_digest=_digest(inits, container, names.MODELS_VOLUME),
        no_room="" if spec.get("nodeName") else _message(no_room),
    )


_TEXTS: Final = ("waiting_message", "status_message", "no_room", "unhealthy_device")


_NO_TEXTS: Final = ("", "", "", "", "")


def texts_of(pod: Pod) -> int:
    """Memory of its long messages, each of which takes up to four bytes a character."""
    said = pod.termination.message if pod.termination is not None else ""
    texts = pod.waiting_message, pod.status_message, pod.no_room, pod.unhealthy_device, said
    return _long(texts) if texts != _NO_TEXTS else 0


def texts_in_status(job: Object) -> int:
    """The same of its status. Equal ones are kept once."""
    status = job.get("status")
    text = orjson.dumps(status) if status else b""
    return 0 if len(text) < MAX_TEXT and text.isascii() else _long(_strings(status))


def _long(texts: Iterable[str]) -> int:
    return sum(map(sys.getsizeof, {text for text in texts if len(text) > SHORT_TEXT}))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def with_short_status(job: Object) -> Object:
    """The job with the beginning of the texts in its status, but for the plan."""
    status = job.get("status") or {}
    return {**job, "status": {key: part if key == "plan" else _shortened(part) for key, part in status.items()}}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:SHORT_TEXT]
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    return [_shortened(part) for part in value] if isinstance(value, list) else value


def with_short_texts(pod: Pod) -> Pod:
    """The pod with the beginning of its messages, and the end of what its container wrote, unless that is a record."""
    ended = pod.termination
    if ended is not None and len(ended.message) > SHORT_TEXT:
        message = "" if ended.message.startswith("{") else ended.message[-SHORT_TEXT:]
        pod = replace(pod, termination=replace(ended, message=message))
    return replace(pod, **{field: getattr(pod, field)[:SHORT_TEXT] for field in _TEXTS})


def trim_dependent(obj: Object) -> Dependent:
    metadata = obj["metadata"]
    owner = controller(metadata)
    return Dependent(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        owner_uid=owner.get("uid", ""),
        owner_job=owner.get("name", ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        attempt=_number((metadata.get("labels") or _EMPTY).get(names.LABEL_ATTEMPT), default=0),
    )


def trim_workload(obj: Object) -> Workload:
    metadata, spec = obj["metadata"], obj.get("spec") or _EMPTY
    held = trim_dependent(obj)
    pods = [(s.get("template") or _EMPTY).get("spec") or _EMPTY for s in spec.get("podSets") or ()]
    return Workload(
        name=held.name,
        uid=held.uid,
        resource_version=held.resource_version,
        owner_uid=held.owner_uid,
        owner_job=held.owner_job,
        deleting=held.deleting,
        generation=metadata.get("generation", 0),
        pod_sets=_text((metadata.get("annotations") or _EMPTY).get(names.ANNOTATION_POD_SETS)),
        active=spec.get("active") is not False,
        counts={_text(s.get("name")): int(s.get("count") or 0) for s in spec.get("podSets") or ()},
        stop_seconds=max((int(p.get("terminationGracePeriodSeconds") or _GRACE_SECONDS) for p in pods), default=0),
        status=obj.get("status") or _EMPTY,
    )


def trim_cluster_object(obj: Object) -> Object:
    """For a ResourceFlavor what it adds to pods, for a priority class its value."""
    spec = obj.get("spec") or _EMPTY
    kept = {key: spec[key] for key in ("nodeLabels", "tolerations") if spec.get(key)}
    return {**kept, "value": obj["value"]} if "value" in obj else kept


def controller(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner reference of the TFGPUJob that controls this object; empty when something else, or nothing, does."""
    for owner in metadata.get("ownerReferences") or ():
        group = str(owner.get("apiVersion", "")).partition("/")[0]
        if owner.get("controller") and owner.get("kind") == names.KIND and group == names.GROUP:
            found: Mapping[str, Any] = owner
            return found
    return _EMPTY


def _by_name(statuses: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Mapping[str, Any]]:
    """Statuses of containers."""
    return {container.get("name", ""): container for container in statuses or ()}


def _fetch(inits: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The init container that fetches code or models, if it failed: the program never began, and it has the reason."""
    for name, container in inits.items():
        ended = (container.get("state") or _EMPTY).get("terminated") or _EMPTY
        code, said = ended.get("exitCode"), str(ended.get("message") or "")[:MAX_TEXT]
        # Another node may have enough space, or a working disk. With cp's own exit code the job would end.
        if name in _COPIERS and code == _COPY_FAILED and not NO_FOLDER.search(said):
            return {**container, "state": {"terminated": {**ended, "exitCode": int(ExitCode.NOT_FETCHED)}}}
        if name in _BRINGERS and code:
            return container
    return _EMPTY


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """A container of a failed pod, with its last end as its state if it has no other: its node has restarted."""
    last, state = container.get("lastState"), container.get("state") or _EMPTY
    return {**container, "state": last} if last and "terminated" not in state else container


def _unhealthy(container: Mapping[str, Any]) -> str:
    """`nvidia.com/gpu GPU-1 (Xid 79)`. From Kubernetes 1.36 on; unknown health is ignored."""
    found = []
    for allocated in container.get("allocatedResourcesStatus") or ():
        for device in allocated.get("resources") or ():
            if device.get("health") == "Unhealthy":
                why = f" ({device['message']})" if device.get("message") else ""
                found.append(f"{allocated.get('name', '')} {device.get('resourceID', '')}{why}")
    return ", ".join(found)


def _digest(inits: Mapping[str, Mapping[str, Any]], container: Mapping[str, Any], volume: str) -> str:
    """Digest of the image that fills this volume: by an init container of its name, or as an image volume."""
    copy = inits.get(volume, _EMPTY).get("imageID")
    mounts = (
        ((mount.get("volumeStatus") or _EMPTY).get("image") or _EMPTY).get("imageRef")
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") == volume
    )
    told = (_DIGEST.search(str(reference)) for reference in (copy, *mounts) if reference)
    return next((sys.intern(found[0]) for found in told if found), "")


def _token(spec: Mapping[str, Any], variable: str) -> str:
    for container in spec.get("containers") or ():
        if container.get("name") == names.CONTAINER:
            own = (env for env in container.get("env") or () if env.get("name") == variable)
            value = str(next(own, _EMPTY).get("value", ""))
            # It will be sent in a header, and any user may have created the pod.
            return sys.intern(value) if _TOKEN.fullmatch(value) else ""
    return ""


def _of_another(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Termination | None:
    """The end of the container that ended the pod before `tensorflow` did: mostly one of the template's init
    containers."""
    if status.get("phase") != "Failed":
        return None
    sidecars = _sidecars(spec)
    fields = (("initContainerStatuses", True), ("containerStatuses", False))
    ends = [
        end
        for field, is_init in fields
        for container in status.get(field) or ()
        if (end := _termination(container, is_init=is_init)) is not None and _fails(end)
    ]
    # A sidecar is ended after another container has failed.
    return min(ends, key=lambda end: (end.container in sidecars, end.finished_at), default=None)


def _earlier(status: Mapping[str, Any]) -> str:
    """The container that failed before `tensorflow` did, which may depend on it."""
    ends = [end for c in status.get("containerStatuses") or () if (end := _termination(c)) is not None and _fails(end)]
    ours = next((end.finished_at for end in ends if end.container == names.CONTAINER), "")
    first = min(ends, key=lambda end: end.finished_at, default=None)
    if first is None or not "" < first.finished_at < ours:
        return ""
    return f"Its container {first.container} had ended with exit code {first.exit_code} ({first.reason})."


def _sidecars(spec: Mapping[str, Any]) -> set[str]:
    """Names of the init containers that run beside the others."""
    return {c.get("name", "") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}


def _running_init(spec: Mapping[str, Any], inits: Mapping[str, Mapping[str, Any]]) -> str:
    running = (name for name, container in inits.items() if "running" in (container.get("state") or _EMPTY))
    return next((name for name in running if name not in _sidecars(spec)), "")


def _fails(end: Termination) -> bool:
    """True if it ends its pod. A timeout of wait-for-peers is no failure."""
    gave_up = end.container == names.GATE_CONTAINER and end.exit_code == names.GATE_GAVE_UP
    return end.exit_code != 0 and not gave_up


def _termination(container: Mapping[str, Any], *, is_init: bool = False) -> Termination | None:
    ended = (container.get("state") or _EMPTY).get("terminated")
    if not ended:
        return None
    return Termination(
        exit_code=int(ended.get("exitCode", 0)),
        signal=ended.get("signal"),
        reason=_text(ended.get("reason")),
        message=_message(ended.get("message")),
        finished_at=_time(ended.get("finishedAt")),
        container=_text(container.get("name")),
        is_init=is_init,
    )


def _lingers(status: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    # While another container can't start, its image being missing for instance, the pod is Pending.
    ended = status.get("phase") in {"Succeeded", "Failed"}
    if ended or "terminated" not in (container.get("state") or _EMPTY):
        return False
    return any("terminated" not in (c.get("state") or _EMPTY) for c in status.get("containerStatuses") or ())


def _ended_at(metadata: Mapping[str, Any], status: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    """An evicted pod has no container status, and on old clusters no condition either: then its managedFields have the
    time.
    """
    wanted = (("Ready", "False"), ("DisruptionTarget", "True"))
    found = [c for kind, value in wanted if (c := conditions.get(kind, _EMPTY)).get("status") == value]
    times = [c.get("lastTransitionTime") or "" for c in found]
    # Times as Kubernetes writes them sort as texts. A pod that was never ready is not ready from before its start.
    ended = max(times, default="")
    if ended > (status.get("startTime") or ""):
        return ended
    writes = metadata.get("managedFields") or () if status.get("phase") == "Failed" else ()
    return max((write.get("time") or "" for write in writes), default="")


def _waited_in_vain(gate: Mapping[str, Any], container: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """True if the init container that waits for peers gave up, or the trainer did, which waits by itself."""
    trains = names.ANNOTATION_TRAINER_CONFIG in (metadata.get("annotations") or _EMPTY)
    ended = (container.get("state") or _EMPTY).get("terminated") or _EMPTY
    return gate.get("exitCode") == names.GATE_GAVE_UP or (trains and ended.get("exitCode") == ExitCode.PEERS_MISSING)


def _scheduled_at(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    scheduled = conditions.get("PodScheduled", _EMPTY)
    return _time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else ""


def _began(state: Mapping[str, Any]) -> str:
    """When a container began, by its state."""
    return _time(((state.get("running") or state.get("terminated")) or _EMPTY).get("startedAt"))


def _waiting(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Why the pod does not run: PodScheduled's reason, else the first waiting container's, which is named."""
    scheduled = conditions.get("PodScheduled", _EMPTY)
    if scheduled.get("status") == "False":
        return scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""
    for field, kind in (("initContainerStatuses", "init container"), ("containerStatuses", "container")):
        for container in status.get(field) or ():
            waiting = (container.get("state") or _EMPTY).get("waiting") or _EMPTY
            if waiting.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
                name = container.get("name")
                who = f"{kind} {name}" if name != names.CONTAINER else ""
                said = (who, waiting.get("message") or status.get("message"), _last_end(container))
                return waiting["reason"], " ".join(": ".join(str(text) for text in said if text).split())
    return "", ""


def _last_end(container: Mapping[str, Any]) -> str:
    """How a container that is started again ended."""
    ended = (container.get("lastState") or _EMPTY).get("terminated")
    if not ended:
        return ""
    return ": ".join(str(text) for text in (f"exit code {ended.get('exitCode')}", ended.get("message")) if text)


def _time(value: object) -> str:
    """The time, as the API server writes it; empty if it is invalid."""
    try:
        known = value and datetime.fromisoformat(str(value)).tzinfo is not None
        return sys.intern(str(value)) if known else ""
    except ValueError:
        return ""


def _text(value: object) -> str:
    """A name or a reason."""
    return sys.intern(str(value or "")[:SHORT_TEXT])


def _message(value: object) -> str:
    return sys.intern(str(value or "")[:MAX_TEXT])


def _interned(value: Any) -> Any:
    """The same value, with one copy of the strings that others may have."""
    if isinstance(value, str):
        return sys.intern(str(value))
    if isinstance(value, dict):
        return {sys.intern(str(key)): _interned(item) for key, item in value.items()}
    return [_interned(item) for item in value] if isinstance(value, list) else value


def _kept(value: Any, held: Any) -> Any:
    """The same value, with the equal parts of an earlier one."""
    if value == held:
        return held
    if isinstance(value, dict) and isinstance(held, dict):
        return {sys.intern(str(key)): _kept(item, held.get(key)) for key, item in value.items()}
    if isinstance(value, list) and isinstance(held, list) and len(value) == len(held):
        return [_kept(item, before) for item, before in zip(value, held, strict=True)]
    return _interned(value)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else default
