"""The pod that shows a job's events in TensorBoard: the job's own image, beside the volume that the job writes to.

It is made with the rights of whoever asks, belongs to the job, and carries none of the operator's labels.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.client.errors import TensorBoardError
from tfgpujob.client.job import Job
from tfgpujob.client.volume import main_container, volume_of
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.parsed import is_accepted
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods.pod import Replica, build_pod

PORT: Final = 6006
LIFETIME_SECONDS: Final = 8 * 3600
"""A viewer that its owner could not delete ends by itself."""
_NAME: Final = "tensorboard"
_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own: the rest of its disk is read-only
_SCHEDULING: Final = ("imagePullSecrets", "nodeSelector", "serviceAccountName", "tolerations")
_READING: Final = (
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
)
"""What of a security context decides who may read a volume, and what a namespace may ask of every pod."""


def viewer_pod(job: Job, *, logdir: str | None = None, image: str | None = None) -> Object:
    """Raises TensorBoardError for a job whose events nobody else can read, or has not written any yet.

    `logdir`: the directory of the events as the job's pods see it. None: where the bundled trainer writes them.
    `image`: one with TensorBoard in it. None: the job's own.
    """
    status = job.raw.get("status") or {}
    if not status.get("plan"):
        fix = f"wait for it: tfgpu wait {job.name} --for Running"
        raise TensorBoardError(f"{job.name} has not been started, so it has written nothing", fix)
    if not is_accepted(job.raw):
        # The operator may refuse what the author has written since, and this pod is made with the caller's rights.
        problem = f"the operator has not accepted the spec of {job.name} as it is now"
        raise TensorBoardError(problem, f"see tfgpu describe {job.name}")
    spec = _spec(job)
    directory = logdir or _directory(job)
    plan = Plan.from_status(status["plan"])
    role, index = plan.chief()
    restarts = restart_records.read(status).get((role, index), RestartRecord()).restarts
    writer = build_pod(job.raw, spec, plan, Replica(role, index, status.get("attempt", 1), restarts))
    template, context = writer["spec"], main_container(writer).get("securityContext") or {}
    mount, volume = volume_of(writer, directory, bundled=spec.trainer is not None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-{_NAME}-{secrets.token_hex(3)}",
            "namespace": job.namespace,
            "labels": {names.LABEL_APP_NAME: _NAME, names.LABEL_APP_INSTANCE: job.name},
            "ownerReferences": [job.owner_reference],
        },
        "spec": {
            **{key: template[key] for key in _SCHEDULING if key in template},
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "affinity": _near(job),
            "automountServiceAccountToken": False,
            "containers": [_container(image or plan.images[role], directory, mount)],
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "securityContext": _user(template.get("securityContext") or {}, context),
            "terminationGracePeriodSeconds": 1,
            "volumes": [volume, {"name": "tmp", "emptyDir": {}}],
        },
    }


def _spec(job: Job) -> JobSpec:
    try:
        return job.spec
    except ValueError as error:
        raise TensorBoardError(f"{job.name} has a spec that is refused", f"see tfgpu describe {job.name}") from error


def _directory(job: Job) -> str:
    if job.spec.trainer is None:
        fix = "name it with --logdir, as the job's pods see it"
        raise TensorBoardError(f"{job.name} runs a program of its own, which may write its events anywhere", fix)
    return f"{job.spec.trainer.output.directory.rstrip('/')}/tensorboard"


def _near(job: Job) -> Object:
    """Where the job's pods are, if there is room: many volumes can be mounted on one node only."""
    term = {
        "labelSelector": {"matchLabels": {names.LABEL_JOB_NAME: job.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _user(of_pod: Mapping[str, Any], of_container: Mapping[str, Any]) -> Object:
    """As the program that writes the events, whose container may say other than its pod, so that it may read them."""
    wanted = {key: context[key] for context in (of_pod, of_container) for key in _READING if key in context}
    context = {"runAsUser": names.NON_ROOT_USER, **wanted}
    if context.get("seccompProfile", {}).get("type") != "Localhost":
        # The training may need to be unconfined; TensorBoard does not.
        context["seccompProfile"] = {"type": "RuntimeDefault"}
    return {**context, "runAsNonRoot": context["runAsUser"] != 0}


def _container(image: str, directory: str, mount: Object) -> Object:
    """It listens inside the pod only: TensorBoard asks nobody for a password."""
    return {
        "name": _NAME,
        "image": image,
        "command": [_NAME, "--logdir", directory, "--port", str(PORT)],
        "env": [{"name": "HOME", "value": _TMP}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount, {"name": "tmp", "mountPath": _TMP}],
    }
