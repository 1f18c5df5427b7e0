"""How a run reports its progress: JSON lines, /progress, TensorBoard, a profile, and one sentence about the input."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_asset_util
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tests.machine import PATIENCE
from tests.trainer import user_module
from tests.trainer.harness import Launcher, Task, ask, free_ports, trainer_config, until
from tests.trainer.inprocess import entrypoint, train_module
from tests.trainer.training_logs import progress_of

from tfgpujob_trainer.cluster import wait_for_workers
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.environment import read
from tfgpujob_trainer.reporting import progress_endpoint
from tfgpujob_trainer.reporting.gpu_memory import gpu_memory
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.profiler import Profiler
from tfgpujob_trainer.reporting.run_status import RunStatus
from tfgpujob_trainer.reporting.timing import Durations, StepTime
from tfgpujob_trainer.train.assemble import input_fix
from tfgpujob_trainer.train.finish import finish
from tfgpujob_trainer.train.run import Position


@pytest.fixture(scope="module")
def run(launch: Launcher) -> tuple[Task, dict[str, Any], list[str]]:
    """A run whose 20th step takes for ever, with its /progress at that time; then it is stopped."""
    (port,) = free_ports(1)
    config = trainer_config(
        launch.directory / "out", checkpoint={"everySteps": 5}, profile={"steps": [3, 4]}, evaluate={"everyEpochs": 1}
    )
    env = {"TEST_AT": "20", "TEST_DO": "stall", "TFGPU_PROGRESS_PORT": str(port), "TFGPU_PROGRESS_TOKEN": "0af3"}
    task = launch.start(config, env=env)
    # The save after step 15 continues beside the steps.
    until(lambda: (told := ask(port, "0af3")).get("step") == 19 and told["lastCheckpoint"]["step"] == 15)
    seen, addresses = ask(port, "0af3"), listening(port)
    assert ask(port) == {}, "without the token it tells nothing"
    task.process.kill()
    task.wait()
    return task, seen, addresses


def listening(port):
    """Addresses with a listener on `port`, from /proc."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [f[1].split(":")[0] for f in lines if f[3] == "0A" and int(f[1].split(":")[1], 16) == port]


def test_progress_while_a_run_goes_on(run, launch):
    _, progress, _ = run
    assert {k: progress[k] for k in ("phase", "step", "steps", "epochs")} == {
        "phase": "training",
        "step": 19,
        "steps": 35,
        "epochs": 5,
    }
    assert progress["epoch"] == 2
    assert progress["loss"] > 0
    assert progress["examplesPerSecond"] > 0
    assert progress["stepSeconds"] > 0
    assert 0 <= progress["inputWait"] <= 1
    directory = launch.directory / "out" / "checkpoints" / "step-0000000015"
    assert progress["idleSeconds"] >= 0
    assert progress["waitsForPeers"] is False
    when = progress["lastCheckpoint"].pop("time")
    assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(when) < timedelta(hours=1)
    took = progress["lastCheckpoint"].pop("seconds")
    assert type(took) is int
    assert took >= 1, "whole seconds, rounded up"
    assert progress["lastCheckpoint"] == {"step": 15, "directory": str(directory)}


def test_the_json_line_has_all_that_is_known_of_an_interval(run):
    line = run[0].progress()[-1]
    assert (line["step"], line["steps"], line["epoch"], line["epochs"]) == (14, 35, 2, 5)
    assert line["inputWait"] + line["allReduce"] + line["compute"] == pytest.approx(1, abs=0.01)
    assert line["workerSeconds"].keys() == {"worker-0"}
    assert line["metrics"].keys() == {"accuracy"}
    assert line.keys() >= {"phase", "loss", "examplesPerSecond", "stepSeconds"}


def test_every_phase_of_a_run_has_a_heartbeat(monkeypatch, tmp_path):
    beats: list[str] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda _, phase, step=0: beats.append(phase))
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((8, 6), np.float32), np.zeros(8, np.int64)))
    run = train_module(
        entrypoint(user_module.model, rows, validation=rows),
        devices=1,
        epochs=2,
        batch=4,
        seed=1,
        output=tmp_path,
        data={"cache": "memory"},
        evaluate={"everyEpochs": 1},
        checkpoint={"everyEpochs": 1},
    )
    finish(run, Position(epoch=2, step=4))
    phases = [phase for phase, _ in itertools.groupby(beats)]
    epoch = ["training", "evaluating", "saving"]
    assert phases == ["caching", "starting", "caching", "starting", *epoch, *epoch, "training", "saving", "exporting"]


def test_a_run_from_a_shell_answers_this_machine_alone(run):
    assert run[2] == ["0100007F"]


def test_tensorboard_has_training_and_validation(run, launch):
    def scalars(split):
        found: dict[str, list[int]] = {}
        for file in (launch.directory / "out" / "tensorboard" / split).glob("events*"):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    assert np.isfinite(tf.make_ndarray(value.tensor))
                    found.setdefault(value.tag, []).append(event.step)
        return found

    train, validation = scalars("train"), scalars("validation")
    assert train["loss"] == [7, 14]
    wanted = ("loss", "accuracy", "examplesPerSecond", "stepSeconds", "inputWait", "allReduce", "compute", "epoch")
    assert train == {key: [7, 14] for key in wanted}
    assert validation["loss"] == validation["accuracy"] == [7, 14]


