"""What the processes of one run of the tests share: the cluster, made ready once, and the operator, which the first of
them installs and the last of them takes away.

The workers of pytest-xdist share the folder of the process that started them. IT_SESSION names the folder where several
runs of pytest are one session, as in `make test-cluster`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster import helm, release
from localcluster.release import NAMESPACE, RELEASE
from tests.integration import features
from tests.integration.installed import Installation
from tests.integration.kube import Object
from tests.integration.target import Target, prepare, selected

FOLDER = "IT_SESSION"


@dataclass(frozen=True, slots=True)
class Session:
    folder: Path

    @classmethod
    def of_this_process(cls, base: Path) -> Session:
        """`base`: the folder of this process alone, which lies in that of the process that started it."""
        if FOLDER in os.environ:
            return cls(Path(os.environ[FOLDER]))
        return cls(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)

    @contextmanager
    def state(self) -> Iterator[Object]:
        """What the processes know of it, for one of them at a time. Changes are kept unless there is an error."""
        with (self.folder / "session.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.folder / "session.json"
            state: Object = json.loads(file.read_text()) if file.exists() else {}
            yield state
            file.write_text(json.dumps(state))

    def target(self) -> Target:
        """The cluster, with this checkout's images. Raises ClusterError."""
        with self.state() as state:
            if not state.get("prepared"):
                prepare()
                state["prepared"] = True
        return selected()

    @contextmanager
    def operator(self, installation: Installation, target: Target) -> Iterator[None]:
        """The operator is there, the same for all processes of the session."""
        with self.state() as state:
            if not state.get("users"):
                state["had_release"] = installation.take_over()
                state["audit_from"] = target.audit_log.stat().st_size if target.audit_log else 0
                state["token"] = installation.session
                features.add_kinds_of_kueue(installation.kube)
                installation.install()
                installation.resume()
            state["users"] = state.get("users", 0) + 1
            installation.session, installation.audit_from = state["token"], state["audit_from"]
        try:
            yield
        finally:
            installation.end_processes()
            with self.state() as state:
                state["users"] -= 1
                if not state["users"]:
                    _restore(installation, state["had_release"])


def _restore(installation: Installation, had_release: bool) -> None:
    kubeconfig = installation.kube.kubeconfig
    if had_release:
        # As the demo left it, so that what it says can be typed next still can.
        helm.install(kubeconfig, RELEASE, NAMESPACE, values=release.chart_values())
    else:
        installation.uninstall()
    features.remove_kinds_of_kueue(installation.kube)
