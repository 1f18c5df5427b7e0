"""What a failure means and what to do about it: status.lastFailure's cause, action and message.

The most specific source wins: the pod's or container's reason (eviction, OOMKilled), then the cause in the trainer's
termination message, then the exit code. If none of them is known, the cause is Unknown, and Kubernetes' own message is
quoted. A container's output is untrusted: it is cut, and only shown.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.observed.trim import NO_FOLDER
from tfgpujob.core.status import keras_errors, limits
from tfgpujob.names import Condition, Reason
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.limits import SHM_DIR, Limit

MAX_BYTES = 4096
_MAX_ACTION = 500
_MAX_START_ERROR = 2048


class Diagnosis(StrEnum):
    """status.lastFailure.cause."""

    EXCEPTION = "Exception"
    BAD_CONFIG = "BadConfig"
    LOSS_NOT_FINITE = "LossNotFinite"
    DISK_FULL = "DiskFull"
    OUT_OF_MEMORY = "OutOfMemory"
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    LIMIT_REACHED = "LimitReached"
    NOT_FETCHED = "NotFetched"
    FENCED = "Fenced"
    STOPPED = "Stopped"
    PEER_FAILURE = "PeerFailure"
    HANG = "Hang"
    KILLED = "Killed"
    CRASH = "Crash"
    DRAINED = "Drained"
    TAINTED = "Tainted"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    NODE_REFUSED = "NodeRefused"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DELETED = "Deleted"
    COMMAND = "Command"
    IMAGE = "Image"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA = "Quota"
    REFUSED = "Refused"
    DEADLINE = "Deadline"
    UNKNOWN = "Unknown"


_WHO_SENT_IT = "find out who sent it, from the pod's events and the kernel's log of its node."
ACTIONS = {
    Diagnosis.EXCEPTION: "Read the message, correct the program, and create the job again.",
    Diagnosis.BAD_CONFIG: "Correct spec.trainer as the message says, and create the job again.",
    Diagnosis.LOSS_NOT_FINITE: "Lower the learning rate, clip the gradients, or look for bad values in the data.",
    Diagnosis.DISK_FULL: "Ask for a larger volume, or keep fewer checkpoints with spec.trainer.checkpoint.keep.",
    Diagnosis.OUT_OF_MEMORY: "Lower spec.trainer.globalBatchSize, or ask for more memory or larger GPUs.",
    Diagnosis.HOST_OUT_OF_MEMORY: "Raise resources.limits.memory in the role's template, or cache and batch less.",
    Diagnosis.LIMIT_REACHED: "Raise the limit that the message names, or use less of what it limits.",
    Diagnosis.NOT_FETCHED: "Let the pods reach the host in the message, or bring what they need with the image.",
    Diagnosis.FENCED: "A newer start owns the checkpoint directory: give each job an output directory of its own.",
    Diagnosis.STOPPED: "Nothing: it stopped on request and resumes from its last checkpoint.",
    Diagnosis.PEER_FAILURE: "Look at how the other replicas ended; if none failed, check the network.",
    Diagnosis.HANG: "Look at the stacks in the message; if the program is only slow, raise spec.trainer.watchdog.",
    Diagnosis.KILLED: f"Killed by a signal: {_WHO_SENT_IT}",
    Diagnosis.CRASH: "A native library crashed: check that the image, the driver and the GPU fit together.",
    Diagnosis.DRAINED: "Nothing: somebody drains the node, and it is started on another one.",
    Diagnosis.TAINTED: "Nothing, or tolerate the node's taint in the role's template if its pods may stay there.",
    Diagnosis.EVICTED: "Set requests and limits for memory and ephemeral-storage in the role's template.",
    Diagnosis.PREEMPTED: "Nothing, or give the job a higher priorityClassName in its templates.",
    Diagnosis.NODE_LOST: "Nothing: it is started on another node; have this one looked at.",
    Diagnosis.NODE_REFUSED: "Nothing: it is scheduled again; if it is refused again, compare the template with what "
    "the message names, and look at the node's device plugin where that is a device.",
    Diagnosis.DEVICE_UNHEALTHY: "Nothing: it goes on from its last checkpoint; have the device looked at.",
    Diagnosis.DELETED: "Nothing: it is started again; if no node was drained, which servers before 1.26 don't tell, "
    "find out who deletes the job's pods.",
    Diagnosis.COMMAND: "Correct the container's command in the role's template, or its image: it is not in there.",
    Diagnosis.IMAGE: "Check the image's name and that the node may pull it (imagePullSecrets, network).",
    Diagnosis.UNSCHEDULABLE: "Ask for less, or add nodes that fit the pods' requests, selectors and tolerations.",
    Diagnosis.QUOTA: "Ask for less, or have the namespace's ResourceQuota raised.",
    Diagnosis.REFUSED: "Correct the template as the message says.",
    Diagnosis.DEADLINE: "Raise the deadline in spec.runPolicy, or train less or on more GPUs.",
    Diagnosis.UNKNOWN: "Unknown; Kubernetes says nothing: look at the pod's events and at its node.",
}
"""One sentence each, shown unchanged."""

NOT_ADMITTED = (
    "NodeAffinity",
    "NodePorts",
    "NodeShutdown",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
)
"""Reasons of a kubelet that does not admit a pod for the state of its node; a lack of room has others (OutOfcpu)."""
_BY_REASON = {
    "OOMKilled": Diagnosis.HOST_OUT_OF_MEMORY,
    "Evicted": Diagnosis.EVICTED,
    "EvictionByEvictionAPI": Diagnosis.DRAINED,
    "Preempting": Diagnosis.PREEMPTED,
    "PreemptionByScheduler": Diagnosis.PREEMPTED,
    "DeletionByTaintManager": Diagnosis.TAINTED,
    "DeletionByPodGC": Diagnosis.NODE_LOST,
    "TerminationByKubelet": Diagnosis.EVICTED,
    "NodeLost": Diagnosis.NODE_LOST,
    **dict.fromkeys(NOT_ADMITTED, Diagnosis.NODE_REFUSED),
    "DeadlineExceeded": Diagnosis.DEADLINE,
    "DeviceUnhealthy": Diagnosis.DEVICE_UNHEALTHY,
    "Shutdown": Diagnosis.NODE_LOST,
    "Terminated": Diagnosis.NODE_LOST,
    "Unknown": Diagnosis.NODE_LOST,  # containerd's, of a container whose node has restarted
    "Deleted": Diagnosis.DELETED,
    "Vanished": Diagnosis.DELETED,
    "ErrImagePull": Diagnosis.IMAGE,
    "ImagePullBackOff": Diagnosis.IMAGE,
    "InvalidImageName": Diagnosis.IMAGE,
    "ErrImageNeverPull": Diagnosis.IMAGE,
    "ImageInspectError": Diagnosis.IMAGE,
    "RegistryUnavailable": Diagnosis.IMAGE,
    "SignatureValidationFailed": Diagnosis.IMAGE,
    "CreateContainerConfigError": Diagnosis.REFUSED,
    "CreateContainerError": Diagnosis.REFUSED,
    "RunContainerError": Diagnosis.REFUSED,
    "Unschedulable": Diagnosis.UNSCHEDULABLE,
    str(Condition.STALLED): Diagnosis.HANG,
}
"""By the reason of a pod or a container."""
_BY_OWN_REASON = {
    str(Reason.QUOTA_EXCEEDED): Diagnosis.QUOTA,
    str(Reason.FORBIDDEN): Diagnosis.REFUSED,
    str(Reason.NAME_TAKEN): Diagnosis.REFUSED,
    str(Reason.TEMPLATE_REFUSED): Diagnosis.REFUSED,
    str(Reason.START_DEADLINE_EXCEEDED): Diagnosis.DEADLINE,
    str(Reason.SCHEDULE_TIMEOUT_EXCEEDED): Diagnosis.UNSCHEDULABLE,
    str(Reason.DEADLINE_EXCEEDED): Diagnosis.DEADLINE,
}
"""By the reason of a condition: no replica failed."""
_ACTIONS_BY_REASON = {
    "ErrImageNeverPull": "Bring the image to the node, or correct its name or imagePullPolicy.",
    "CreateContainerConfigError": "Create in the job's namespace what the message says is missing, or correct the "
    "template.",
    **dict.fromkeys(
        ("CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"),
        "Kubernetes says why in the message: correct the template if it is about that; otherwise have the node's "
        "container runtime looked at.",
    ),
    "DeadlineExceeded": "Raise or remove activeDeadlineSeconds in the role's template, which ended the pod.",
}
_ACTIONS_BY_OWN_REASON = {
    str(Reason.FORBIDDEN): "Correct what the message names, in the template or, as an administrator, in the cluster; "
    "it is tried again.",
    str(Reason.START_DEADLINE_EXCEEDED): "Look why the replicas were not ready, as the message says, or raise "
    "spec.runPolicy.startDeadlineSeconds.",
}
"""Those that differ from their cause's."""
_OF_ITS_OWN_LIMIT = (
    "Raise the limit that the message names (sizeLimit of the emptyDir, ephemeral-storage of the container) in the "
    "role's template, or write less there."
)
_OWN_LIMIT = ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage limit")
_REFUSED = "Pod was rejected"
"""Prefix of the kubelet's message about a pod that it does not admit, from Kubernetes 1.25 on."""
_OF_A_PROGRAM = ("", "Error", "Completed")
"""Reasons of containers whose program ended by itself, as its exit code says."""
_OF_THE_RUNTIME = ("StartError", "ContainerCannotRun", "ContainerStatusUnknown")
"""Reasons of containers whose exit code is from the runtime or the kubelet, not from a program."""
_SHELLS_CODES = (126, 127)
"""Docker's exit codes for a command that can't be run, or is not found."""
_NO_COMMAND = re.compile(r'exec: "([^"\n]{1,200})')
_EXEC_FAILED = re.compile(r"exec ([^\n:]{1,200}): (?:exec format error|no such file or directory|permission denied)")
"""Runtimes' messages about a command: at the start of a container, or in its log instead of it."""
_OURS = {
    names.CODE_VOLUME: "spec.trainer.code.image",
    names.MODELS_VOLUME: "spec.trainer.models.image",
    names.FETCH_CONTAINER: "the image of the bundled trainer",
    names.GATE_CONTAINER: "the operator's image",
}
"""The field with the image of an init container of the operator's."""
_BY_TRAINER = {
    "Exception": Diagnosis.EXCEPTION,
    "BadConfig": Diagnosis.BAD_CONFIG,
    "LossNotFinite": Diagnosis.LOSS_NOT_FINITE,
    "DiskFull": Diagnosis.DISK_FULL,
    "OutOfMemory": Diagnosis.OUT_OF_MEMORY,
    "LimitReached": Diagnosis.LIMIT_REACHED,
    "NotFetched": Diagnosis.NOT_FETCHED,
    "Fenced": Diagnosis.FENCED,
    "Stopped": Diagnosis.STOPPED,
    "PeerFailure": Diagnosis.PEER_FAILURE,
    "PeersMissing": Diagnosis.DEADLINE,
    "StartupDeadline": Diagnosis.HANG,
    "ProgressDeadline": Diagnosis.HANG,
    "Killed": Diagnosis.KILLED,
}
_BY_CODE: dict[int, Diagnosis] = {
    ExitCode.OUT_OF_MEMORY: Diagnosis.OUT_OF_MEMORY,
    ExitCode.FENCED: Diagnosis.FENCED,
    ExitCode.LIMIT_AT_START: Diagnosis.LIMIT_REACHED,
    132: Diagnosis.CRASH,
    134: Diagnosis.CRASH,
    135: Diagnosis.CRASH,
    136: Diagnosis.CRASH,
    139: Diagnosis.CRASH,
    ExitCode.PEER_FAILURE: Diagnosis.PEER_FAILURE,
    ExitCode.WATCHDOG: Diagnosis.HANG,
    ExitCode.LIMIT_REACHED: Diagnosis.LIMIT_REACHED,
    ExitCode.NOT_FETCHED: Diagnosis.NOT_FETCHED,
}
_BUS_ERROR = 135
_OF_A_BUS_ERROR = f"Look whether {SHM_DIR} is full, which ends programs so: {limits.ACTIONS[Limit.SHARED_MEMORY]}"
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]*)" not found', re.IGNORECASE)
_OF_A_CLAIM = re.compile("persistent ?volume|volume node affinity|volumes to bind", re.IGNORECASE)
_OF_A_COPY = (
    "The folder of an image was not copied, for the reason in the message: if the disk of the node was full, free it, "
    "or let the role's template ask for ephemeral-storage."
)
_OF_SILENCE = "It left no message: look at what it does before it ends, correct the program, and create the job again."
_NO_DEVICE = "cannot allocate all claims"
_BY_CODE_ALONE = (Diagnosis.EXCEPTION, Diagnosis.CRASH, Diagnosis.KILLED, Diagnosis.UNKNOWN)
"""Causes that may be a limit of the machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    cause: Diagnosis
    action: str
    message: str
    """Kubernetes' message about the pod and the trainer's own message, if any, and the last lines of the log."""

    def to_status(self) -> dict[str, Any]:
        fields = {"cause": str(self.cause), "action": self.action, "message": self.message or None}
        return {key: value for key, value in fields.items() if value is not None}


def diagnose(
    reason: str, exit_code: int | None, said: str, lines: int, sentence: str = "", *, where: str = ""
) -> Finding:
    """The diagnosis of a pod. `reason`: Kubernetes'. `said`: the termination message. `lines`:
    runPolicy.failureLogLines. `sentence`: status.message of the pod. `where`: the field of the container that ended
    (`field_of`)."""
    if command := missing_command(reason, exit_code, said):
        text = f"The command {_clean(command)} is not in the image or can't run there: correct {where}, or the image."
        return Finding(Diagnosis.COMMAND, text[:_MAX_ACTION], _with_sentence(sentence, _tail(said.splitlines(), lines)))
    trainer = _trainer_record(said)
    by_reason = _by_reason(reason, sentence)
    known = by_reason or _BY_TRAINER.get(str(trainer.get("cause")))
    cause = known or _by_code(exit_code)
    fix = trainer.get("fix") if by_reason is None else _ACTIONS_BY_REASON.get(reason)
    if known is None and cause in _BY_CODE_ALONE and (fix := limits.action(said)):
        cause = Diagnosis.LIMIT_REACHED
    if cause is Diagnosis.EXCEPTION and (missing := NO_FOLDER.search(said[-limits.MAX_CHARACTERS :])):
        cause = Diagnosis.BAD_CONFIG
        fix = f"Name an image in spec.trainer.{missing[1]}.image that has the folder /{missing[1]}."
    if cause is Diagnosis.NOT_FETCHED and said.startswith("cp: "):
        fix = _OF_A_COPY
    if cause is Diagnosis.UNSCHEDULABLE:
        fix = unschedulable(said)
    if over_own_limit(reason, sentence):
        fix = _OF_ITS_OWN_LIMIT
    if not fix and (known is None or known is Diagnosis.UNKNOWN):
        fix = _fix_by_code(cause, reason, exit_code, said, sentence)
    action = _clean(str(fix))[:_MAX_ACTION] if fix else ACTIONS[cause]
    return Finding(cause, action, _with_sentence(sentence, _message(trainer, said, lines)))


def _fix_by_code(cause: Diagnosis, reason: str, exit_code: int | None, said: str, sentence: str) -> str | None:
    """The fix for an end with only an exit code and a log."""
    if cause is Diagnosis.EXCEPTION:
        return keras_errors.action(said) if said.strip() else _OF_SILENCE
    if cause is Diagnosis.KILLED:
        return f"Killed by {_signal(exit_code)}: {_WHO_SENT_IT}"
    if cause is Diagnosis.UNKNOWN and reason == "Error" and exit_code is not None:
        return f"Unknown; Kubernetes says: exit code {exit_code}. The program chose this code: read what it printed."
    if cause is Diagnosis.UNKNOWN:
        return _unknown(reason, exit_code, sentence or (said if is_of_runtime(reason) else ""))
    return _OF_A_BUS_ERROR if exit_code == _BUS_ERROR else None


def is_of_runtime(reason: str) -> bool:
    """True if the exit code is from the container runtime or the kubelet: the program never ran, or its end was not
    seen."""
    return reason in _OF_THE_RUNTIME


def missing_command(reason: str, exit_code: int | None, said: str) -> str:
    """The command that the runtime could not run, because the image has none of that name for its architecture; empty
    if the container ended for another reason."""
    if not is_of_runtime(reason):
        found = _EXEC_FAILED.match(said) if reason == "Error" else None
    elif (found := _NO_COMMAND.search(said[:_MAX_START_ERROR])) is None and exit_code in _SHELLS_CODES:
        return "of the container"
    return found[1] if found else ""


def field_of(role: str, container: str, *, is_init: bool) -> str:
    """The field that sets what this container of a replica runs."""
    if container in _OURS:
        return _OURS[container]
    return f"spec.replicaSpecs.{role}.template.spec.{'initC' if is_init else 'c'}ontainers[{container}].command"


def over_own_limit(reason: str, sentence: str) -> bool:
    """True if the pod was evicted for its own disk usage, on a node with enough space: it would happen again."""
    return reason == "Evicted" and any(words in sentence for words in _OWN_LIMIT)


def no_room_on_node(reason: str) -> bool:
    """True if the kubelet no longer had what the scheduler had counted on: OutOfcpu, OutOfmemory, …."""
    return reason.startswith("OutOf")


def without_replica(reason: str, message: str, pod_reason: str = "") -> dict[str, Any]:
    """status.lastFailure if no replica failed: a deadline, or a refused start. `pod_reason`: why a pod that the others
    wait for does not run, which is more specific."""
    known = _BY_REASON.get(pod_reason) if pod_reason else _BY_OWN_REASON.get(reason)
    cause = known or Diagnosis.UNKNOWN
    action = advice(pod_reason, message) or _ACTIONS_BY_OWN_REASON.get(reason)
    action = action or _unknown(pod_reason, None, "") or ACTIONS[cause]
    if cause is Diagnosis.UNSCHEDULABLE:
        action = unschedulable(message)
    return {"reason": reason, **Finding(cause, action, _beginning(message)).to_status()}


def advice(reason: str, message: str = "") -> str:
    """The fix for a pod, or a start, that waits for this reason; empty if unknown."""
    cause = _BY_REASON.get(reason) or _BY_OWN_REASON.get(reason)
    if cause is Diagnosis.UNSCHEDULABLE:
        return unschedulable(message)
    known = {**_ACTIONS_BY_OWN_REASON, **_ACTIONS_BY_REASON}
    return known.get(reason, ACTIONS[cause]) if cause else ""


def unschedulable(message: str) -> str:
    """The fix for the scheduler's message: more capacity does not help a claim."""
    if missing := _NO_CLAIM.search(message[-limits.MAX_CHARACTERS :]):
        claim = f"the PersistentVolumeClaim {missing[1]}"
        return f"Create {claim} in the job's namespace, or name one that is there (kubectl get pvc)."
    if _OF_A_CLAIM.search(message):
        return "Look at its claim: kubectl describe pvc. One without a volume mostly has no StorageClass that makes it."
    if _NO_DEVICE in message:
        return "No node has free devices that its resource claim selects; kubectl get resourceslices shows all."
    return ACTIONS[Diagnosis.UNSCHEDULABLE]


