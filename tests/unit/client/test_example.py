"""examples/client.py as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.live import LiveCluster
from tests.machine import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/client.py"


def test_it_submits_follows_and_reads_metrics(live: LiveCluster) -> None:
    running = subprocess.Popen([sys.executable, "-u", str(EXAMPLE)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "default/digits is created\n"
    live.until_running("digits")
    live.tell("digits", progress={"step": 12, "totalSteps": 240, "loss": "0.41"})
    assert running.stdout.readline() == "Running: step 12/240, loss 0.41\n"
    for i in range(2):
        live.say(f"digits-worker-{i}", "finished", f"accuracy of worker {i}: 0.95")
        live.finish(f"digits-worker-{i}", 0)
    out, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0
    assert "digits: Succeeded after 0 restarts\n" in out
    assert out.endswith("digits-worker-0: accuracy of worker 0: 0.95\ndigits-worker-1: accuracy of worker 1: 0.95\n")
