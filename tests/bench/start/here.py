"""Starts on this machine: `tfgpu run --local`, and the program by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.start.moments import of_ledger, since
from tests.commits import ROOT
from tests.trainer.harness import free_ports

from tfgpujob.core.status.builder import moment

JOB = """
apiVersion: tfgpu.dev/v1alpha1
kind: TFGPUJob
metadata: {name: digits}
spec:
  strategy: MultiWorkerMirrored
  replicaSpecs: {worker: {replicas: 2}}
  gpu: {perReplica: 0}
  trainer:
    {entrypoint: digits, globalBatchSize: 128, epochs: 100000, logEverySeconds: 1, checkpoint: {everyEpochs: 1000}}
"""
BY_HAND = Path(__file__).with_name("by_hand.py")
STEPS = 20
PROGRESS = '"tfgpu": "progress"'
_SECONDS = 600.0


class Here:
    """A folder with a run of either kind, which `start` begins or continues."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._job = folder, folder / "job.yaml"
        self._job.write_text(JOB)
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))},
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator/src", "trainer_image/src", ".")),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def ours(self, *, again: bool) -> dict[str, float]:
        """The moments of a run, which is then stopped; `again`: of one that continues."""
        run, log = self._folder / "run", self._folder / "run/logs/worker-0.log"
        before = _count(log)
        submitted = time.time()
        words = ["run", "--local", "--dir", str(run), *(["--resume"] if again else []), str(self._job)]
        tool = self._start([sys.executable, "-m", "tfgpujob.cli", *words], {}, "tool")
        try:
            _wait(lambda: _count(log) > before or tool.poll() is not None, "a step of the run")
            tool.send_signal(signal.SIGINT)
            tool.wait(_SECONDS)
        finally:
            tool.kill()
        ended = json.loads((run / ".tfgpu/worker-0.end").read_text())
        job = json.loads((run / ".tfgpu/job.json").read_text())
        accepted = next(c for c in job["status"]["conditions"] if c["type"] == "Accepted")["lastTransitionTime"]
        known = {} if again else {"accepted": moment(accepted).timestamp()}
        return since(submitted, known | of_ledger(ended["ledger"]))

    def floor(self) -> dict[str, float]:
        """The moments of the program by hand: the first call begins, another continues."""
        workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
        submitted = time.time()
        tasks = []
        for index in range(2):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            command = [sys.executable, str(BY_HAND), str(self._folder / "by-hand"), str(STEPS)]
            tasks.append(self._start(command, {"TF_CONFIG": json.dumps(config)}, f"by-hand-{index}"))
        try:
            codes = [task.wait(_SECONDS) for task in tasks]
        finally:
            for task in tasks:
                task.kill()
        printed = (self._folder / "by-hand-0.log").read_text()
        assert codes == [0, 0], printed
        return since(submitted, json.loads(printed.splitlines()[-1]))

    def _start(self, command: list[str], more: dict[str, str], name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment | more, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )


def _count(log: Path) -> int:
    return log.read_text(errors="replace").count(PROGRESS) if log.exists() else 0


def _wait(condition: Callable[[], bool], what: str) -> None:
    due = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < due, f"{what} did not come within {_SECONDS:g} s"
        time.sleep(0.05)