def _by_reason(reason: str, sentence: str) -> Diagnosis | None:
    if is_of_runtime(reason):
        return Diagnosis.UNKNOWN
    if no_room_on_node(reason) or sentence.startswith(_REFUSED):
        return Diagnosis.NODE_REFUSED
    return None if reason in _OF_A_PROGRAM else _BY_REASON.get(reason, Diagnosis.UNKNOWN)


def _by_code(exit_code: int | None) -> Diagnosis:
    if exit_code in _BY_CODE:
        return _BY_CODE[exit_code]
    if exit_code is not None and 0 < exit_code < 128:
        return Diagnosis.EXCEPTION
    return Diagnosis.KILLED if _signal(exit_code) else Diagnosis.UNKNOWN


def _signal(exit_code: int | None) -> str:
    """The signal that killed a process with this exit code; empty if it is none."""
    try:
        return signal.Signals((exit_code or 0) - 128).name
    except ValueError:
        return ""


def _unknown(reason: str, exit_code: int | None, sentence: str) -> str:
    """Kubernetes' message, if nothing else is known; empty without one."""
    told = [reason if reason != "Error" else "", sentence, "" if exit_code is None else f"exit code {exit_code}"]
    words = ": ".join(text for text in told if text)
    return f"Unknown; Kubernetes says: {words}" if words else ""


