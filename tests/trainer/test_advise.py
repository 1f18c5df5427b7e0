"""Whether sharing a GPU pays is measured on the user's own job."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.machine import PATIENCE
from tests.pages import shell, typed_by
from tests.trainer.harness import MODULE, trainer_config

import tfgpujob_trainer.advise as advise_module
from tfgpujob_trainer.advise import Measured, advice, batch_advice, batch_table, most_on_gpu, rows_of, training_rate
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.data.schedule import Schedule, describe_batch


def test_two_processes_must_be_worth_their_memory():
    one, two, four = Measured(1, 100.0, 500), Measured(2, 105.0, 1000), Measured(4, 60.0, 2000)
    assert "leave spec.gpu.processesPerGpu out" in advice([one, two, four])
    assert "spec.gpu.processesPerGpu: 4" in advice([one, two, Measured(4, 300.0, 2000)])


def test_the_start_does_not_count():
    rates = [1.0, 90.0, 100.0, 104.0]
    lines = [json.dumps({"tfgpu": "progress", "examplesPerSecond": rate}) for rate in rates]
    assert training_rate("\n".join(["tfgpu-train: hello", *lines])) == 102.0


def test_the_largest_batch_and_the_smallest_that_is_as_fast_are_told_apart():
    found = {64: Measured(1, 100.0, 500), 128: Measured(1, 190.0, 600), 256: Measured(1, 200.0, 900, 4000)}
    said = batch_advice(found, "512 don't")
    assert "from 128 rows for each replica on" in said
    assert "256 fit, and 512 don't" in said
    assert "globalBatchSize / (N × 256)" in said
    assert batch_table(found).splitlines()[-1] == "| 256 | 200 | 2.00 | 900 | 4000 |"
    assert batch_table(found).splitlines()[2].endswith("| 500 | - |")


def test_the_most_that_an_interval_tells_of_a_gpu():
    lines = [json.dumps({"tfgpu": "progress", "gpuMemoryMiB": told}) for told in ([7, 9], None, [8])]
    assert most_on_gpu("\n".join(lines)) == 9
    assert most_on_gpu("nothing") is None


@pytest.mark.parametrize(
    ("room", "rows", "sizes", "end"),
    [
        (3000, None, [32, 64, 128, 256], "512 might not"),
        (None, None, [32, 64, 128], "128 don't"),
        (3000, 100, [32, 64], "128 are more than the data have"),
    ],
)
def test_a_batch_is_doubled_until_the_memory_would_not_hold_two_of_it(
    room, rows, sizes, end, tmp_path, monkeypatch, capsys
):
    (tmp_path / "trainer.json").write_text(json.dumps(trainer_config(tmp_path / "output", globalBatchSize=32)))
    asked = []

    def measure(options, _settings, count, _folder):
        size = int(next(one.removeprefix("globalBatchSize=") for one in options.set if one.startswith("globalB")))
        asked.append((size, count, "accumulate=1" in options.set))
        return Measured(1, 10.0 * size, 6 * size, rows=rows) if size < 128 or room else None

    monkeypatch.setattr(advise_module, "_measure", measure)
    monkeypatch.setattr(advise_module, "memory_room", lambda: None if room is None else room << 20)
    assert advise_module.main(["--config", str(tmp_path / "trainer.json"), "--batch"]) == 0
    assert asked == [(size, 1, True) for size in sizes]
    assert end in capsys.readouterr().out


def test_the_rows_are_those_that_the_log_tells():
    schedule = Schedule(rows=512, global_batch_size=64, replicas=1)
    assert rows_of(f"tfgpu-train: {describe_batch(schedule, Environment())}\n") == 512
    assert rows_of("nothing") is None


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
