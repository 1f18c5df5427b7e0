"""A pod of the job's image that mounts the job's volume, to show its events or to serve its files.

It is created with the caller's rights, is owned by the job, and has none of the operator's labels.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping
from typing import Any, Final

from tfgpujob import names
from tfgpujob.api import JobSpec
from tfgpujob.client.errors import TensorBoardError
from tfgpujob.client.job import Job
from tfgpujob.client.own_pod import CONFINED
from tfgpujob.client.volume import main_container, volume_of
from tfgpujob.core.observed import restart_records
from tfgpujob.core.observed.parsed import is_accepted
from tfgpujob.core.observed.plan import Plan
from tfgpujob.core.observed.restart_records import RestartRecord
from tfgpujob.core.observed.snapshot import Object
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob_contract.pod import PLACED, SCRIPT_DIR

PORT: Final = 6006
LIFETIME_SECONDS: Final = 8 * 3600
"""A viewer that its owner could not delete ends by itself."""
_NAME: Final = "tensorboard"
_HAND_OUT: Final = """
import http.server, os, sys, tarfile

port, placed, *places = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        found = next((place for place in places if os.path.exists(place)), None)
        self.send_response(204 if self.path != "/tar" else 404 if found is None else 200)
        if self.path != "/tar" or found is None:
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with tarfile.open(fileobj=self, mode="w|") as archive:
            archive.add(found, "found", filter=self.wanted)
        self.wfile.write(b"0\\r\\n\\r\\n")

    def write(self, data):
        self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(data), data))

    def wanted(self, member):
        unwanted = os.path.basename(member.name) == placed or (member.issym() and os.path.isabs(member.linkname))
        return None if unwanted else member


http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
"""Links to code that is mounted only in the job's pods are left out, and the trainer's list of it. Chunks show whether
the archive is complete."""
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
"""Fields of a security context that decide who may read a volume, or that a namespace may require of every pod."""


def viewer_pod(job: Job, *, logdir: str | None = None, image: str | None = None) -> Object:
    """Raises TensorBoardError for a job whose events no other pod can read, or that has written none yet.

    `logdir`: the directory of the events as the job's pods see it. None: where the bundled trainer writes them.
    `image`: one with TensorBoard in it. None: the job's own.
    """
    directory = logdir or _directory(job)
    command = [_NAME, "--logdir", directory, "--port", str(PORT)]
    return _beside(job, _NAME, directory, command, image=image, copy="events && tensorboard --logdir events")


def files_pod(job: Job, path: str, *, image: str | None = None) -> Object:
    """Hands out one file or folder as a tar archive, at /tar. Raises TensorBoardError, as for a viewer.

    `path`: as the job's pods see it; a relative one is below what a script writes, or the output directory.
    `image`: one with Python in it. None: the job's own.
    """
    trainer = _spec(job).trainer
    if not path.startswith("/") and trainer is None:
        fix = "name them by a path that begins with /, as the job's pods see it"
        raise TensorBoardError(f"{job.name} runs a program of its own, which may write its files anywhere", fix)
    output = "/" if trainer is None else trainer.output.directory.rstrip("/")
    places = [path] if path.startswith("/") else [f"{output}/{SCRIPT_DIR}/{path}", f"{output}/{path}"]
    command = ["python", "-c", _HAND_OUT, str(PORT), PLACED, *map(posixpath.normpath, places)]
    return _beside(job, "cp", places[0], command, image=image, copy=posixpath.basename(path) or ".")


def _beside(job: Job, what: str, directory: str, command: list[str], *, image: str | None, copy: str) -> Object:
    status = job.raw.get("status") or {}
    if not status.get("plan"):
        fix = f"wait for it: tfgpu wait {job.name} --for Running"
        raise TensorBoardError(f"{job.name} has not been started, so it has written nothing", fix)
    if not is_accepted(job.raw):
        # The operator may refuse what the author has written since, and this pod has the caller's rights.
        problem = f"the operator has not accepted the spec of {job.name} as it is now"
        raise TensorBoardError(problem, f"see tfgpu describe {job.name}")
    spec = _spec(job)
    plan = Plan.from_status(status["plan"])
    role, index = plan.members.chief
    restarts = restart_records.read(status).get((role, index), RestartRecord()).restarts
    writer = build_pod(job.raw, spec, plan, Replica(role, index, status.get("attempt", 1), restarts))
    template, context = writer["spec"], main_container(writer).get("securityContext") or {}
    mount, volume = volume_of(writer, directory, bundled=spec.trainer is not None, copy=copy)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-{what}-{secrets.token_hex(3)}",
            "namespace": job.namespace,
            "labels": {names.LABEL_APP_NAME: what, names.LABEL_APP_INSTANCE: job.name},
            "ownerReferences": [job.owner_reference],
        },
        "spec": {
            **{key: template[key] for key in _SCHEDULING if key in template},
            "activeDeadlineSeconds": LIFETIME_SECONDS,
            "affinity": _near(job),
            "automountServiceAccountToken": False,
            "containers": [_container(what, image or plan.images[role], command, mount)],
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
    trainer = _spec(job).trainer
    if trainer is None:
        fix = "name it with --logdir, as the job's pods see it"
        raise TensorBoardError(f"{job.name} runs a program of its own, which may write its events anywhere", fix)
    return f"{trainer.output.directory.rstrip('/')}/tensorboard"


def _near(job: Job) -> Object:
    """Prefer the node of the job's pods: many volumes can be mounted on one node only."""
    term = {
        "labelSelector": {"matchLabels": {names.LABEL_JOB_NAME: job.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _user(of_pod: Mapping[str, Any], of_container: Mapping[str, Any]) -> Object:
    """The security context of the container that writes the events, so that this pod may read them."""
    wanted = {key: context[key] for context in (of_pod, of_container) for key in _READING if key in context}
    context = {"runAsUser": names.NON_ROOT_USER, **wanted}
    if context.get("seccompProfile", {}).get("type") != "Localhost":
        # The training may need to be unconfined; TensorBoard does not.
        context["seccompProfile"] = {"type": "RuntimeDefault"}
    return {**context, "runAsNonRoot": context["runAsUser"] != 0}


def _container(name: str, image: str, command: list[str], mount: Object) -> Object:
    """The server listens on localhost inside the pod only, because it has no authentication."""
    return {
        "name": name,
        "image": image,
        "command": command,
        "env": [{"name": "HOME", "value": _TMP}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount, {"name": "tmp", "mountPath": _TMP}],
    }