def test_the_profile_of_the_named_steps_is_written(run, launch):
    output = launch.directory / "out"
    assert run[0].log.count(f"profile written: tensorboard --logdir {output}\n") == 1
    # What the Profile page does: it looks at every run that TensorBoard knows for one of its own files.
    runs = EventMultiplexer().AddRunsFromDirectory(str(output)).Reload().Runs()
    assert set(runs) == {"profile", "tensorboard/train", "tensorboard/validation"}
    (profiled,) = plugin_asset_util.ListAssets(str(output / "profile"), "profile")
    assert list((output / "profile" / "plugins" / "profile" / profiled).glob("*.xplane.pb"))


def test_a_profile_of_steps_that_do_not_come_is_said(tmp_path, capsys):
    profiler = Profiler((5, 8), tmp_path)
    profiler.before(1)
    profiler.close()
    assert capsys.readouterr().out == "tfgpu-train: no profile: training here did not come to step 5\n"


def test_json_has_no_numbers_that_json_does_not_know():
    board = RunStatus()
    board.update(loss=float("nan"), step=3)
    assert json.loads(board.to_json(), parse_constant=pytest.fail)["loss"] is None


def test_only_progress_is_answered_and_a_taken_port_is_said(capsys):
    port = progress_endpoint.serve(RunStatus(), 0, in_pod=True)
    assert port is not None
    assert ask(port)["phase"] == "starting"
    for path in ("/", "/progress/", "/../progress", "/etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE)
    assert progress_endpoint.serve(RunStatus(), port, in_pod=True) is None
    fix = "set TFGPU_PROGRESS_PORT to a free one, or to 0"
    line = f"tfgpu-train: no /progress: port {port}: Address already in use; {fix}\n"
    assert capsys.readouterr() == (line, "")


@pytest.fixture(scope="module")
def endpoint() -> int:
    """The port of a run's own endpoint, for clients with the token `secret`."""
    port = progress_endpoint.serve(RunStatus(), 0, in_pod=False, token="secret")
    assert port is not None
    return port


def answered(port: int, token: str = "secret", name: str = "X-Tfgpu-Token") -> tuple[int, float]:
    """The status of an answer, and the seconds that it took."""
    began = time.monotonic()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/progress", headers={name: token} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert json.loads(answer.read())["phase"] == "starting"
            return answer.status, time.monotonic() - began
    except urllib.error.HTTPError as refused:
        return refused.code, time.monotonic() - began


def test_progress_is_told_to_who_shows_the_token_of_the_pod(endpoint: int):
    assert [answered(endpoint, name=name)[0] for name in ("X-Tfgpu-Token", "x-tfgpu-token")] == [200, 200]
    assert [answered(endpoint, token)[0] for token in ("", "Secret", "secre", "secrets", "se\u00e7ret")] == [403] * 5


@contextlib.contextmanager
def slow_clients(port: int, count: int, begun: bytes):
    """`count` clients that have begun a request, and continue with a byte every 50 ms; returns each one's result."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            for client in sockets:
                with contextlib.suppress(OSError):
                    client.send(b"x")

    for client in sockets:
        client.send(begun)
    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield sockets
    finally:
        over.set()
        thread.join()
        for client in sockets:
            client.close()


@pytest.mark.parametrize("begun", [b"G", b"GET /progress HTTP/1.1\r\nX-Tfgpu-Token: "])
def test_slow_clients_hold_up_nobody_and_are_left_after_a_second(endpoint: int, begun: bytes):
    many = 3 * progress_endpoint.MAX_CONNECTIONS
    with slow_clients(endpoint, many, begun) as clients:
        code, seconds = answered(endpoint)
        assert (code, seconds < 0.5) == (200, True), seconds
        for client in clients:
            client.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b"", "no answer, and the end of it"


def test_a_request_without_an_end_is_not_kept(endpoint: int):
    with socket.create_connection(("127.0.0.1", endpoint)) as client:
        client.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"x" * (1 << 16))
            assert client.recv(1) == b""
    assert answered(endpoint)[0] == 200


@pytest.mark.parametrize(
    ("env", "port"),
    [({}, 0), ({"TFGPU_JOB_UID": "u"}, 8080), ({"TFGPU_JOB_UID": "u", "TFGPU_PROGRESS_PORT": "0"}, 0)],
)
def test_the_port_is_opened_in_pods_and_where_it_is_asked_for(env, port):
    assert read(env).progress_port == port


@pytest.mark.parametrize(
    ("own", "advice"),
    [
        ([0.5, 0.5], "communication-bound: 40% of the time is the all-reduce, once an optimizer step; raise "),
        (
            [0.25, 1.0],
            "straggler: 40% of the time is waiting for worker-1, which needs 1 s of its own for a step, others 0.25 s",
        ),
    ],
)
def test_waiting_in_the_all_reduce_is_put_down_to_the_network_or_to_a_worker(own, advice):
    progress = progress_of("worker-0", "worker-1")
    for told in ([0.0, 0.0], [0.0, 0.0], own, own):
        progress.add(8, StepTime(1.0, 0.05, 0.4), told)
    assert progress.advice(progress.total).startswith(advice)
    progress = progress_of("worker-0")
    for _ in range(4):
        progress.add(8, StepTime(1.0, 0.05, 0.4), [0.5])
    assert progress.advice(progress.total) == ""
    progress = progress_of("worker-0", "worker-1", one_machine=True)
    for told in ([0.0, 0.0], [0.0, 0.0], own, own):
        progress.add(8, StepTime(1.0, 0.05, 0.4), told)
    assert progress.advice(progress.total) == "", "they share the cores of one machine, and no network"


def test_a_worker_that_is_a_few_milliseconds_slower_is_no_straggler():
    progress = progress_of("worker-0", "worker-1")
    for told in ([0.0, 0.0], [0.0, 0.0], [0.004, 0.009], [0.004, 0.009]):
        progress.add(8, StepTime(1.0, 0.05, 0.4), told)
    assert progress.advice(progress.total).startswith("communication-bound")


def test_workers_that_start_together_are_not_missed_at_once(monkeypatch):
    looks: list[str] = []
    said: list[str] = []

    def answers(address):
        looks.append(address)
        return len(looks) >= 20

    monkeypatch.setattr(wait_for_workers, "say", said.append)
    monkeypatch.setattr(wait_for_workers, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(wait_for_workers, "_answers", answers)
    cluster = {"worker": ["a.job:2222", "b.job:2222"]}
    env = read({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})})
    assert not env.on_one_machine
    wait_for_workers.wait_for_workers(env)
    until(lambda: len(looks) >= 20, 10)
    assert said == []
    monkeypatch.setattr(wait_for_workers, "_PATIENCE_SECONDS", 0.0)
    looks.clear()
    wait_for_workers.wait_for_workers(env)
    until(lambda: bool(said), 10)
    assert said == ["waiting for 1 of 1 other workers, which do not answer: worker-1 (b.job:2222)"]


def test_tasks_of_one_host_are_on_one_machine():
    cluster = {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}
    assert read({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}).on_one_machine


def test_the_first_step_compiles_and_no_longer_counts_once_there_is_another():
    progress = progress_of("worker-0")
    progress.add(8, StepTime(60.0, 0.0, 0.0), [0.0])
    assert progress.total.step_seconds == 60.0
    progress.add(8, StepTime(1.0, 0.0, 0.0), [0.0])
    progress.add(8, StepTime(1.0, 0.0, 0.0), [1.0])
    assert progress.total.step_seconds == 1.0
    assert progress.workers.seconds() == {"worker-0": 1.0}


@pytest.mark.parametrize(("waited", "said"), [(0.34, True), (0.05, False)])
def test_waiting_for_data_is_said_once_with_what_to_do(waited, said, capsys):
    progress, second_fit = progress_of("worker-0"), progress_of("worker-0")
    second_fit.run_status = progress.run_status
    for fit in (progress, second_fit):
        for epoch in (1, 2):
            for _ in range(10):
                fit.add(8, StepTime(1.0, waited, 0.0), [1.0])
            fit.epoch_line(epoch=epoch, values={"loss": 1.0})
    line = "input-bound: 34% of the time is waiting for data; do this"
    assert capsys.readouterr().out.count(line) == (1 if said else 0)


def test_the_most_memory_that_each_gpu_has_used(monkeypatch):
    """By TensorFlow's allocator. Without a GPU it is unknown."""
    assert gpu_memory() is None
    gpus = [tf.config.LogicalDevice(f"/device:GPU:{i}", "GPU") for i in range(2)]
    used = {"/device:GPU:0": 3 << 30, "/device:GPU:1": 5 << 20}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: gpus)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: {"current": 0, "peak": used[name]})
    assert gpu_memory() == [3072, 5]
    monkeypatch.undo()
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: tf.config.list_physical_devices("CPU"))
    assert gpu_memory() is None


def test_quantiles_of_any_number_of_durations_take_no_more_room():
    """A prediction of many rows once kept the seconds of every batch."""
    durations, rng = Durations(), np.random.default_rng(1)
    seconds = rng.lognormal(-4, 1, 20_000)
    for one in seconds[:10_000]:
        durations.add(one)
    room = len(durations._buckets)
    for one in [*seconds[10_000:], 0.0]:
        durations.add(one)
    assert len(durations._buckets) < 1.3 * room < 2000
    for share in (0.5, 0.99):
        assert durations.quantile(share) == pytest.approx(np.quantile(seconds, share), rel=0.01)
    assert Durations().quantile(0.5) == 0


def test_a_script_is_not_told_to_set_what_it_can_not_have():
    settings = config.parse({"entrypoint": "train.py"})
    assert "trainer." not in input_fix(settings, of_script=True)
    assert input_fix(settings, of_script=False).startswith("set trainer.data.cache")
