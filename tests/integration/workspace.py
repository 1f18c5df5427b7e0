"""A namespace of its own for each test, with the words in which tests speak of jobs and pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.integration.eventually import WAIT_SECONDS, eventually
from tests.integration.kube import Kube, Object, Refused

RUN_ON = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); signal.pause()"
"""A program that runs until it is asked to stop."""
RUN_UNTIL_TOLD = "import pathlib, time\nwhile not pathlib.Path('/tmp/end').exists(): time.sleep(0.1)"
"""A program that runs until Workspace.tell_to_end."""
EXIT = "import sys; sys.exit({code})"
SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


class Workspace:
    """The jobs, pods and events of one namespace. `image` is an image with Python that every cluster here has."""

    def __init__(self, kube: Kube, namespace: str, image: str, operator_log: Callable[[], str]) -> None:
        self.kube = kube
        self.namespace = namespace
        self.image = image
        self._operator_log = operator_log

    def new_job(
        self,
        name: str,
        code: str = EXIT.format(code=0),
        *,
        strategy: str = "MultiWorkerMirrored",
        roles: Mapping[str, Mapping[str, Any]] | None = None,
        **spec: Any,
    ) -> Object:
        """A job that runs this Python program in every pod, on no GPUs. `roles`: fields of spec.replicaSpecs.<role>."""
        template = {
            "spec": {
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "tensorflow", "command": ["python", "-c", code]}],
            }
        }
        roles = {"worker": {"replicas": 2}} if roles is None else roles
        return {
            "metadata": {"name": name},
            "spec": {
                "strategy": strategy,
                "image": self.image,
                "gpu": {"perReplica": 0},
                "replicaSpecs": {role: {"template": template, **fields} for role, fields in roles.items()},
                **spec,
            },
        }

    def submit(self, job: Mapping[str, Any]) -> str:
        """Creates the job and gives its name."""
        made = self.kube.create("TFGPUJob", self.namespace, job)
        name: str = made["metadata"]["name"]
        return name

    def edit(self, name: str, **spec: Any) -> None:
        """A merge patch of the spec."""
        self.kube.patch("TFGPUJob", self.namespace, name, {"spec": spec})

    def delete(self, name: str) -> None:
        self.kube.delete("TFGPUJob", self.namespace, name)

    def status(self, name: str) -> Object:
        """Empty when the job has none, or is gone."""
        job = self.kube.find("TFGPUJob", self.namespace, name)
        return (job or {}).get("status") or {}

    def condition(self, name: str, of_type: str) -> Object:
        """Empty when the job has no such condition."""
        conditions: list[Object] = self.status(name).get("conditions") or []
        return next((c for c in conditions if c["type"] == of_type), {})

    def wait_for(
        self, name: str, of_type: str, *, status: str = "True", reason: str | None = None, seconds: float = WAIT_SECONDS
    ) -> Object:
        """The condition, once it has this status and reason."""

        def met() -> Object | None:
            found = self.condition(name, of_type)
            fits = found.get("status") == status and reason in {None, found.get("reason")}
            return found if fits else None

        what = f"{of_type}={status}{f' ({reason})' if reason else ''} of {name}"
        found: Object = self.eventually(met, what, seconds=seconds, every=0.2)
        return found

    def finished(self, name: str, *, seconds: float = WAIT_SECONDS) -> str:
        """Waits for the end; gives the phase."""
        self.wait_for(name, "Finished", seconds=seconds)
        phase: str = self.status(name)["phase"]
        return phase

    def pods(self, name: str) -> dict[str, Object]:
        """The job's pods by name."""
        listed = self.kube.list("Pod", self.namespace, labelSelector=f"tfgpu.dev/job-name={name}")
        return {pod["metadata"]["name"]: pod for pod in listed}

    def uids(self, name: str) -> dict[str, str]:
        """uid by name of the job's pods."""
        return {pod: obj["metadata"]["uid"] for pod, obj in self.pods(name).items()}

    def run_in(self, pod: str, script: str) -> str:
        """What the shell script prints in the pod's main container."""
        return self.kube.run_in(self.namespace, pod, "tensorflow", "sh", "-c", script)

    def tell_to_end(self, name: str) -> None:
        """Ends RUN_UNTIL_TOLD in all pods of the job, at the same time."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda pod: self.run_in(pod, "touch /tmp/end"), self.pods(name)))

    def printed(self, pod: str) -> dict[str, str]:
        """The JSON object that the pod's program printed."""
        found: dict[str, str] = json.loads(self.kube.log(self.namespace, pod, "tensorflow"))
        return found

    def events(self, name: str) -> list[Object]:
        """The operator's events about the job, oldest first."""
        events = self.kube.list("Event", self.namespace, fieldSelector=f"involvedObject.name={name}")
        of_job = [event for event in events if event["involvedObject"]["kind"] == "TFGPUJob"]
        return sorted(of_job, key=lambda event: event["metadata"]["name"])

    def limit_pods(self, pods: int) -> None:
        """Limit the pods of the namespace; returns once the API server enforces it."""
        body = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}}
        if self.kube.find("ResourceQuota", self.namespace, "pods") is None:
            self.kube.create("ResourceQuota", self.namespace, body)
        else:
            self.kube.patch("ResourceQuota", self.namespace, "pods", {"spec": body["spec"]})

        def enforced() -> bool:
            status = self.kube.get("ResourceQuota", self.namespace, "pods").get("status") or {}
            return bool((status.get("hard") or {}).get("pods") == str(pods) and "used" in status)

        self.eventually(enforced, "the quota is enforced")

    def occupy(self, kind: str, name: str) -> None:
        """A Pod or Service that has the name and does not belong to the job."""
        if kind == "Pod":
            self.add_pod(name, {"name": "other", "image": self.image, "command": ["python", "-c", RUN_ON]})
        else:
            self.kube.create(kind, self.namespace, {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})

    def add_pod(self, name: str, container: Mapping[str, Any]) -> None:
        """A pod that no job has made."""
        # Without its ServiceAccount's token, which servers before 1.24 make some time after the namespace.
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        self.kube.create("Pod", self.namespace, {"metadata": {"name": name}, "spec": spec})

    def eventually(
        self, condition: Callable[[], Any], what: str, *, seconds: float = WAIT_SECONDS, every: float = 0.5
    ) -> Any:
        """The server and the tests share the processors with what is tested, so it is not asked all the time."""
        return eventually(condition, what, seconds=seconds, every=every, report=self.describe)

    def describe(self) -> str:
        """All that helps to understand why a wait was in vain."""
        jobs = self.kube.list("TFGPUJob", self.namespace)
        parts = [f"--- job {job['metadata']['name']}: {json.dumps(job.get('status'), indent=1)}" for job in jobs]
        parts += [f"--- pod {_pod_line(pod)}" for pod in self.kube.list("Pod", self.namespace)]
        for event in self.kube.list("Event", self.namespace)[-40:]:
            about = event["involvedObject"]
            parts.append(f"--- event {about['kind']}/{about['name']} {event['reason']}: {event['message']}")
        lines = self._operator_log().splitlines()
        # Tracebacks don't name the job; they stand between lines that do.
        ours = [line for line in lines if self.namespace in line or not _begins(line)]
        parts.append("--- operator log:\n" + "\n".join(ours[-60:]))
        return "\n".join(parts)


def _begins(line: str) -> bool:
    """Whether it is a log line of its own, as text or as JSON, and not part of a traceback."""
    return line.startswith(("2", "{"))


def _pod_line(pod: Object) -> str:
    status = pod.get("status") or {}
    containers = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    states = {container["name"]: container["state"] for container in containers}
    unmet = [c for c in status.get("conditions") or () if c["status"] != "True" and c.get("message")]
    return json.dumps(
        {
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
            "deleting": "deletionTimestamp" in pod["metadata"],
            "phase": status.get("phase"),
            "states": states,
            "why": [c["message"] for c in unmet],
        }
    )


__all__ = ["EXIT", "RUN_ON", "RUN_UNTIL_TOLD", "SHOW_ENVIRONMENT", "Refused", "Workspace"]
