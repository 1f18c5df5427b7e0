"""Real processes: MultiWorkerMirrored is exact, stops together, resumes to the bit, and ends with the right code."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.machine import is_within, scaled, slowness
from tests.trainer.harness import (
    TELL_IMPORTS,
    Launcher,
    Task,
    ask,
    free_ports,
    imported,
    trainer_config,
    until,
)
from tests.trainer.reference import plain_keras_weights

STOPPED = re.compile(r"stopped by SIGTERM after step (\d+), saved")


@pytest.fixture(scope="module")
def exact_pair(launch: Launcher) -> list[Task]:
    """Two workers, each with an output directory of its own, trained to the end."""
    configs = [trainer_config(launch.directory / f"own{i}", export={"savedModel": True}) for i in range(2)]
    tasks = launch.start_workers(configs)
    assert [t.wait() for t in tasks] == [0, 0], tasks[0].log + tasks[1].log
    return tasks


@pytest.fixture(scope="module")
def undisturbed(launch: Launcher) -> dict[str, Any]:
    """The summary of two undisturbed workers with Dropout."""
    tasks = launch.start_workers(trainer_config(launch.directory / "undisturbed", params={"dropout": 0.3}))
    assert [t.wait() for t in tasks] == [0, 0], tasks[0].log + tasks[1].log
    return tasks[0].ended["summary"]


def weights(directory: Path) -> list[np.ndarray]:
    return keras.saving.load_model(directory / "model.keras").get_weights()


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10


def test_two_workers_equal_plain_keras_on_one_device(exact_pair, launch):
    assert_close(weights(launch.directory / "own0"), plain_keras_weights(epochs=5))


def test_both_workers_report_the_same_weights(exact_pair):
    first, second = (t.ended["summary"] for t in exact_pair)
    assert first["weightsSha256"] == second["weightsSha256"]
    assert first["splits"] == second["splits"]


def test_the_saved_model_computes_what_the_model_computes(exact_pair, launch):
    output = launch.directory / "own0"
    x = np.random.default_rng(5).normal(size=(3, 6))
    loaded = tf.saved_model.load(output / "saved_model")
    assert np.abs(loaded.serve(x) - keras.saving.load_model(output / "model.keras")(x)).max() < 1e-12


def test_gradients_that_travel_as_float16_are_near_the_exact_ones_and_alike(launch, exact_pair):
    output = launch.directory / "half"
    tasks = launch.start_workers(trainer_config(output, allReduce="float16"))
    assert [t.wait() for t in tasks] == [0, 0], tasks[0].log + tasks[1].log
    first, second = (t.ended["summary"] for t in tasks)
    assert first["weightsSha256"] == second["weightsSha256"] != exact_pair[0].ended["summary"]["weightsSha256"]
    exact = plain_keras_weights(epochs=5)
    off = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(weights(output), exact, strict=True)))
    assert off < 1e-3 * np.sqrt(sum((b**2).sum() for b in exact))
    assert "allReduce: float16: a gradient's element is off by at most" in tasks[0].log


def test_a_directory_that_is_not_shared_is_said(exact_pair, launch):
    assert all("is not shared by the workers" in t.log for t in exact_pair)
    assert not (launch.directory / "own1" / "model.keras").exists()


def test_the_log_says_how_the_batch_is_split_and_how_it_goes(exact_pair):
    task = exact_pair[0]
    assert "global batch 32 = 16 × 2 workers × 1 micro-batch; 203 rows, 7 steps an epoch" in task.log
    assert "global_clipnorm=0.1: applied after the all-reduce" in task.log
    last = task.progress()[-1]
    assert (last["step"], last["steps"], last["epoch"], last["epochs"]) == (35, 35, 5, 5)
    assert last["loss"] == pytest.approx(task.ended["summary"]["splits"]["train"]["loss"], abs=1e-5)
    assert last["examplesPerSecond"] > 0
    assert 0 <= last["inputWait"] <= 1


def test_two_workers_with_dropout_train_to_the_end(undisturbed):
    assert undisturbed["steps"] == 35


def start_killed(launch: Launcher, config: dict[str, Any]) -> None:
    """Train until the second worker is killed at step 17."""
    saved = Path(config["output"]["directory"]) / "checkpoints/step-0000000014/COMMIT"
    killed = launch.start_workers(config, env={1: {"TEST_AT": "17", "TEST_DO": "kill", "TEST_AFTER": str(saved)}})
    assert killed[0].wait() == 160, killed[0].log
    assert killed[0].ended["cause"] == "PeerFailure"
    assert killed[1].wait() == -9


@pytest.mark.deep
def test_killed_stopped_and_resumed_runs_end_with_the_same_bits(launch, undisturbed):
    config = trainer_config(launch.directory / "disturbed", params={"dropout": 0.3})
    start_killed(launch, config)

    stopped = launch.start_workers(config, env={1: {"TEST_AT": "8", "TEST_DO": "term"}, 0: {"TFGPU_ATTEMPT": "2"}})
    assert [t.wait() for t in stopped] == [143, 143], stopped[0].log + stopped[1].log
    # TensorFlow may end the chief before its checkpoint of step 14 is whole.
    resumed_at = re.search(r"resuming after step (7|14) ", stopped[0].log)
    assert resumed_at is not None, stopped[0].log
    steps = [STOPPED.search(t.log) for t in stopped]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0].group(1) == steps[1].group(1)
    assert int(steps[0].group(1)) - int(resumed_at.group(1)) in (8, 9)

    resumed = launch.start_workers(config, env={0: {"TFGPU_ATTEMPT": "3"}})
    assert [t.wait() for t in resumed] == [0, 0], resumed[0].log
    assert f"resuming after step {steps[0].group(1)}" in resumed[0].log
    summary = resumed[0].ended["summary"]
    assert (summary["weightsSha256"], summary["splits"]) == (undisturbed["weightsSha256"], undisturbed["splits"])


def start_shared(launch: Launcher, config: dict[str, Any], **env: str) -> Task:
    """One pod whose (pretended) GPU is shared by two workers."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    shared = {"TF_CONFIG": json.dumps(tf_config), "TFGPU_STRATEGY": "MultiWorkerMirrored", "TFGPU_REPLICA_INDEX": "0"}
    return launch.start(config, env={**shared, "TFGPU_GPUS": "1", "TFGPU_PROCESSES_PER_GPU": "2", **env})


