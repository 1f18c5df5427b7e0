"""`make demo`: the whole product, from nothing to a trained model, as a newcomer sees it.

Numbered steps (cluster and images, install, apply, train), live epochs, then what came of it and what to type next. On
failure: the step, the cause, one command, and where the log is.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from localcluster import helm
from localcluster.clusters import Cluster, select
from localcluster.kubectl import Kube, KubeError
from localcluster.layout import ClusterError
from localcluster.progress import inside_a_step
from localcluster.release import NAMESPACE, RELEASE, chart_values, images

ROOT = Path(__file__).resolve().parents[1]
TFGPU = ".venv/bin/tfgpu"
"""As `make venv` makes it; it is there where kubectl may be missing."""
EXAMPLE = Path("examples/digits-multiworker.yaml")
NEXT = Path("examples/digits-checkpointed.yaml")
# Names that no example has, so that each of them can be tried afterwards.
JOB = "demo"
CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "demo-output"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
KEPT = Path("build/demo")
TRAIN_SECONDS = 1800
GONE_SECONDS = 300
GOOD_ACCURACY = 0.95

Object = dict[str, Any]


class DemoError(Exception):
    """A step failed: what happened, and the command that shows more."""

    def __init__(self, cause: str, command: str) -> None:
        super().__init__(cause)
        self.command = command


@dataclass
class Demo:
    """The steps, in order; each returns what its line says when it is done."""

    cluster: Cluster
    namespace: str = "default"
    kube: Kube = field(init=False)
    job: Object = field(init=False)
    finished: Object = field(init=False)

    def start_cluster(self) -> str:
        self.cluster.ensure_up(images=images())
        self.kube = Kube(self.cluster.kubeconfig)
        return f"{self.cluster.description}, with the images of operator and trainer (CPU build of TensorFlow)"

    def install(self) -> str:
        helm.install(self.cluster.kubeconfig, RELEASE, NAMESPACE, values=chart_values())
        return f"helm release {RELEASE} in namespace {NAMESPACE}"

    def apply(self) -> str:
        self.job = yaml.safe_load((ROOT / EXAMPLE).read_text())
        self.job["metadata"]["name"] = JOB
        # The example leaves its results in the pods, and those take them along when they end.
        self.job["spec"]["trainer"]["output"] = {"claim": CLAIM["metadata"]["name"]}
        self._remove(f"{self._jobs}/{JOB}")
        self._remove(f"{self._claims}/{CLAIM['metadata']['name']}")
        self.kube.create(self._claims, CLAIM)
        self.kube.create(self._jobs, self.job)
        return f"{EXAMPLE} as {JOB}, with output.claim: {CLAIM['metadata']['name']}"

    @property
    def _jobs(self) -> str:
        return f"/apis/tfgpu.dev/v1alpha1/namespaces/{self.namespace}/tfgpujobs"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def _claims(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"

    def _remove(self, path: str) -> None:
        """What an earlier demo left."""
        if self.kube.find(path):
            self.kube.delete(path)
            self._until(lambda: not self.kube.find(path), GONE_SECONDS, f"{path} of the last demo to go")

    def train(self) -> str:
        shown = 0
        told = ""

        def over() -> bool:
            nonlocal shown, told
            status = self.kube.get(f"{self._jobs}/{JOB}").get("status") or {}
            shown = self._show_epochs(f"{JOB}-worker-0", shown)
            word = _waiting(status)
            if word and word != told and not shown:
                print(f"      {word}", flush=True)
                told = word
            self.finished = status
            return _is_true(status, "Finished")

        self._until(over, TRAIN_SECONDS, f"job {JOB} to finish")
        if not _is_true(self.finished, "Succeeded"):
            message = next(c["message"] for c in self.finished["conditions"] if c["type"] == "Failed")
            raise DemoError(message, f"{TFGPU} describe {JOB}")
        return "Succeeded"

    def result(self) -> list[tuple[str, str]]:
        """The job's result, by name; raises DemoError if it is not as good as it must be."""
        pods = [self.kube.get(f"{self._pods}/{JOB}-worker-{index}") for index in range(2)]
        summaries = [_summary(pod) for pod in pods]
        accuracy = summaries[0]["splits"]["test"]["accuracy"]
        digests = [summary["weightsSha256"] for summary in summaries]
        if accuracy < GOOD_ACCURACY:
            raise DemoError(f"test accuracy {accuracy:.3f} is below {GOOD_ACCURACY}", f"{TFGPU} logs {JOB}")
        if len(set(digests)) != 1:
            raise DemoError("the workers' weights differ", f"{TFGPU} logs {JOB}")
        return [
            ("test accuracy", f"{accuracy:.3f}"),
            ("weights of both workers are equal", f"sha256 {digests[0][:16]}"),
            ("model", self._keep_model(summaries[0]["model"])),
        ]

    def _keep_model(self, path: str) -> str:
        """Copies the model out of the volume where the cluster lets us; else says where it is."""
        volume = self.kube.get(f"{self._claims}/{CLAIM['metadata']['name']}")["spec"]["volumeName"]
        source = self.kube.get(f"/api/v1/persistentvolumes/{volume}")["spec"]
        folder = (source.get("hostPath") or source.get("local") or {}).get("path")
        model = Path(path).relative_to("/output")
        copy = self.cluster.read_from_node(f"{folder}/{model}") if folder else None
        where = f"{model} in volume claim {CLAIM['metadata']['name']}"
        if copy is None:
            return where
        target = KEPT / model.name
        (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / target).write_bytes(copy)
        return f"{target} (copied from {where})"

    def _show_epochs(self, pod: str, shown: int) -> int:
        """Prints the epoch lines of the pod's log that are new; returns how many were printed in all."""
        try:
            lines = self.kube.text(f"{self._pods}/{pod}/log?container=tensorflow").splitlines()
        except KubeError:
            return shown
        epochs = [line.removeprefix("tfgpu-train: ") for line in lines if line.startswith("tfgpu-train: epoch ")]
        for line in epochs[shown:]:
            print(f"      {line}", flush=True)
        return len(epochs)

    def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"waited {seconds:.0f} s for {what}", f"{TFGPU} describe {JOB}")
            time.sleep(0.5)


