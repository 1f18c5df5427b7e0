"""Whether sharing a GPU pays is measured on the user's own job."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.trainer.harness import MODULE, trainer_config

from tfgpujob_trainer.advise import Measured, advice, training_rate


def test_two_processes_must_be_worth_their_memory():
    one, two, four = Measured(1, 100.0, 500), Measured(2, 105.0, 1000), Measured(4, 60.0, 2000)
    assert "leave spec.gpu.processesPerGpu out" in advice([one, two, four])
    assert "spec.gpu.processesPerGpu: 4" in advice([one, two, Measured(4, 300.0, 2000)])


def test_the_start_does_not_count():
    rates = [1.0, 90.0, 100.0, 104.0]
    lines = [json.dumps({"tfgpu": "progress", "examplesPerSecond": rate}) for rate in rates]
    assert training_rate("\n".join(["tfgpu-train: hello", *lines])) == 102.0


def test_a_job_is_measured_and_leaves_nothing(tmp_path):
    (tmp_path / "trainer.json").write_text(json.dumps(trainer_config(tmp_path / "output")))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TFGPU_"))}
    command = [sys.executable, "-m", "tfgpujob_trainer.advise", "--config", str(tmp_path / "trainer.json")]
    done = subprocess.run(
        [*command, "--processes", "1", "2", "--steps", "30"],
        env={**environment, "TFGPU_CODE_DIR": str(MODULE.parent), "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    header, _, first, second, sentence = done.stdout.splitlines()
    assert header.startswith("| processes | examples/s |")
    assert first.startswith("| 1 |")
    assert second.startswith("| 2 |")
    assert int(second.split("|")[4]) > int(first.split("|")[4]) > 100
    assert "spec.gpu.processesPerGpu" in sentence
    assert not (tmp_path / "output").exists()
