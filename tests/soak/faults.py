"""What is done to the operators and the control plane."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from localcluster.clusters import Cluster
from localcluster.layout import ClusterError
from tests.bench.process import OperatorProcess
from tests.bench.stage import Stage
from tests.integration.eventually import eventually
from tests.integration.kube import Refused
from urllib3.exceptions import HTTPError

NAMES = ("soak-a", "soak-b")


@dataclass
class Operators:
    """Two operators, one of which leads. One that is killed comes back at once, as a container does."""

    stage: Stage
    namespace: str
    running: dict[str, OperatorProcess] = field(default_factory=dict)

    def start(self) -> None:
        for name in NAMES:
            self.running[name] = self.stage.operator(self.namespace, name=name)

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running[name] = self.stage.operator(self.namespace, name=name)

    def leader(self) -> str:
        """The one that says so of itself; empty when none does."""
        return next((name for name, one in self.running.items() if one.metrics().get("tfgpu_leader") == 1), "")

    def wait_for_leader(self) -> str:
        return eventually(self.leader, "an operator leads", seconds=60)

    def ended(self) -> list[str]:
        """Those that have ended by themselves."""
        return [f"{name}: see {one.log}" for name, one in self.running.items() if not one.runs]

    def stop(self) -> None:
        for one in self.running.values():
            one.stop()


class Faults:
    """Draws the next fault. What a cluster can't be asked to do is left out."""

    def __init__(self, operators: Operators, cluster: Cluster, chance: random.Random) -> None:
        self._operators = operators
        self._cluster = cluster
        self._chance = chance
        self._kinds: dict[str, Callable[[], None]] = {
            "the leader is killed": self._kill_leader,
            "the standby is killed": self._kill_standby,
            "both operators are killed": lambda: operators.kill(*NAMES),
            "etcd is killed": lambda: self._restart("etcd"),
            "the API server is killed": lambda: self._restart("apiserver"),
        }
        self._bag: list[str] = []

    def strike(self) -> str:
        """One fault; gives its name once it is over, which is when what was killed runs again."""
        if not self._bag:
            # Each comes once before any comes again.
            self._bag = self._chance.sample(sorted(self._kinds), len(self._kinds))
        kind = self._bag.pop()
        try:
            self._kinds[kind]()
        except ClusterError:
            del self._kinds[kind]
            return self.strike()
        return kind

    def _kill_leader(self) -> None:
        self._operators.kill(self._operators.leader() or NAMES[0])

    def _kill_standby(self) -> None:
        leader = self._operators.leader()
        self._operators.kill(next(name for name in NAMES if name != leader))

    def _restart(self, component: str) -> None:
        self._cluster.restart_component(component)
        eventually(self._serves, "the API server reads and writes", seconds=90, every=0.05)

    def _serves(self) -> bool:
        kube, namespace = self._operators.stage.kube, self._operators.namespace
        try:
            # Custom resources are served a moment later than the others.
            kube.list("TFGPUJob", namespace)
            kube.patch("Namespace", "", namespace, {"metadata": {"annotations": {"soak": str(time.time())}}})
        except (Refused, HTTPError, OSError):
            return False
        return True
