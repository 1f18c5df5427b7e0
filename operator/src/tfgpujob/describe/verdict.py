"""The head of the page: the state of the job, why, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tfgpujob.core.membership.messages import telling
from tfgpujob.core.observed.ownership import is_dispatched, other_manager
from tfgpujob.core.observed.snapshot import Pod
from tfgpujob.core.observed.waiting import names_what_lacks
from tfgpujob.core.status.diagnosis import ACTIONS, Diagnosis, advice, is_of_runtime
from tfgpujob.describe.facts import AWAY_SECONDS, Facts, moment, unseen_seconds
from tfgpujob.describe.timeline import last_time, warning_text
from tfgpujob.names import MULTIKUEUE, Condition, Reason, Role
from tfgpujob.units import duration

_LOG_CAUSES: Final = frozenset(
    {
        Diagnosis.EXCEPTION,
        Diagnosis.LOSS_NOT_FINITE,
        Diagnosis.DISK_FULL,
        Diagnosis.OUT_OF_MEMORY,
        Diagnosis.LIMIT_REACHED,
        Diagnosis.NOT_FETCHED,
        Diagnosis.HANG,
        Diagnosis.CRASH,
        Diagnosis.PEER_FAILURE,
        Diagnosis.KILLED,
        Diagnosis.UNKNOWN,
    }
)
"""Failures about which the replica's log says more."""

_TIMES: Final = frozenset({"time", "lastTransitionTime"})
"""Keys of what has happened; others name what is to come."""

_OBSTACLES: Final = frozenset(
    {
        Reason.QUOTA_EXCEEDED,
        Reason.FORBIDDEN,
        Reason.START_DEADLINE_EXCEEDED,
        Reason.SCHEDULE_TIMEOUT_EXCEEDED,
    }
)
"""Reasons for which pods can't be created; other reasons only mean that they are not due yet."""


@dataclass(frozen=True, slots=True)
class Verdict:
    state: str
    """One word, or two."""
    why: str
    """The cause, quoted from the condition, pod or trainer that names it. May have several lines."""
    steps: tuple[str, ...] = ()
    """What to do next; commands begin with `tfgpu` or `kubectl`."""


def find_verdict(facts: Facts) -> Verdict:
    """The first rule that applies decides, the most important first. Commands can do nothing for a job that is gone."""
    found = _verdict(facts)
    if not facts.gone:
        return found
    steps = tuple(step for step in found.steps if "tfgpu " not in step and "kubectl " not in step)
    return Verdict(f"{found.state}, deleted", found.why, steps)


def _verdict(facts: Facts) -> Verdict:
    rules: tuple[Callable[[Facts], Verdict | None], ...] = (
        _deleted,
        _unseen,
        _set_aside,
        _refused,
        _ended,
        _operator_away,
        _waiting_in_a_queue,
        _suspended,
        _elsewhere,
        _not_created,
        _restarting,
        _on_a_lost_node,
        _not_ready,
        _held_up,
        _resizing,
    )
    for rule in rules:
        verdict = rule(facts)
        if verdict is not None:
            return verdict
    return Verdict(_phase(facts), facts.condition(Condition.RUNNING).get("message", ""), (_logs(facts, "-f"),))


def _deleted(facts: Facts) -> Verdict | None:
    if "deletionTimestamp" not in facts.job["metadata"]:
        return None
    return Verdict("Deleting", f"It is being deleted; {len(facts.pods)} of its pods are still there.")


def _unseen(facts: Facts) -> Verdict | None:
    field, manager = other_manager(facts.job)
    dispatched = is_dispatched(facts.job)
    if manager and not dispatched and facts.condition(Condition.ACCEPTED).get("status") != "False":
        text = f"{field} leaves it to {manager}: the tfgpu operator does not touch it."
        step = f"Look at what {manager} says, or create it again without managedBy."
        if manager == MULTIKUEUE:
            step = "MultiKueue reads spec.managedBy alone: create it again with that."
        return Verdict(_phase(facts), text, (step,))
    if facts.status.get("conditions"):
        return None
    if dispatched:
        text = "spec.managedBy leaves it to MultiKueue, and the operator has not written its Workload yet."
        return Verdict("Not seen", text, ("If this lasts: does the operator run, and is kueue.enabled in its chart?",))
    if seconds := unseen_seconds(facts.job, facts.now):
        text = f"The operator has not looked at it for {duration(seconds)}: it is not running, or does not watch this"
        return Verdict("Not seen", f"{text} namespace.", ("tfgpu doctor",))
    return Verdict("Not seen", "The operator has not looked at it yet.")


