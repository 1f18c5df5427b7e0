"""Whether sharing a GPU pays, how large a batch fits and how many workers pay: measured on the user's own job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import keras
import pytest
from tests.machine import PATIENCE
from tests.pages import shell, typed_by
from tests.trainer.harness import MODULE, trainer_config

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.advise import __main__ as command
from tfgpujob_trainer.advise import batches, workers
from tfgpujob_trainer.advise.batches import batch_advice, batch_table
from tfgpujob_trainer.advise.measuring import Measured
from tfgpujob_trainer.advise.processes import advice
from tfgpujob_trainer.advise.run_log import gradient_bytes, most_on_gpu, rows_of, training_network, training_rate
from tfgpujob_trainer.advise.scaling import Network
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.data.schedule import Schedule, describe_batch
from tfgpujob_trainer.train.assemble import describe_gradients


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

    monkeypatch.setattr(batches, "measure", measure)
    monkeypatch.setattr(batches, "memory_room", lambda: None if room is None else room << 20)
    assert command.main(["--config", str(tmp_path / "trainer.json"), "--batch"]) == 0
    assert asked == [(size, 1, True) for size in sizes]
    assert end in capsys.readouterr().out


def test_the_rows_are_those_that_the_log_tells():
    schedule = Schedule(rows=512, global_batch_size=64, replicas=1)
    assert rows_of(f"tfgpu-train: {describe_batch(schedule, Environment())}\n") == 512
    assert rows_of("nothing") is None


def typed(folder: Path, option: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The command of the pages with this option, of a job in the folder."""
    (folder / "trainer.json").write_text(json.dumps(trainer_config(folder / "output")))
    (words,) = (words for words in typed_by(__file__) if option in words)
    done = subprocess.run(
        [*words, *more],
        cwd=folder,
        env=shell(folder, TFGPU_CODE_DIR=str(MODULE.parent), TF_NUM_INTRAOP_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "output").exists()
    return done


@pytest.mark.deep
def test_a_job_is_measured_and_leaves_nothing(tmp_path):
    done = typed(tmp_path, "--processes", "--processes", "1", "2", "--steps", "30")
    header, _, *rows, sentence = done.stdout.splitlines()
    assert header.startswith("| processes | examples/s |")
    assert [row.split("|")[1].strip() for row in rows] == ["1", "2"]
    memory = [int(row.split("|")[4]) for row in rows]
    assert 100 < memory[0] < memory[1]
    assert "spec.gpu.processesPerGpu" in sentence


def progress(**fields: float) -> str:
    return json.dumps({"tfgpu": "progress", **fields})


def test_the_log_of_a_run_tells_how_long_its_all_reduce_took():
    first = "tfgpu-train: all-reduce of 4 MiB over 2 workers: 9.0 ms, 0.47 GB/s"
    lines = [
        first,
        progress(stepSeconds=9.0, allReduce=0.9),
        first.replace("2 workers", "4 workers"),
        progress(stepSeconds=7.0, allReduce=0.9),
        *("worker-0| " + progress(stepSeconds=0.05, allReduce=share) for share in (0.2, 0.4, 0.6)),
    ]
    found = training_network("\n".join(lines), 3000)
    assert found is not None
    count, seconds, network = found
    assert count == 4
    assert seconds == pytest.approx(0.05 * 0.5)
    assert network.all_reduce_seconds(3000, 4) == pytest.approx(seconds)
    assert training_network("\n".join(lines[1:2]), 3000) is None
    assert training_network("\n".join([first, progress(stepSeconds=0.05, allReduce=0.0)]), 3000) is None


def test_the_gradients_are_those_that_the_log_tells():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    said = f"tfgpu-train: {describe_gradients(model)}\n"
    assert gradient_bytes(said, half=False) == 4 * (3 * 2 + 2 + 2 * 2)  # not the moving statistics
    assert gradient_bytes(said, half=True) == 2 * (3 * 2 + 2 + 2 * 2)
    assert gradient_bytes("nothing", half=False) is None


MILLIS = {64: 80.0, 32: 40.0, 16: 20.0, 11: 18.0}
"""Pretended milliseconds of a step with this many rows."""


def advised(folder: Path, monkeypatch, *options: str, **fields: object) -> tuple[int, list[tuple[int, int]]]:
    """The exit code of `--workers …` for a job of 64 rows, and what was measured: rows and processes."""
    (folder / "trainer.json").write_text(json.dumps(trainer_config(folder / "output", globalBatchSize=64, **fields)))
    asked = []

    def measure(options, _settings, count, _folder):
        rows = int(options.set[-1].removeprefix("globalBatchSize="))
        asked.append((rows, count))
        network = Network(1e9) if count > 1 else None
        return Measured(count, 1000 * rows / MILLIS[rows], 500, gradient_bytes=1_000_000, network=network)

    monkeypatch.setattr(workers, "measure", measure)
    return command.main(["--config", str(folder / "trainer.json"), *options]), asked


@pytest.mark.parametrize(
    ("options", "told", "all_reduce"),
    [
        (["--bandwidth", "8", "--latency", "100"], "by a ring of 8 Gbit/s, and 100 µs", 2 * 3 * (0.1 + 0.25)),
        (["--log", "log"], "20.00 ms on 2 workers, with waiting", 30.0),
        ([], "8.0 Gbit/s, between two processes of this machine", 1.5),
    ],
)
def test_each_worker_computes_its_part_and_the_network_is_told(
    options, told, all_reduce, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    said = "tfgpu-train: all-reduce of 4 MiB over 2 workers: 9.0 ms, 0.47 GB/s"
    (tmp_path / "log").write_text(f"{said}\n{progress(stepSeconds=0.05, allReduce=0.4)}\n")
    code, asked = advised(tmp_path, monkeypatch, "--workers", "4", *options)
    assert code == 0
    assert asked == [(64, 1), (32, 1), (16, 1), *([] if options else [(64, 2)])]
    source, header, *rows, _sentence, line = capsys.readouterr().out.splitlines()
    assert told in source
    assert len({len(row) for row in (header, *rows)}) == 1
    found = json.loads(line)
    assert found["tfgpu"] == "workers"
    last = found["rows"][-1]
    assert last["workers"] == 4
    assert 1000 * last["allReduceSeconds"] == pytest.approx(all_reduce)
    assert 1000 * last["stepSeconds"] == pytest.approx(20 + all_reduce)
    assert last["efficiency"] == pytest.approx(20 / (20 + all_reduce))


def test_a_busy_machine_is_suspected_beside_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(MILLIS, 64, 160.0)
    assert advised(tmp_path, monkeypatch, "--workers", "2", "--bandwidth", "100")[0] == 0
    assert "was the machine busier" in capsys.readouterr().err


def test_a_number_between_is_measured_too_by_its_largest_part(tmp_path, monkeypatch, capsys):
    code, asked = advised(tmp_path, monkeypatch, "--workers", "6", "--bandwidth", "100", "--efficiency", "70")
    assert code == 0
    assert asked == [(64, 1), (32, 1), (16, 1), (11, 1)]
    assert "6 workers keep 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        (["--workers", "17"], {"accumulate": 4}, "take 1 to 16"),
        (["--workers", "0"], {}, "take 1 to 64"),
        (["--workers", "4", "--bandwidth", "0"], {}, "above 0"),
        (["--workers", "4", "--bandwidth", "10", "--log", "log"], {}, "one of the two"),
        (["--workers", "4", "--efficiency", "0"], {}, "percent"),
        (["--workers", "4", "--log", "nowhere"], {}, "cannot be read"),
        (["--workers", "4", "--log", "log"], {}, "has no all-reduce"),
        (["--workers", "4", "--log", "cut"], {}, "cannot be read"),
        (["--workers", "4"], {"mode": "predict", "predict": {"model": "m.keras"}}, "that trains"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_tried(options, fields, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = progress(stepSeconds=0.05, allReduce=0.4)
    (tmp_path / "log").write_text(line)
    (tmp_path / "cut").write_text(f"tfgpu-train: all-reduce of 4 MiB over 2 workers: 9.0 ms, 0.47 GB/s\n{line[:-9]}")
    if "mode" in fields:
        monkeypatch.setattr(config, "load", lambda *_: TrainerConfig(entrypoint="m", **fields))
    code, asked = advised(tmp_path, monkeypatch, *options, **fields)
    assert (code, asked) == (2, [])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--bandwidth", "10"], "--bandwidth is for --workers"),
        (["--batch", "--log", "log"], "--log is for --workers"),
        (["--processes", "2", "--efficiency", "70"], "--efficiency is for --workers"),
        (["--workers", "4", "--latency", "5"], "--latency is for --bandwidth"),
        (["--workers", "4", "--batch"], "not allowed with argument --workers"),
    ],
)
def test_what_nobody_would_look_at_is_refused(options, why, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as refused:
        advised(tmp_path, monkeypatch, *options)
    assert refused.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.deep
def test_a_number_of_workers_is_recommended_for_a_real_job(tmp_path):
    done = typed(tmp_path, "--workers", "--workers", "2", "--steps", "20")
    source, header, *rows, sentence, line = done.stdout.splitlines()
    assert "by a ring of 25 Gbit/s, and 50 µs" in source
    assert header.split("  ")[0].strip() == "workers"
    assert [int(row.split()[0]) for row in rows] == [1, 2]
    assert "% efficiency" in sentence
    found = json.loads(line)
    assert found["gradientBytes"] > 0
    assert found["rows"][0]["efficiency"] == 1