def _with_sentence(sentence: str, message: str) -> str:
    head = _clean(sentence).strip()[:1000]
    return _with_head(head, message) if head and message else head or message


def _trainer_record(said: str) -> dict[str, Any]:
    """The bundled trainer's JSON; empty for other output."""
    if not said.startswith("{"):
        return {}
    try:
        record = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def message_of(pod: Pod) -> str:
    """The bundled trainer's own words about its end; empty if there are none."""
    return _message(_trainer_record(pod.termination.message), "", 0) if pod.termination is not None else ""


def _message(trainer: dict[str, Any], said: str, lines: int) -> str:
    if not isinstance(trainer.get("message"), str):
        return _tail(said.splitlines(), lines)
    logged = trainer.get("lastLines")
    last = [_clean(str(line)) for line in logged] if isinstance(logged, list) else []
    head = _clean(trainer["message"])[:1000]
    return _cut(head, MAX_BYTES) if not lines or not last else _with_head(head, _tail(last, lines))


def _with_head(head: str, tail: str) -> str:
    return f"{head}\n{_cut(tail, MAX_BYTES - len(head.encode()) - 1)}"


def _tail(lines: list[str], count: int) -> str:
    return _cut("\n".join(lines[-count:]) if count else "", MAX_BYTES)


def _clean(text: str) -> str:
    """Text without lone surrogates, which UTF-8 can't encode but JSON strings may have."""
    return text.encode(errors="replace").decode()


def _beginning(text: str) -> str:
    """The beginning of an API server's or a webhook's sentence, which may have several lines."""
    return text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")


def _cut(text: str, size: int) -> str:
    """The end of the text, in at most this many bytes."""
    return text.encode(errors="replace")[-size:].decode(errors="ignore") if size > 0 else ""
