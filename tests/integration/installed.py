"""The operator under test: installed by the chart, and if wanted stopped there and run as a process of this machine."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from localcluster import helm
from localcluster.release import NAMESPACE, RELEASE
from tests.integration import features
from tests.integration.eventually import WAIT_SECONDS, eventually
from tests.integration.kube import Kube, Object
from tests.integration.target import Target
from tests.machine import PATIENCE, free_port

NAME = RELEASE
"""The chart's full name of this release: its Deployment, ServiceAccount and Lease."""
SELECTOR = f"app.kubernetes.io/instance={RELEASE}"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
PROCESS = "process"
"""The identity of all operators that run as processes."""
REPOSITORY = Path(__file__).resolve().parents[2]
TEST_NAMESPACE = re.compile(r"it-[0-9a-f]{8}")
"""What conftest.py calls the namespaces of tests."""


@dataclass
class Installation:
    """One release of the chart, and the processes that stand in for its pods."""

    kube: Kube
    operator_image: str
    trainer_image: str
    folder: Path
    """For log files and the kubeconfig of the processes."""
    node: str = ""
    """Where the operator's pods run, so that another one can be stopped; empty: wherever there is room."""
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    """Marks the operator's pods, so that an image that was rebuilt under the same tag is really started."""
    as_process: bool = False
    """The usual operator is a process of this machine, not a pod."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    audit_from: int = 0
    """Where the audit log ended when this session's first operator was not yet there."""

    @classmethod
    def on(cls, kube: Kube, target: Target, folder: Path) -> Installation:
        node = next(iter(target.cluster.nodes), "")
        as_process = os.environ.get("IT_OPERATOR") == "process"
        return cls(kube, target.operator_image, target.trainer_image, folder, node=node, as_process=as_process)

    @property
    def isolated(self) -> str:
        """The namespace whose jobs get a NetworkPolicy; a test makes it."""
        return f"it-{self.session}"

    def take_over(self) -> bool:
        """Ends what the demo or an earlier session left: a release's operator, its Lease, namespaces of tests.

        Whether there was a release. Afterwards no operator runs, and the next one is the first that this cluster sees.
        """
        for deployment in self.kube.list("Deployment", "", labelSelector="app.kubernetes.io/name=tfgpujob"):
            found = (deployment["metadata"]["namespace"], deployment["metadata"]["name"])
            if found != (NAMESPACE, NAME):
                pytest.exit(f"the operator {'/'.join(found)} sees to the jobs of this cluster; uninstall it", 2)
        used = bool(helm.status(self.kube.kubeconfig, RELEASE, NAMESPACE))
        self.uninstall()
        # An uninstall leaves it, and a first start makes it.
        self.kube.delete("Lease", NAMESPACE, NAME)
        for namespace in self.kube.list("Namespace", ""):
            if TEST_NAMESPACE.fullmatch(namespace["metadata"]["name"]):
                self.kube.delete("Namespace", "", namespace["metadata"]["name"])
        return used

    def install(self, **values: Any) -> None:
        """Installs or upgrades to exactly these values, and waits until the new pods are ready."""
        images = {"image": _image(self.operator_image), "trainerImage": _image(self.trainer_image)}
        ours = {
            "replicas": 0 if self.as_process else 1,
            "podAnnotations": {"tests/session": self.session},
            "nodeSelector": {"kubernetes.io/hostname": self.node} if self.node else {},
            **features.values(self.isolated),
        }
        helm.install(self.kube.kubeconfig, RELEASE, NAMESPACE, values={**images, **ours, **values})

    def upgrade(self, **values: Any) -> None:
        """The same to other values, and waits until one of the new pods leads."""
        old = {pod["metadata"]["name"] for pod in self.pods()}
        self.install(**values)
        eventually(lambda: not old & {pod["metadata"]["name"] for pod in self.pods()}, "the old operator is gone")
        self.wait_for_leader()

    def uninstall(self) -> None:
        """Waits until its pods are gone: helm waits for what it made, and the Deployment's pods end after it."""
        helm.uninstall(self.kube.kubeconfig, RELEASE, NAMESPACE)
        eventually(lambda: not self.pods(), "the operator that was there is gone", seconds=90)

    def scale(self, replicas: int) -> None:
        """Waits until as many pods are there and ready, and no other."""
        self.kube.patch("Deployment", NAMESPACE, NAME, {"spec": {"replicas": replicas}})

        def done() -> bool:
            pods = self.pods()
            return len(pods) == replicas and all(_is_ready(pod) for pod in pods)

        eventually(done, f"{replicas} operator pods ready", seconds=90, report=self.log)

    def pods(self) -> list[Object]:
        return self.kube.list("Pod", NAMESPACE, labelSelector=SELECTOR)

    def leader(self) -> str:
        """The Lease's holder; empty when it is free."""
        lease = self.kube.find("Lease", NAMESPACE, NAME)
        return str((lease or {"spec": {}})["spec"].get("holderIdentity") or "")

    def wait_for_leader(self, *, other_than: str = "", seconds: float = WAIT_SECONDS) -> str:
        """Waits until one that lives holds the Lease: one that was killed seems to lead until its term is over."""

        def found() -> str:
            alive = {pod["metadata"]["name"] for pod in self.pods()}
            if any(process.poll() is None for process in self.processes):
                alive.add(PROCESS)
            holder = self.leader()
            return holder if holder in alive - {other_than} else ""

        return eventually(found, "an operator leads", seconds=seconds, report=self.log)

    def log(self) -> str:
        """What all operators have said: pods that are there, and processes of this session."""
        texts = [file.read_text(errors="replace") for file in sorted(self.folder.glob("operator-*.log"))]
        texts += [self.kube.log(NAMESPACE, pod["metadata"]["name"], "operator") for pod in self.pods() if _runs(pod)]
        return "\n".join(texts)

    def start(self, module: Sequence[str] = ("tfgpujob.shell.main",)) -> subprocess.Popen[bytes]:
        """An operator as a process, with the rights of the chart's ServiceAccount and no others."""
        number = len(self.processes) + 1
        kubeconfig = self.kube.as_service_account(NAMESPACE, NAME, self.folder / "operator.kubeconfig")
        environment = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "KUBECONFIG": str(kubeconfig),
            "OPERATOR_IMAGE": self.operator_image,
            "TRAINER_IMAGE": self.trainer_image,
            "OPERATOR_NAMESPACE": NAMESPACE,
            "LEASE_NAME": NAME,
            **features.environment(self.isolated),
            # The same for all: as a restarted container, it takes up the Lease of the one before at once.
            "POD_NAME": PROCESS,
            "HEALTH_PORT": str(free_port()),
            "LOG_FORMAT": "text",
        }
        log: IO[bytes] = (self.folder / f"operator-{number}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", *module], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No operator at all, but for what the test starts; afterwards the usual one again."""
        self.pause()
        try:
            yield
        finally:
            self.end_processes()
            self.resume()

    def pause(self) -> None:
        """Stops the usual operator: it frees its Lease."""
        if self.as_process:
            self.end_processes()
        else:
            self.scale(0)

    def resume(self) -> None:
        """Starts the usual operator and waits until it leads."""
        if self.as_process:
            self.start()
        else:
            self.scale(1)
        self.wait_for_leader()

    def end_processes(self) -> None:
        """By SIGTERM, which frees the Lease."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)


def _image(reference: str) -> Mapping[str, str]:
    """The chart's image values; the local cluster's images are loaded, not pulled."""
    repository, _, tag = reference.rpartition(":")
    return {"repository": repository, "tag": tag}


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _runs(pod: Object) -> bool:
    return any("running" in status["state"] for status in pod["status"].get("containerStatuses") or ())