@pytest.mark.deep
def test_two_processes_on_a_gpu_train_as_two_pods_do_and_have_one_end(launch, undisturbed):
    config = trainer_config(launch.directory / "shared", params={"dropout": 0.3})
    # Both processes have the hook; the exception comes in whichever is first, and the other one's end is an echo.
    failed = start_shared(launch, config, TEST_AT="10", TEST_DO="raise")
    assert failed.ends(1).ended["message"].startswith(("worker-0: ", "worker-1: "))
    assert "ZeroDivisionError" in json.dumps(failed.ended)

    stopped = start_shared(launch, config, TEST_AT="17", TEST_DO="term")
    assert stopped.ends(143).ended["cause"] == "Stopped"

    resumed = start_shared(launch, config)
    assert re.search(r"2 processes share each GPU: .* since NCCL refuses two ranks", resumed.ends(0).log)
    assert "global batch 32 = 16 × 2 workers × 1 micro-batch" in resumed.log
    assert re.search(r"^worker-1\| tfgpu-train: resuming after step", resumed.log, re.MULTILINE)
    assert resumed.ended["summary"]["weightsSha256"] == undisturbed["weightsSha256"]


def test_a_run_resized_from_two_workers_to_one_is_the_same_run(launch):
    config = trainer_config(launch.directory / "resized")
    stopped = launch.start_workers(config, env={0: {"TEST_AT": "17", "TEST_DO": "term"}})
    assert [t.wait() for t in stopped] == [143, 143], stopped[0].log
    alone = launch.start(config).ends(0)
    assert "resuming after step" in alone.log
    assert_close(weights(launch.directory / "resized"), plain_keras_weights(epochs=5))


def test_a_stalled_worker_is_told_from_the_one_that_waits_for_it(launch):
    seconds = scaled(5)
    config = trainer_config(launch.directory / "stalled", watchdog={"stepSeconds": seconds})
    ports = free_ports(2)
    told = [{"TFGPU_PROGRESS_PORT": str(port)} for port in ports]
    tasks = launch.start_workers(config, env={0: told[0], 1: {**told[1], "TEST_AT": "9", "TEST_DO": "stall"}})
    until(lambda: [(said := ask(port)).get("step") == 8 and said["waitsForPeers"] for port in ports] == [True, False])
    assert_the_second_is_to_blame(tasks, seconds)


@pytest.mark.deep
def test_a_stalled_worker_is_told_from_one_that_waits_in_a_layer(launch):
    seconds = scaled(5)
    watchdog = {"stepSeconds": seconds, "startupSeconds": scaled(60)}
    config = trainer_config(launch.directory / "stalled-layer", params={"normalised": True}, watchdog=watchdog)
    tasks = launch.start_workers(config, env={1: {"TEST_AT": "9", "TEST_DO": "stall"}})
    assert_the_second_is_to_blame(tasks, seconds)


