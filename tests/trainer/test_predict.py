"""Mode predict in real processes: every row once, whichever process is killed, and the same bytes however parts are
shared.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from tests.trainer import user_module
from tests.trainer.harness import Launcher, Task, ask, free_ports, trainer_config, until
from tests.trainer.inprocess import entrypoint

from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.cluster.stop import StopFlag
from tfgpujob_trainer.contract.config import parse
from tfgpujob_trainer.predict.models import load
from tfgpujob_trainer.predict.parts import LocalFolder, Results, split
from tfgpujob_trainer.predict.predict import _Work
from tfgpujob_trainer.predict.shares import OwnShare

ROWS = 203


@pytest.fixture(scope="module")
def trained(launch: Launcher) -> Path:
    """The output directory of a small training run."""
    output = launch.directory / "trained"
    launch.start(trainer_config(output, epochs=1, export={"savedModel": True})).ends(0)
    return output


def config(output: Path, trained: Path | None, **fields: Any) -> dict[str, Any]:
    model = None if trained is None else str(trained / "model.keras")
    return {
        "entrypoint": "user_module",
        "mode": "predict",
        "predict": {"model": model, "partRows": 16},
        "globalBatchSize": 5,
        "output": {"directory": str(output)},
        "params": {"rows": ROWS},
        "logEverySeconds": 1,
        **fields,
    }


def start_worker(launch: Launcher, settings: dict[str, Any], index: int, count: int, **env: str) -> Task:
    worker = {"TFGPU_STRATEGY": "Custom", "TFGPU_REPLICAS": str(count), "TFGPU_REPLICA_INDEX": str(index)}
    return launch.start(settings, env={**worker, **env})


def parts(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((output / "predictions").glob("part-*.npz"))}


def rows(output: Path) -> dict[str, np.ndarray]:
    """All parts in the order of their names."""
    loaded = [np.load(path) for path in sorted((output / "predictions").glob("part-*.npz"))]
    return {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0].files}


@pytest.fixture(scope="module")
def undisturbed(launch: Launcher, trained: Path) -> Task:
    """One worker with a model on each of four devices."""
    settings = config(launch.directory / "undisturbed", trained)
    task = launch.start(settings, env={"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": "4", "TF_NUM_INTEROP_THREADS": "4"})
    assert task.wait() == 0, task.log
    return task


def test_every_row_is_there_once_and_what_the_model_says(undisturbed, trained, launch):
    output = launch.directory / "undisturbed"
    x, _ = user_module.data("predict", rows=ROWS)
    found = rows(output)
    assert found["row"].tolist() == list(range(ROWS))
    model = keras.saving.load_model(trained / "model.keras")
    assert np.abs(found["prediction"] - model(x).numpy()).max() < 1e-12
    commit = json.loads((output / "predictions" / "COMMIT").read_text())
    assert commit["rows"] == sum(part["rows"] for part in commit["parts"]) == ROWS
    assert [part["file"] for part in commit["parts"]] == list(parts(output))


def test_throughput_and_latency_are_reported(undisturbed, launch):
    report = json.loads((launch.directory / "undisturbed" / "predictions" / "run.json").read_text())
    summary = undisturbed.ended["summary"]
    assert report["summary"] == summary
    assert len(report["devices"]) == 4
    assert summary["rows"] == ROWS
    assert summary["examplesPerSecond"] > 0
    assert 0 < summary["latencyMs"][0] <= summary["latencyMs"][1]
    assert "203 rows in 13 parts, 13 of them for this worker (1 of 1), 0 already there" in undisturbed.log
    assert "all is there" in undisturbed.log


def test_killed_and_stopped_workers_leave_what_an_undisturbed_one_leaves(undisturbed, trained, launch):
    """Worker 0 is stopped once and worker 1 killed twice; each starts again alone, by the operator or in place."""
    output = launch.directory / "disturbed"
    settings = config(output, trained)
    hook = {"TEST_PREDICTING": "1"}
    stopped = start_worker(launch, settings, 0, 2, **hook, TEST_AT="10", TEST_DO="stop")
    killed = start_worker(launch, settings, 1, 2, **hook, TEST_AT="15", TEST_DO="kill")
    assert stopped.wait() == 143, stopped.log
    assert killed.wait() == -9, killed.log
    assert "stopped by SIGTERM" in stopped.ended["message"]
    before = parts(output)
    assert 0 < len(before) < 13
    assert not (output / "predictions" / "COMMIT").exists()

    (port,) = free_ports(1)
    in_place = {"TFGPU_RECOVERY": "InPlace", "TFGPU_RECOVERY_BUDGET": "1"}
    dies = {**hook, "TEST_AT": "2", "TEST_DO": "die once"}
    again = start_worker(launch, settings, 1, 2, TFGPU_REPLICA_RESTART="1", **in_place, **dies)
    assert again.wait() == 0, again.log
    assert again.log.count("started again in place, for the 1st time") == 1
    assert again.ended["inPlaceRestarts"] == 1
    assert "parts of other workers are to come" in again.log
    hung = start_worker(launch, settings, 0, 2, **hook, TEST_AT="3", TEST_DO="stall", TFGPU_PROGRESS_PORT=str(port))
    hung.wait_for('"phase": "predicting"')
    shown = ask(port)
    assert (shown["phase"], shown["step"], shown["steps"]) == ("predicting", len(parts(output)), 13)
    assert shown["rows"] == len(rows(output)["row"])
    assert {"rows", "examplesPerSecond", "latencyMs"} <= set(shown)
    hung.process.kill()
    hung.wait()
    last = start_worker(launch, settings, 0, 2, TFGPU_REPLICA_RESTART="2")
    assert last.wait() == 0, last.log
    assert 0 < last.ended["summary"]["partsWrittenBefore"] < last.ended["summary"]["parts"]
    assert last.ended["summary"]["complete"] is True

    expected = parts(launch.directory / "undisturbed")
    assert parts(output) == expected
    assert all(expected[name] == content for name, content in before.items())
    first, second = (launch.directory / run / "predictions" / "COMMIT" for run in ("undisturbed", "disturbed"))
    assert first.read_bytes() == second.read_bytes()
    assert not list((output / "predictions").glob(".*"))


def test_workers_that_come_and_go_take_over_what_others_have_left(undisturbed, trained, launch, tmp_path):
    """One worker is asked to stop, one is killed, one hangs, and one joins: it computes what they have started and what
    is left, and none of them is restarted."""
    output, goes_on = launch.directory / "shared-parts", tmp_path / "goes-on"
    settings = config(output, trained)
    shared = {"TFGPU_SHARED_PARTS": "1", "TEST_PREDICTING": "1"}
    leaves = start_worker(launch, settings, 0, 3, **shared, TEST_AT="6", TEST_DO="stop")
    assert "stopped by SIGTERM, 2 parts are written" in leaves.ends(143).ended["message"], "it ends after its part"
    assert sorted(parts(output)) == sorted([part.name for part in split(ROWS, 16)][0:6:3])

    hangs = start_worker(launch, settings, 1, 3, **shared, TEST_AT="3", TEST_DO="wait", TEST_AFTER=str(goes_on))
    killed = start_worker(launch, settings, 2, 3, **shared, TEST_AT="7", TEST_DO="kill")
    assert killed.wait() == -9, killed.log
    hangs.wait_for('"phase": "predicting"')
    until((output / "predictions" / split(ROWS, 16)[1].taken(1)).exists)
    assert not (output / "predictions" / "COMMIT").exists()
    comes = start_worker(launch, settings, 3, 4, TFGPU_SHARED_PARTS="1")
    assert comes.ends(0).ended["summary"]["complete"] is True
    assert 0 < comes.ended["summary"]["partsWrittenBefore"] < comes.ended["summary"]["parts"] == 13
    assert parts(output) == parts(launch.directory / "undisturbed")

    goes_on.touch()
    assert hangs.ends(0).ended["summary"]["complete"] is True
    assert parts(output) == parts(launch.directory / "undisturbed"), "the same files, each there once"
    commits = (launch.directory / run / "predictions" / "COMMIT" for run in ("undisturbed", "shared-parts"))
    assert len({commit.read_bytes() for commit in commits}) == 1
    assert not [path for path in (output / "predictions").iterdir() if path.name.startswith((".", "taken"))]


def test_two_processes_on_a_gpu_share_the_rows(undisturbed, trained, launch):
    output = launch.directory / "shared"
    task = start_worker(
        launch, config(output, trained), 0, 1, TFGPU_GPUS="1", TFGPU_PROCESSES_PER_GPU="2", TFGPU_PROGRESS_PORT="0"
    )
    assert "2 processes share each GPU: each holds a copy of the model" in task.ends(0).log
    assert "NCCL" not in task.log
    assert "7 of them for this worker (1 of 2)" in task.log
    assert "worker-1| tfgpu-train: 203 rows in 13 parts, 6 of them for this worker (2 of 2)" in task.log
    assert parts(output) == parts(launch.directory / "undisturbed")
    assert (output / "predictions" / "COMMIT").exists()
    assert (output / "predictions" / "run-worker-1.json").exists()


def test_predictions_go_to_an_object_store_without_a_shared_volume(undisturbed, trained, launch, s3):
    """Two workers with a disk each, of which one is killed and started again on an empty one."""
    settings = config(launch.directory / "unused", trained)
    settings["output"]["store"] = f"{s3}/predict"
    killed = start_worker(launch, settings, 1, 2, TEST_PREDICTING="1", TEST_AT="15", TEST_DO="kill")
    assert killed.wait() == -9, killed.log
    found = ObjectStore(f"{s3}/predict").folder("predictions")
    assert 0 < len([name for name in found.names() if name.startswith("part-")]) < 13
    tasks = [start_worker(launch, settings, index, 2) for index in (0, 1)]
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    assert tasks[1].ended["summary"]["partsWrittenBefore"] > 0
    assert tasks[0].ended["summary"]["predictions"] == f"{s3}/predict/predictions"
    expected = parts(launch.directory / "undisturbed")
    assert {name: found.read(name) for name in found.names() if name.startswith("part-")} == expected
    assert found.read("COMMIT") == (launch.directory / "undisturbed" / "predictions" / "COMMIT").read_bytes()
    assert not (launch.directory / "unused").exists()


def test_a_saved_model_and_a_checkpoint_predict_the_same(undisturbed, trained, launch):
    """The SavedModel reads its rows from a dataset; the checkpoint's model is the entrypoint's."""
    of_dataset = config(
        launch.directory / "saved", None, predict={"model": str(trained / "saved_model"), "partRows": 100}
    )
    of_dataset["params"] = {"rows": ROWS, "kind": "dataset"}
    built = config(launch.directory / "built", None, predict={"partRows": 16}, initialWeights=str(trained))
    tasks = [
        launch.start(settings, env={"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": "2"})
        for settings in (of_dataset, built)
    ]
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    expected = rows(launch.directory / "undisturbed")
    for run in ("saved", "built"):
        found = rows(launch.directory / run)
        assert found["row"].tolist() == expected["row"].tolist()
        (name,) = set(found) - {"row"}
        assert np.abs(found[name] - expected["prediction"]).max() < 1e-12


def test_one_model_over_two_devices_predicts_the_same(undisturbed, trained, launch):
    loaded = config(launch.directory / "placed", trained, placement={"dense*": 1})
    built = config(launch.directory / "placed-built", None, placement={"dense*": 1}, initialWeights=str(trained))
    built["predict"] = {"partRows": 16}
    tasks = [
        launch.start(settings, env={"TFGPU_STRATEGY": "OneDevice", "TFGPU_GPUS": "2"}) for settings in (loaded, built)
    ]
    assert [task.wait() for task in tasks] == [0, 0], tasks[0].log + tasks[1].log
    expected = rows(launch.directory / "undisturbed")["prediction"]
    for task, name in zip(tasks, ("placed", "placed-built"), strict=True):
        assert "one model over /cpu:0, /cpu:1" in task.log
        assert re.search(r"dense\S* is computed on /cpu:1", task.log), task.log
        assert np.abs(rows(launch.directory / name)["prediction"] - expected).max() < 1e-12
    elsewhere = launch.start(config(launch.directory / "no", trained, placement={"dense*": 2}), env={"TFGPU_GPUS": "2"})
    assert "trainer.placement.dense* is 2 and this worker has 2 devices" in elsewhere.ends(2).ended["message"]


@pytest.mark.parametrize("source", ["model", "initialWeights"])
def test_one_model_over_two_devices_is_created_on_them_and_need_not_be_compiled(source, tmp_path):
    def make():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1, name="head")])

    path = str(tmp_path / "model.keras")
    make().save(path)
    weights = {"predict": {"model": path}} if source == "model" else {"predict": {}, "initialWeights": path}
    settings = parse(config(tmp_path, None, placement={"head": 1}, **weights))
    (model,) = load(settings, entrypoint(make, None), ["/cpu:0", "/cpu:1"], np.ones((1, 2), "float32"))
    places = {tuple(v.shape): v.device[-5:] for v in model._function.get_concrete_function().variables}
    assert places == {(2, 3): "CPU:0", (3,): "CPU:0", (3, 1): "CPU:1", (1,): "CPU:1"}


def test_what_cannot_be_predicted_is_refused(undisturbed, trained, launch):
    other = launch.start(config(launch.directory / "undisturbed", trained, globalBatchSize=7))
    missing = launch.start(config(launch.directory / "missing", trained / "nowhere"))
    unfit = config(launch.directory / "unfit", None, entrypoint="digits", params={})
    unfit["predict"] = {"model": str(trained / "model.keras")}
    unfitting = launch.start(unfit)
    assert [task.wait() for task in (other, missing, unfitting)] == [2, 2, 2], other.log + unfitting.log
    assert "holds the predictions of another run: globalBatchSize differ" in other.ended["message"]
    assert "trainer.predict.model: there is no" in missing.ended["message"]
    assert "does not take the rows of data('predict')" in unfitting.ended["message"]


def test_a_folder_that_cannot_be_listed_for_a_while_ends_no_work(tmp_path, monkeypatch):
    """Only the progress needs the list: a store that is busy must not cost a restart."""
    results, told = Results(LocalFolder(tmp_path)), []

    def away(_: Any) -> Any:
        raise OSError("slow down")

    def model(x: np.ndarray, _: int) -> dict[str, np.ndarray]:
        monkeypatch.setattr(results, "missing", away)
        return {"y": x}

    settings: Any = SimpleNamespace(data=SimpleNamespace(parallel_reads=1), log_every_seconds=0.01, global_batch_size=4)
    data: Any = SimpleNamespace(rows=8, take=lambda numbers: (numbers,))
    board = SimpleNamespace(update=lambda **found: told.append(found["step"]))
    heartbeat: Any = SimpleNamespace(beat=lambda *_: None, run_status=board)
    models: Any = [model]
    parts = split(8, 4)
    share = OwnShare(results, parts, index=0, replicas=1)
    work = _Work(settings, data, share, parts=len(parts), heartbeat=heartbeat, stop=StopFlag())
    work.run(models)
    assert told[-1] == 0, "the last that was known"
    monkeypatch.undo()
    assert results.missing(parts) == []