def main() -> int:
    """Runs the demo; exit code 0 if all went well."""
    demo = Demo(select())
    steps: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("cluster", f"start {demo.cluster.description}, and build both images, where need be", demo.start_cluster),
        ("install", "the operator, by Helm", demo.install),
        ("apply", f"a job, {EXAMPLE}", demo.apply),
        ("train", "20 epochs on two workers", demo.train),
    )
    print(_cost(demo.cluster), flush=True)
    begun = time.monotonic()
    for number, (title, what, step) in enumerate(steps, start=1):
        label = f"[{number}/{len(steps)}] {title}"
        try:
            _run(label, what, step)
        except (DemoError, ClusterError, KubeError, helm.HelmError) as error:
            return _failed(label, error, demo)
    try:
        rows = demo.result()
    except DemoError as error:
        return _failed("result", error, demo)
    print(f"\nSucceeded after {time.monotonic() - begun:.0f} s")
    for name, value in rows:
        print(f"  {name:<36}{value}")
    print("\nNext:")
    for command, purpose in next_commands(demo.cluster):
        print(f"  {command:<60}{f'# {purpose}' if purpose else ''}".rstrip())
    return 0


def _run(label: str, what: str, step: Callable[[], str]) -> None:
    print(f"{label:<14} {what} ...", flush=True)
    started = time.monotonic()
    with inside_a_step():
        said = step()
    print(f"{label:<14} {said}, {time.monotonic() - started:.1f} s", flush=True)


def _failed(label: str, error: Exception, demo: Demo) -> int:
    command = getattr(error, "command", "") or getattr(error, "fix", "") or "make cluster-status"
    print(f"\n{label} failed: {error}", file=sys.stderr)
    print(f"  look at:  KUBECONFIG={demo.cluster.kubeconfig} {command}", file=sys.stderr)
    print(f"  operator: kubectl -n {NAMESPACE} logs deployment/{RELEASE}", file=sys.stderr)
    return 1


def _cost(cluster: Cluster) -> str:
    if cluster.first_time:
        return f"The first time it takes {cluster.first_time}; later a minute or two."
    return "It takes a minute or two: cluster and images have been made before."


def next_commands(cluster: Cluster) -> list[tuple[str, str]]:
    """What to type after the demo, as it stands, and what it is for."""
    return [
        (f"export KUBECONFIG={cluster.kubeconfig}", ""),
        (f"{TFGPU} describe {JOB}", "how it went"),
        (f"{TFGPU} logs {JOB}", "what its replicas said"),
        (f"{TFGPU} submit {NEXT}", "with checkpoints, which a restart resumes from"),
        (f"{TFGPU} logs {NEXT.stem} -f", "until it ends"),
        (cluster.removal, "when you have seen enough"),
    ]


def _is_true(status: Object, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in status.get("conditions") or ())


def _waiting(status: Object) -> str:
    """Why it does not run yet, if it doesn't."""
    for kind in ("Accepted", "Created", "Running"):
        for condition in status.get("conditions") or ():
            if condition["type"] == kind and condition["status"] == "False":
                return str(condition["message"])
    return ""


def _summary(pod: Object) -> Object:
    for container in pod["status"].get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == "tensorflow" and ended:
            summary: Object = json.loads(ended["message"])["summary"]
            return summary
    raise DemoError(f"{pod['metadata']['name']} left no summary", f"{TFGPU} logs {JOB}")


if __name__ == "__main__":
    sys.exit(main())