def assert_the_second_is_to_blame(tasks: list[Task], seconds: int) -> None:
    """Whichever leads: TensorFlow ends a worker whose leader has left."""
    assert [t.wait() for t in tasks] == [160, 161], tasks[0].log + tasks[1].log
    silent = re.search(r"no answer from the other workers for (\d+) s", tasks[0].ended["message"])
    assert silent is not None, tasks[0].ended["message"]
    assert int(silent.group(1)) >= seconds
    assert tasks[1].ended["cause"] == "ProgressDeadline"
    assert any("user_module.py" in line for line in tasks[1].ended["lastLines"])


@pytest.mark.deep
def test_a_stalled_leader_is_told_from_one_that_waits_for_it(launch):
    seconds = scaled(5)
    watchdog = {"stepSeconds": seconds, "startupSeconds": scaled(60)}
    config = trainer_config(launch.directory / "stalled-leader", watchdog=watchdog)
    tasks = launch.start_workers(config, env={0: {"TEST_AT": "9", "TEST_DO": "stall"}})
    assert_the_second_is_to_blame(tasks[::-1], seconds)


@pytest.mark.deep
def test_a_step_that_never_ends_is_ended_with_its_stacks(launch):
    config = trainer_config(launch.directory / "hung", watchdog={"stepSeconds": scaled(2)})
    task = launch.start(config, env={"TEST_AT": "9", "TEST_DO": "stall"}).ends(161)
    ended = task.ended
    assert ended["cause"] == "ProgressDeadline"
    assert "while training after step 8" in ended["message"]
    assert any("user_module.py" in line for line in ended["lastLines"])


def test_a_peer_that_never_comes_is_a_start_up_deadline(launch):
    config = trainer_config(launch.directory / "late", watchdog={"startupSeconds": 6})
    (task,) = launch.start_workers(config, started=[1])
    assert task.ends(161).ended["cause"] == "StartupDeadline"
    assert "trainer.watchdog.startupSeconds" in task.ended["fix"]


def test_sigterm_before_the_strategy_exists_ends_at_once(launch):
    environment = {
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": ["127.0.0.1:1", "nobody.invalid:2"]}, "task": {"type": "worker", "index": 0}}
        )
    }
    task = launch.start(trainer_config(launch.directory / "early"), env=environment)
    task.wait_for("waiting for the names of 1 peer: nobody.invalid")
    began = time.monotonic()
    task.process.terminate()
    assert task.wait() == 143
    assert is_within(time.monotonic() - began, 3)
    assert task.ended["cause"] == "Stopped"


@pytest.mark.deep
def test_two_workers_read_a_dataset_as_one_does(launch):
    params = {"kind": "dataset"}
    pair = launch.start_workers(trainer_config(launch.directory / "dataset2", params=params))
    alone = launch.start(trainer_config(launch.directory / "dataset1", params=params))
    assert [t.wait() for t in (*pair, alone)] == [0, 0, 0], pair[0].log + alone.log
    assert_close(weights(launch.directory / "dataset2"), weights(launch.directory / "dataset1"))
    assert "shard policy by data: every worker reads all rows and keeps its share" in pair[0].log


def test_workers_whose_data_differs_do_not_start(launch):
    configs = [trainer_config(launch.directory / "differs", params={"rows": rows}) for rows in (203, 200)]
    tasks = launch.start_workers(configs)
    assert [t.wait() for t in tasks] == [2, 2], tasks[0].log + tasks[1].log
    assert tasks[1].ended["message"] == "data('train') has 200 rows here and 203 on the first worker"
    assert "another worker's data('train') differs" in tasks[0].ended["message"]


def test_an_exception_of_the_user_is_permanent_and_keeps_its_lines(launch):
    task = launch.start(trainer_config(launch.directory / "raises"), env={"TEST_AT": "3", "TEST_DO": "raise"}).ends(1)
    assert "ZeroDivisionError" in json.dumps(task.ended)


def test_a_worker_that_does_not_come_is_named(launch):
    (task,) = launch.start_workers(trainer_config(launch.directory / "alone"), started=[0])
    task.wait_for("waiting for 1 of 1 other workers, which do not answer: worker-1 (127.0.0.1:")


def test_what_is_computed_on_and_how_fast_the_all_reduce_is_stands_in_the_log(exact_pair):
    for task in exact_pair:
        assert re.search(r"devices: CPU, \d+ cores", task.log)
        assert re.search(r"all-reduce of 4 MiB over 2 workers: \d+\.\d ms, \d+\.\d\d GB/s", task.log)


