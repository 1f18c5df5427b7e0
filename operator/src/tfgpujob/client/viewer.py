"""The pod that shows a job's events in TensorBoard: the job's own image, beside the volume that the job writes to.

It is made with the rights of whoever asks, belongs to the job, and carries none of the operator's labels.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from tfgpujob import names
from tfgpujob.client.errors import TensorBoardError
from tfgpujob.client.job import Job
from tfgpujob.core.metadata import pod_name
from tfgpujob.core.plan import Plan
from tfgpujob.core.pods import NON_ROOT_USER, Replica, build_pod
from tfgpujob.core.snapshot import Object

PORT: Final = 6006
LIFETIME_SECONDS: Final = 8 * 3600
"""A viewer that its owner could not delete ends by itself."""
_NAME: Final = "tensorboard"
_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own: the rest of its disk is read-only
_SCHEDULING: Final = ("imagePullSecrets", "nodeSelector", "serviceAccountName", "tolerations")


def viewer_pod(job: Job, *, logdir: str | None = None, image: str | None = None) -> Object:
    """Raises TensorBoardError for a job whose events nobody else can read, or has not written any yet.

    `logdir`: the directory of the events as the job's pods see it. None: where the bundled trainer writes them.
    `image`: one with TensorBoard in it. None: the job's own.
    """
    status = job.raw.get("status") or {}
    if not status.get("plan"):
        fix = f"wait for it: tfgpu wait {job.name} --for Running"
        raise TensorBoardError(f"{job.name} has not been started, so it has written nothing", fix)
    directory = logdir or _directory(job)
    plan = Plan.from_status(status["plan"])
    role, index = plan.chief()
    template = build_pod(job.raw, job.spec, plan, Replica(role, index, 1))["spec"]
    mount, volume = _volume(job, template, directory, pod_name(job.name, role, index))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-{_NAME}-{secrets.token_hex(3)}",
            "namespace": job.namespace,
            "labels": {names.LABEL_APP_NAME: _NAME, names.LABEL_APP_INSTANCE: job.name},
            "ownerReferences": [
                {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.uid}
            ],
        },
        "spec": {
            **{key: template[key] for key in _SCHEDULING if key in template},
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "affinity": _near(job),
            "automountServiceAccountToken": False,
            "containers": [_container(image or plan.images[role], directory, mount)],
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "securityContext": _user(template.get("securityContext") or {}),
            "terminationGracePeriodSeconds": 1,
            "volumes": [volume, {"name": "tmp", "emptyDir": {}}],
        },
    }


def _directory(job: Job) -> str:
    if job.spec.trainer is None:
        fix = "name it with --logdir, as the job's pods see it"
        raise TensorBoardError(f"{job.name} runs a program of its own, which may write its events anywhere", fix)
    return f"{job.spec.trainer.output.directory.rstrip('/')}/tensorboard"


def _volume(job: Job, template: Mapping[str, Any], directory: str, pod: str) -> tuple[Object, Object]:
    """The mount that holds the directory, and its volume."""
    container = next(c for c in template["containers"] if c["name"] == names.CONTAINER)
    mounts = [
        m for m in container.get("volumeMounts") or () if f"{directory}/".startswith(f"{m['mountPath'].rstrip('/')}/")
    ]
    mount = max(mounts, key=lambda mount: len(mount["mountPath"]), default={"name": ""})
    volumes = {volume["name"]: volume for volume in template.get("volumes") or ()}
    volume = volumes.get(mount["name"], {"emptyDir": {}})
    if "emptyDir" in volume:
        claim = "name a claim in spec.trainer.output.claim" if job.spec.trainer else f"mount a claim at {directory}"
        fix = (
            f"{claim}; while the pod is there: "
            f"kubectl cp -c {names.CONTAINER} {job.namespace}/{pod}:{directory} events && tensorboard --logdir events"
        )
        raise TensorBoardError(f"{job.name} keeps {directory} in its pods, where nobody else can read it", fix)
    return {**mount, "readOnly": True}, volume


def _near(job: Job) -> Object:
    """Where the job's pods are, if there is room: many volumes can be mounted on one node only."""
    term = {
        "labelSelector": {"matchLabels": {names.LABEL_JOB_NAME: job.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _user(of_job: Mapping[str, Any]) -> Object:
    """As the job's pods, so that it may read what they wrote."""
    context = {"runAsUser": NON_ROOT_USER, "seccompProfile": {"type": "RuntimeDefault"}, **of_job}
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