def _operator_away(facts: Facts) -> Verdict | None:
    """A failure that the status would have by now. An evaluator's stops nothing, so its pod may stay."""
    written = _last_written(facts.status)
    for pod in facts.pods:
        failed = pod.termination is not None and pod.termination.exit_code and pod.role != Role.EVALUATOR
        ended = moment(pod.termination.finished_at) if failed and pod.termination is not None else None
        if ended is None or pod.deleting:
            continue
        seconds = (facts.now - ended).total_seconds()
        if seconds > AWAY_SECONDS and (written is None or written < ended):
            text = f"{pod.name} failed {duration(seconds)} ago, and the operator has not written anything since."
            return Verdict(f"{_phase(facts)}, the operator is away", text, ("tfgpu doctor", _logs(facts)))
    return None


def _last_written(status: Any) -> datetime | None:
    """The newest time that the operator has put into the status."""
    if isinstance(status, Mapping):
        told = [moment(value) for key, value in status.items() if key in _TIMES and isinstance(value, str)]
        found = [*told, *map(_last_written, status.values())]
    else:
        found = list(map(_last_written, status)) if isinstance(status, list) else []
    return max((at for at in found if at is not None), default=None)


def _set_aside(facts: Facts) -> Verdict | None:
    if not facts.is_true(Condition.QUARANTINED) or facts.is_true(Condition.FINISHED):
        return None
    step = "Make it smaller, then: kubectl apply -f job.yaml"
    return Verdict(f"Set aside{_running(facts)}", facts.condition(Condition.QUARANTINED)["message"], (step,))


def _running(facts: Facts) -> str:
    return " (its pods continue)" if any(pod.phase == "Running" for pod in facts.pods) else ""


def _refused(facts: Facts) -> Verdict | None:
    condition = facts.condition(Condition.ACCEPTED)
    if condition.get("status") != "False" or facts.is_true(Condition.FINISHED):
        return None
    name, reason = facts.name, condition["reason"]
    edit = ("Correct the file as it says, then: kubectl apply -f job.yaml",)
    steps = {
        Reason.INVALID_SPEC: edit,
        Reason.TEMPLATE_REFUSED: edit,
        Reason.NAME_TAKEN: ("Free the name, and the job starts; or submit it under another name.",),
        Reason.IMMUTABLE_FIELD_CHANGED: (
            "Take the change back, and the job continues; running pods are not touched.",
            f"Or start with the change, from the last checkpoint: tfgpu restart {name}",
        ),
    }
    return Verdict(f"Not accepted{_running(facts)}", condition["message"], steps.get(reason, edit))


def _ended(facts: Facts) -> Verdict | None:
    logs = _kept_logs(facts, facts.pods, _logs(facts))
    if facts.is_true(Condition.SUCCEEDED):
        return Verdict("Succeeded", facts.condition(Condition.SUCCEEDED)["message"], logs)
    if not facts.is_true(Condition.FAILED):
        return None
    why, steps = _failure(facts)
    message = facts.condition(Condition.FAILED)["message"]
    again = f"When it is corrected: tfgpu restart {facts.name}"
    if "configMap" in ((facts.spec.get("trainer") or {}).get("code") or {}):
        again = (
            f"When the code is corrected: tfgpu submit FILE --replace; tfgpu restart {facts.name} runs the same code"
        )
    return Verdict("Failed", why or message, (*(steps or logs), again))


def _waiting_in_a_queue(facts: Facts) -> Verdict | None:
    condition = facts.condition(Condition.SUSPENDED)
    if condition.get("status") != "True" or condition.get("reason") != Reason.WAITING_FOR_ADMISSION:
        return None
    return Verdict("Waiting", condition["message"], (f"kubectl describe workload {facts.name}",))


