"""The objects that the operator would create for a job, computed without an operator."""

from __future__ import annotations

import json
from typing import Any, Final

from tfgpujob import __version__, names
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.core.observed.snapshot import Config, Object
from tfgpujob.core.pods.claim import build_claims
from tfgpujob.core.pods.device_claim import build_device_template
from tfgpujob.core.pods.pod import Replica, build_pod
from tfgpujob.local.job_file import JobFile

CONFIG: Final = Config(
    operator_image="tfgpujob-operator", trainer_image="tfgpujob-trainer", operator_version=__version__
)
"""Default settings of an operator. Its images have other names in each cluster; these are placeholders."""

UNKNOWN_UID: Final = "given-by-the-cluster"


def pods(file: JobFile, plan: Plan) -> tuple[Object, ...]:
    """Every pod of the first attempt, in the order of the plan."""
    job = {**file.job, "metadata": {**file.job["metadata"], "uid": UNKNOWN_UID}}
    left = file.spec.run_policy.backoff_limit
    replicas = (Replica(role, index, 1, restarts_left=left) for role, index in plan.members.pods)
    return tuple(build_pod(job, file.spec, plan, replica) for replica in replicas)


def claims(file: JobFile, plan: Plan) -> tuple[Object, ...]:
    """The claims of these pods, and the templates of those that Kubernetes creates."""
    job = {**file.job, "metadata": {**file.job["metadata"], "uid": UNKNOWN_UID}}
    specs = replica_specs(file.spec)
    volumes = tuple(claim for role, index in plan.members.pods for claim in build_claims(job, specs[role], role, index))
    devices = file.spec.gpu.claim
    if devices is None or CONFIG.device_template is None:
        return volumes
    template = build_device_template(job, devices, CONFIG.device_template)
    return (*volumes, template) if template is not None else volumes


def variable(pod: Object, name: str) -> str | None:
    """The value of an environment variable of the `tensorflow` container; None if it is not set."""
    container = next(c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER)
    return next((v.get("value") for v in container["env"] if v["name"] == name), None)


def own_address(pod: Object) -> str | None:
    """host:port of the pod's first task; None without TF_CONFIG, and for a spare, which is in no cluster spec yet."""
    text = variable(pod, "TF_CONFIG")
    if text is None:
        return None
    config: dict[str, Any] = json.loads(text)
    role, index = config["task"]["type"], config["task"]["index"]
    tasks = config["cluster"][role]
    by_index: dict[str, str] = tasks if isinstance(tasks, dict) else {str(i): task for i, task in enumerate(tasks)}
    return by_index.get(str(index))
