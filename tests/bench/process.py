"""The operator as a process of this machine, and what the machine says about it."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.machine import free_port

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
REPOSITORY = Path(__file__).resolve().parents[2]


class OperatorProcess:
    """One operator. `kubeconfig` is its login; `namespaces` are the ones it watches; `source` is its PYTHONPATH
    if it is not this checkout's.
    """

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *,
        namespace: str,
        lease: str,
        namespaces: str,
        name: str,
        source: str | None = None,
    ) -> None:
        self.port = free_port()
        self.log = log
        environment = {
            **{key: value for key, value in os.environ.items() if "proxy" not in key.lower()},
            "KUBECONFIG": str(kubeconfig),
            "OPERATOR_IMAGE": "operator:bench",
            "TRAINER_IMAGE": "trainer:bench",
            "OPERATOR_NAMESPACE": namespace,
            "LEASE_NAME": lease,
            "WATCH_NAMESPACES": namespaces,
            "POD_NAME": name,
            "HEALTH_PORT": str(self.port),
            **({"PYTHONPATH": source} if source else {}),
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tfgpujob.shell.main"],
                cwd=REPOSITORY,
                env=environment,
                stdout=output,
                stderr=output,
                # ^C is for the benchmark, which stops it then.
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def cpu_ms(self) -> float:
        """CPU time so far, user and system, in ms (steps of 10 ms). Raises OSError once it has ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / CLOCK_TICKS

    def rss_mb(self) -> float:
        """Resident memory in MiB. Raises OSError once it has ended."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise ProcessLookupError(f"process {self.pid} has ended")

    def metrics(self) -> dict[str, float]:
        """Its /metrics by sample name with labels; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return {}
        return samples(text)

    def stop(self) -> None:
        """By SIGTERM, which frees the Lease."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.runs:
            self._process.send_signal(number)
            self._process.wait(30)


def samples(text: str) -> dict[str, float]:
    """Samples in Prometheus' text format, by name with labels."""
    parts = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in parts}