def _elsewhere(facts: Facts) -> Verdict | None:
    if not is_dispatched(facts.job):
        return None
    text = "MultiKueue runs it in another cluster, and copies its status from there. Its pods and logs are there too."
    cluster = f"kubectl get workload {facts.name} -o jsonpath='{{.status.clusterName}}'"
    message = facts.condition(Condition.RUNNING).get("message", "")
    return Verdict(_phase(facts), f"{message}\n{text}" if message else text, (cluster,))


def _suspended(facts: Facts) -> Verdict | None:
    wanted = (facts.spec.get("runPolicy") or {}).get("suspend")
    if not facts.is_true(Condition.SUSPENDED) and not wanted:
        return None
    state = "Suspended" if facts.is_true(Condition.SUSPENDED) else "Suspending"
    text = facts.condition(Condition.SUSPENDED).get("message") or "spec.runPolicy.suspend is true."
    return Verdict(state, text, (f"tfgpu resume {facts.name}",))


def _not_created(facts: Facts) -> Verdict | None:
    condition = facts.condition(Condition.CREATED)
    if condition.get("status") != "False" or condition.get("reason") not in _OBSTACLES:
        return None
    return Verdict(f"Waiting ({condition['reason']})", condition["message"], _steps(advice(condition["reason"])))


def _restarting(facts: Facts) -> Verdict | None:
    if not facts.is_true(Condition.RESTARTING):
        return None
    why, steps = _failure(facts)
    message = facts.condition(Condition.RESTARTING)["message"]
    return Verdict("Restarting", f"{why}\n{message}" if why else message, steps)


def _on_a_lost_node(facts: Facts) -> Verdict | None:
    lost = facts.lost_nodes()
    stuck = [pod for pod in facts.pods if pod.node in lost and pod.termination is None]
    if not stuck:
        return None
    pods = ", ".join(pod.name for pod in stuck)
    text = f"The node {stuck[0].node} is gone or not ready, and with it {pods}."
    return Verdict(_phase(facts), text, _steps(ACTIONS[Diagnosis.NODE_LOST], f"kubectl describe node {stuck[0].node}"))


def _not_ready(facts: Facts) -> Verdict | None:
    waiting, running = [pod for pod in facts.pods if pod.waiting_reason], facts.condition(Condition.RUNNING)
    if not waiting and running.get("reason") == Reason.REPLICA_NOT_READY:
        unready = [pod for pod in facts.pods if not pod.ready]
        why = "\n".join((str(running["message"]), *_warnings(facts, unready)[-1:]))
        return Verdict(f"{_phase(facts)}, not ready", why, ())
    if not waiting or facts.is_true(Condition.RUNNING):
        return None
    pod = telling(waiting)
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    text = f"{pod.name}{others}: {pod.waiting_reason}: {pod.waiting_message}".rstrip(": ")
    known = str(facts.condition(Condition.RUNNING).get("message") or "")
    if not pod.no_room and names_what_lacks(known):
        # The operator has seen the scheduler's earlier message.
        text = known
    next_step = advice(pod.waiting_reason, pod.waiting_message)
    steps = _steps(next_step, _room(facts, pod.waiting_message)) or (f"kubectl describe pod {pod.name}",)
    return Verdict(f"Waiting ({pod.waiting_reason})", text, steps)


def _warnings(facts: Facts, pods: Sequence[Pod]) -> list[str]:
    """Kubernetes' about these pods, the last one at the end; none if the user may not read them."""
    uids = {pod.uid for pod in pods}
    about = [event for event in facts.warnings if event["involvedObject"]["uid"] in uids]
    return [warning_text(event) for event in sorted(about, key=lambda event: last_time(event) or "")]


def _held_up(facts: Facts) -> Verdict | None:
    for condition in (Condition.STALLED, Condition.DEGRADED, Condition.GPUS_IDLE):
        if facts.is_true(condition):
            found = facts.condition(condition)
            return Verdict(f"{_phase(facts)}, {condition}", found["message"], (_logs(facts, "-f"),))
    return None


def _resizing(facts: Facts) -> Verdict | None:
    running, created = facts.condition(Condition.RUNNING), facts.condition(Condition.CREATED)
    states: dict[str, str] = {Reason.RESIZING: "being resized", Reason.SHRUNK: "with fewer workers"}
    state = states.get(running.get("reason", ""))
    if not facts.is_true(Condition.RUNNING) or state is None:
        return None
    refused = [created["message"]] if created.get("reason") in _OBSTACLES else []
    why = "\n".join([running["message"], *refused])
    return Verdict(f"{_phase(facts)}, {state}", why, (_logs(facts, "-f"),))


