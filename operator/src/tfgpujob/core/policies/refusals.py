"""The meaning of an API server's refusal: whether only an edit helps or a retry does, and the message for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfgpujob.core.observed.ownership import Ownership, dependent_ownership, pod_ownership
from tfgpujob.core.observed.snapshot import DEVICE_TEMPLATES, POD_GROUPS, WORKLOADS, Kind, Pod, Refusal
from tfgpujob.names import Condition, Reason

_ADMISSION = ("ValidatingAdmissionPolicy '", 'admission webhook "')
"""How an API server reports a refusal by a policy of the cluster, with 400 and 422 as well as with 403: the template is
valid, and the policy may change. So may the reason for which a pod group is refused: a queue that does not exist."""
_FIELDS: Final = {Kind.POD: "template", Kind.CLAIM: "volumeClaimTemplates"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the pods of an attempt could not be created, as a condition and a message for people."""

    condition: Condition
    reason: Reason
    message: str
    object: str
    retry_cap: float | None
    """The backoff's limit in seconds; None: no retry, only an edit of the spec helps."""
    while_running: str = ""
    """The message while other pods of the attempt run, whose template can't just be edited. Empty: the same."""
    pod_reason: str = ""
    """Why a pod that the others wait for does not run, by Kubernetes' reason (`ImagePullBackOff`); empty: unknown."""


def problem(refusals: tuple[Refusal, ...], job_uid: str, attempt: int) -> Problem | None:
    """The refusal to report: preferably one that needs an edit. None: there is none to report."""
    found = problems(refusals, job_uid, attempt)
    return min(found, key=lambda p: (p.retry_cap is not None, p.condition != Condition.ACCEPTED), default=None)


def problems(refusals: tuple[Refusal, ...], job_uid: str, attempt: int) -> list[Problem]:
    """All refusals, except those by a stale object of ours, which will be gone soon."""
    return [p for p in (_problem(refusal, job_uid, attempt) for refusal in refusals) if p is not None]


def _problem(refusal: Refusal, job_uid: str, attempt: int) -> Problem | None:
    what = f"{refusal.kind} {refusal.name}"
    wanted = refusal.create
    if refusal.code == 409:
        return name_taken(refusal.kind, refusal.name, wanted) if _is_foreign(refusal, job_uid, attempt) else None
    said = f"{refusal.message.strip().rstrip('.')}."
    by_policy = refusal.kind in {*POD_GROUPS, *WORKLOADS} or any(policy in refusal.message for policy in _ADMISSION)
    if refusal.code in {400, 422} and not by_policy:
        text = f"{_template_of(refusal)}: {what} was refused: {said}"
        running = f"{text} What runs goes on: suspend the job, correct the template, and resume it."
        alone = f"{text} Correct the template."
        return Problem(Condition.ACCEPTED, Reason.TEMPLATE_REFUSED, alone, wanted, None, running)
    if "exceeded quota" in refusal.message:
        message = f"{what} does not fit: {said} Nothing is held meanwhile; it is tried again."
        return Problem(Condition.CREATED, Reason.QUOTA_EXCEEDED, message, wanted, 60)
    # Without the right to create pods, no template helps.
    by_template = refusal.kind in _FIELDS and "cannot create resource" not in refusal.message
    at = f"{_template_of(refusal)}: " if by_template else ""
    message = f"{at}{what} was refused: {said} It is tried again."
    return Problem(Condition.CREATED, Reason.FORBIDDEN, message, wanted, 300)


def _template_of(refusal: Refusal) -> str:
    """The field of the spec from which the refused object is made."""
    if refusal.kind in DEVICE_TEMPLATES:
        return "spec.gpu.claim"
    field = _FIELDS.get(refusal.kind)
    return f"spec.replicaSpecs.{_role_of(refusal.name)}.{field}" if field else "spec"


def _role_of(pod_name: str) -> str:
    """The role in <job>-<role>-<index>, and in a claim's name, which ends so; empty for a service's name."""
    return ("", "", *pod_name.rsplit("-", 2))[-2]


def name_taken(kind: Kind, name: str, create: str = "") -> Problem:
    """`create`: the name of the object that can't be created because of it, if it is another one."""
    message = (
        f"metadata.name: the {kind.lower()} {name} belongs to somebody else. "
        f"Delete or rename that {kind.lower()}, or give this job another name; it is checked again until then."
    )
    return Problem(Condition.ACCEPTED, Reason.NAME_TAKEN, message, create or name, 30, f"{message} What runs goes on.")


def _is_foreign(refusal: Refusal, job_uid: str, attempt: int) -> bool:
    holder = refusal.holder
    if holder is None:
        return False
    if refusal.kind is Kind.CLAIM or refusal.kind in DEVICE_TEMPLATES:
        return True
    if isinstance(holder, Pod):
        return pod_ownership(holder, job_uid, attempt) is Ownership.FOREIGN
    return dependent_ownership(holder, job_uid) is Ownership.FOREIGN