def test_a_slow_worker_is_told_from_a_slow_network(launch):
    config = trainer_config(launch.directory / "slow")
    # A busy machine makes the other one slow, too.
    seconds = 0.06 * slowness()
    own = {"TEST_AT": "0", "TEST_DO": "slow", "TEST_SECONDS": str(seconds)}
    fast, slow = launch.start_workers(config, env={1: own}, apart=True)
    assert [t.wait() for t in (fast, slow)] == [0, 0], fast.log
    mine, theirs = fast.progress()[-1], slow.progress()[-1]
    assert mine["allReduce"] > 0.5 > theirs["allReduce"]
    assert mine["compute"] < 0.5 < theirs["compute"]
    assert mine["workerSeconds"] == theirs["workerSeconds"]
    assert mine["workerSeconds"]["worker-1"] >= seconds > mine["workerSeconds"]["worker-0"]
    assert re.search(r"straggler: \d+% of the time is waiting for worker-1, which needs [\d.]+ s", fast.log)


def test_an_older_attempt_is_fenced(launch):
    output = launch.directory / "fenced"
    (output / "checkpoints").mkdir(parents=True)
    owner = {"jobUid": "u1", "attempt": 2, "replicaRestart": 0}
    (output / "checkpoints" / "OWNER.json").write_text(json.dumps(owner))
    task = launch.start(trainer_config(output), env={"TFGPU_JOB_UID": "u1", "TFGPU_ATTEMPT": "1"}).ends(71)
    assert "now belongs to attempt 2" in task.ended["message"]
    assert json.loads((output / "checkpoints" / "OWNER.json").read_text()) == owner


def test_a_port_that_another_process_has_is_said(launch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = [f"127.0.0.1:{taken.getsockname()[1]}", *(f"127.0.0.1:{port}" for port in free_ports(1))]
        tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        task = launch.start(trainer_config(launch.directory / "port"), env={"TF_CONFIG": json.dumps(tf_config)}).ends(2)
    assert task.ended["message"].startswith("TensorFlow cannot listen on the port that TF_CONFIG gives to worker-0")


def test_a_loss_that_is_no_number_is_a_line_and_no_traceback(launch):
    task = launch.start(trainer_config(launch.directory / "nan", params={"lr": 1e308})).ends(1)
    assert "is NaN or infinite on worker 0" in task.ended["message"]
    assert "Traceback" not in task.log


def test_a_misspelt_param_ends_with_2_and_the_right_name(launch):
    task = launch.start(trainer_config(launch.directory / "param", params={"droput": 0.1})).ends(2)
    assert task.ended["message"] == "model() has no 'droput'"
    assert task.ended["fix"] == "did you mean 'dropout'?"


@pytest.fixture(scope="module")
def digits(launch: Launcher) -> Task:
    """The built-in digits under Mirrored, on a CPU image whose pod was granted two GPUs."""
    config = {
        "entrypoint": "digits",
        "params": {"units": 64},
        "globalBatchSize": 128,
        "epochs": 20,
        "output": {"directory": str(launch.directory / "digits")},
    }
    return launch.start(config, env={"TFGPU_STRATEGY": "Mirrored", "TFGPU_GPUS": "2"}).ends(0)


def test_digits_reach_their_accuracy_under_mirrored(digits):
    assert "CPU build of TensorFlow: 2 granted GPUs are not used" in digits.log
    assert "global batch 128 = 64 × 2 replicas × 1 micro-batch" in digits.log
    assert digits.ended["summary"]["splits"]["test"]["accuracy"] >= 0.95


def test_a_finished_run_has_nothing_to_do_and_says_so_without_tensorflow(digits, launch):
    config = json.loads((digits.log_path.with_suffix(".json")).read_text())
    again = launch.start(config, env=TELL_IMPORTS).ends(0)
    assert imported("tfgpujob_trainer.contract.config", again.log)
    assert not imported("tensorflow", again.log)
    assert "already holds this run, finished" in again.log
    assert again.ended["summary"] == digits.ended["summary"]


def test_an_evaluator_follows_the_checkpoints_and_ends_with_the_run(digits, launch):
    config = json.loads((digits.log_path.with_suffix(".json")).read_text())
    tf_config = {"cluster": {"evaluator": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    task = launch.start(config, env={"TF_CONFIG": json.dumps(tf_config), "TFGPU_REPLICA_TYPE": "evaluator"}).ends(0)
    (line,) = [json.loads(x) for x in task.log.splitlines() if x.startswith('{"tfgpu": "evaluation"')]
    assert line["step"] == 240
    assert line["accuracy"] == pytest.approx(digits.ended["summary"]["splits"]["test"]["accuracy"], abs=1e-6)