def _failure(facts: Facts) -> tuple[str, tuple[str, ...]]:
    """The cause and the next steps, from status.lastFailure; empty when there is none."""
    last: dict[str, Any] = dict(facts.status.get("lastFailure") or {})
    if not last:
        return "", ()
    who = f"{facts.name}-{last['role']}-{last['index']}" if "role" in last else facts.name
    other = last.get("container")
    who += f", container {other}" if other else ""
    code = f", exit code {last['exitCode']}" if "exitCode" in last else ""
    head = f"{who}: {last.get('cause') or last.get('reason', 'Failed')}{code}"
    said = str(last.get("message") or "").strip()
    steps = _steps(_begun(str(last.get("action") or "")))
    kept = [pod for pod in facts.pods if (pod.role, pod.index) == (last.get("role"), last.get("index"))]
    # A failed probe or hook, for instance, which only an event reports.
    warned = _warnings(facts, kept) if last.get("cause") in {Diagnosis.KILLED, Diagnosis.UNKNOWN} else []
    ends = [said for said in warned if _field_that_ends(said)]
    warned = (ends or warned)[-1:]
    if ends:
        field = _field_that_ends(ends[-1])
        steps = (f"Correct {field} in the role's template: it failed, so the kubelet killed the container.",)
    if "role" in last and last.get("cause") in _LOG_CAUSES and not is_of_runtime(last.get("reason", "")):
        own = _logs(facts, f"--role {last['role']} --index {last['index']}")
        steps += _kept_logs(facts, kept, f"kubectl logs {kept[0].name} -c {other}" if other and kept else own)
    if said and said in "".join((*warned, *steps)):
        said = ""
    return "\n".join(_steps(head, said, *warned)), steps


def _kept_logs(facts: Facts, pods: Sequence[Pod], command: str) -> tuple[str, ...]:
    """The command for the logs of these pods of an attempt; if they are gone at the job's end, how they are kept."""
    if any(not pod.deleting for pod in pods):
        return (command,)
    # MultiKueue deletes the pods elsewhere; those of an earlier attempt go whatever the policy.
    if facts.gone or is_dispatched(facts.job) or not facts.is_true(Condition.FINISHED):
        return ()
    kept = (facts.spec.get("runPolicy") or {}).get("cleanPodPolicy") == "None"
    how = "" if kept else " To keep pods after the job's end: spec.runPolicy.cleanPodPolicy: None."
    return (f"The pods are deleted, and their logs with them.{how}",)


_ENDS_A_CONTAINER: Final = {
    ": FailedPostStartHook: ": "lifecycle.postStart",
    ": Liveness probe failed": "livenessProbe",
    ": Startup probe failed": "startupProbe",
}
"""For which field of its template the kubelet kills a container, by words of the warning."""


def _field_that_ends(warning: str) -> str:
    return next((field for words, field in _ENDS_A_CONTAINER.items() if words in warning), "")


def _begun(action: str) -> str:
    """With a capital letter, unless it begins with a field: the trainer's fixes follow a problem in its own log."""
    return action[:1].upper() + action[1:] if action.partition(" ")[0].isalpha() else action


def _room(facts: Facts, message: str) -> str:
    """For a pod that fits on no node for want of GPUs, as the scheduler's message says: those that the nodes have."""
    resource = str((facts.spec.get("gpu") or {}).get("resourceName") or "nvidia.com/gpu")
    if not facts.nodes or resource not in message:
        return ""
    offers = []
    for node in facts.nodes:
        count = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
        if count is not None:
            offers.append(f"{node['metadata']['name']} {count}")
    return f"Nodes have this many {resource} in all: {', '.join(offers)}." if offers else f"No node has {resource}."


def _steps(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def _logs(facts: Facts, flags: str = "") -> str:
    return f"tfgpu logs {facts.name} {flags}".rstrip()


def _phase(facts: Facts) -> str:
    return str(facts.status.get("phase") or "Pending")
