"""Whether sharing a GPU pays is measured on the user's own job."""

from __future__ import annotations

import json
import subprocess

from tests.machine import PATIENCE
from tests.pages import shell, typed_by
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
    (words,) = typed_by(__file__)
    done = subprocess.run(
        [*words, "--steps", "30"],
        cwd=tmp_path,
        env=shell(tmp_path, TFGPU_CODE_DIR=str(MODULE.parent), TF_NUM_INTRAOP_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    header, _, *rows, sentence = done.stdout.splitlines()
    assert header.startswith("| processes | examples/s |")
    assert [row.split("|")[1].strip() for row in rows] == ["1", "2", "4"]
    memory = [int(row.split("|")[4]) for row in rows]
    assert 100 < memory[0] < memory[1] < memory[2]
    assert "spec.gpu.processesPerGpu" in sentence
    assert not (tmp_path / "output").exists()
