"""Another number of workers in place: who may ask for it, and that the run stays the same to 1e-10."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pytest
from tests.machine import PATIENCE
from tests.trainer import user_module
from tests.trainer.harness import Launcher, Task, ask, free_ports, trainer_config, until
from tests.trainer.reference import plain_keras_weights

from tfgpujob_trainer.reporting import progress_endpoint
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.reporting.run_status import RunStatus

TOKEN = "0af3"
GANG = {"round": 3, "workers": 2, "wanted": 2, "here": 2, "without": []}


def put(port: int, body: bytes, token: str = TOKEN) -> tuple[int, Any]:
    """The status of PUT /workers, and what it says."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/workers", data=body, method="PUT", headers={"X-Tfgpu-Token": token}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        said = refused.read()
        return refused.code, json.loads(said) if refused.code == 409 else said.decode()


def serve(resizes: ResizeRequests | None, token: str = TOKEN) -> int:
    port = progress_endpoint.serve(RunStatus(), 0, in_pod=False, token=token, resizes=resizes)
    assert port is not None
    return port


@contextlib.contextmanager
def supervisor(decides: Callable[[int], dict[str, Any]]) -> Iterator[tuple[ResizeRequests, ResizeRequests]]:
    """A supervisor that reports this about the gang when another number of workers is requested, and the two ends of
    its socket.
    """
    ours, theirs = ResizeRequests.pair()
    ours.send({"gang": GANG, "answered": 0})
    over = threading.Event()

    def answer() -> None:
        while not over.wait(0.01):
            if (asked := ours.newest()) is not None:
                ours.send({"gang": decides(asked["workers"]), "answered": asked["request"]})

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield ours, theirs
    finally:
        over.set()
        thread.join()


def test_a_number_of_workers_is_the_supervisors_to_decide():
    # 4 is under way: what is asked for in between waits.
    decided: dict[int, dict[str, Any]] = {
        4: {**GANG, "wanted": 4},
        3: {**GANG, "wanted": 4},
        1: {"reason": "the gang has given up: why"},
    }
    with supervisor(decided.__getitem__) as (_, theirs):
        port = serve(theirs)
        assert ask(port, TOKEN)["gang"] == GANG
        assert put(port, b'{"workers": 4}') == (200, {"workers": 2, "wanted": 4, "without": []})
        assert put(port, b'{"workers": 3}') == (200, {"workers": 2, "wanted": 4, "without": []})
        assert ask(port, TOKEN)["gang"] == {**GANG, "wanted": 4}
        assert put(port, b'{"workers": 1}') == (409, {"reason": "the gang has given up: why"})
        assert "gang" not in ask(port, TOKEN)


def test_without_an_answer_of_the_supervisor_there_is_none():
    """It has not spoken yet, it does not look, it is gone."""
    ours, theirs = ResizeRequests.pair()
    port = serve(theirs)
    assert put(port, b'{"workers": 4}')[0] == 503
    assert "gang" not in ask(port, TOKEN)
    assert ours.newest() is None
    ours.send({"gang": GANG, "answered": 0})
    assert put(port, b'{"workers": 4}')[0] == 503
    assert ours.newest() == {"workers": 4, "request": 1}
    ours.close()
    assert put(port, b'{"workers": 4}')[0] == 503


def test_a_chief_tells_of_the_restarts_of_others_while_it_goes_on():
    """And that its number of workers can't be changed."""
    ours, theirs = ResizeRequests.pair()
    port = serve(theirs)
    ours.send({"gang": None, "answered": 0, "inPlaceRestarts": 2})
    assert ask(port, TOKEN)["inPlaceRestarts"] == 2
    assert put(port, b'{"workers": 4}')[0] == 409


def test_nobody_waits_for_an_end_that_does_not_read():
    ours, _theirs = ResizeRequests.pair()
    assert not all(ours.send(GANG) for _ in range(10_000))


def test_who_leads_no_gang_that_can_be_resized_says_so():
    code, said = put(serve(None), b'{"workers": 4}')
    assert (code, said) == (409, {"reason": "this pod does not lead a gang that can be resized in place"})


@pytest.mark.parametrize("token", ["", "guessed"])
def test_only_who_shows_the_token_may_ask_for_workers(token):
    ours, theirs = ResizeRequests.pair()
    ours.send({"gang": GANG, "answered": 0})
    assert put(serve(theirs), b'{"workers": 4}', token)[0] == 403
    assert put(serve(None, token=""), b'{"workers": 4}', token)[0] == 403, "without one everybody may look, and no more"
    assert ours.newest() is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"4",
        b"{",
        b'{"workers": 0}',
        b'{"workers": 513}',
        b'{"workers": true}',
        b'{"workers": "4"}',
        b" " * 2000,
        b"[" * 1024,
    ],
    ids=lambda body: body[:12],
)
def test_what_is_no_number_of_workers_is_refused(body):
    ours, theirs = ResizeRequests.pair()
    ours.send({"gang": GANG, "answered": 0})
    assert put(serve(theirs), body) == (400, 'send {"workers": N}, N from 1 to 512\n')
    assert ours.newest() is None


def ports_in_a_row(count: int) -> list[int]:
    """As free_ports, one after the other: hosts and ports that count on say what the next worker's are."""
    while True:
        first = free_ports(1)[0]
        row = list(range(first, first + count))
        try:
            for port in row:
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return row


class Elastic:
    """Workers of a gang that is resized in place: how they are started, and what is heard of them."""

    def __init__(self, launch: Launcher, config: Mapping[str, Any], **environment: str) -> None:
        self._launch, self._config, self._environment = launch, config, environment
        self._ports, (self._progress, self._leads) = ports_in_a_row(3), free_ports(2)

    def start(self, index: int, workers: int, **more: str) -> Task:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in self._ports[:workers]]}
        env = {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            "TFGPU_STRATEGY": "MultiWorkerMirrored",
            "TFGPU_REPLICA_TYPE": "worker",
            "TFGPU_REPLICA_INDEX": str(index),
            "TFGPU_PROGRESS_PORT": str(self._progress if index == 0 else 0),
            "TFGPU_PROGRESS_TOKEN": TOKEN,
            "TFGPU_RECOVERY": "InPlace",
            "TFGPU_RECOVERY_BUDGET": "0",
            "TFGPU_RECOVERY_LEADER": f"127.0.0.1:{self._leads}",
            "TFGPU_RECOVERY_TOKEN": "token",
            "TFGPU_RECOVERY_RESIZE": "1",
            "TFGPU_RECOVERY_LEAST": "2",
            # Steps that last, so that what is asked for is heard before the end.
            "TEST_AT": "1",
            "TEST_DO": "slow",
            "TEST_SECONDS": "0.1",
            **self._environment,
            **more,
        }
        return self.launched(env)

    def launched(self, env: Mapping[str, str]) -> Task:
        return self._launch.start(self._config, env=env)

    def gang(self, field: str) -> Any:
        return ask(self._progress, TOKEN).get("gang", {}).get(field)

    def step(self) -> int:
        return ask(self._progress, TOKEN).get("step") or 0

    def resize(self, workers: int) -> None:
        """As the operator does: ask until it is known."""

        def known() -> bool:
            wanted = self.gang("wanted")
            if wanted not in (None, workers):
                assert put(self._progress, json.dumps({"workers": workers}).encode())[0] in (200, 503)
            return bool(wanted == workers)

        until(known)


@pytest.mark.deep
def test_a_run_resized_in_place_from_two_workers_to_three_and_one_is_the_same_run(launch_here, tmp_path):
    """Also without one that was deleted in between, and with another pod in its place."""
    seen, gate = tmp_path / "seen", tmp_path / "gate"
    config = trainer_config(tmp_path / "out", checkpoint={"everyEpochs": 1000})

    elastic = Elastic(launch_here, config, TEST_AFTER=str(gate), TEST_SEEN=str(seen))
    tasks = [elastic.start(0, 2), elastic.start(1, 2), elastic.start(2, 3, TFGPU_RECOVERY_JOINS="1")]
    until(lambda: elastic.gang("here") == 2)
    elastic.resize(3)
    until(lambda: elastic.gang("here") == 3)
    gate.touch()
    until(lambda: elastic.gang("workers") == 3 and elastic.step() > 4)
    deleted = tasks.pop(1)
    deleted.process.terminate()
    assert deleted.wait() == 143, deleted.log
    # The others have the indexes 0 and 2.
    until(lambda: elastic.gang("without") == [1])
    before = elastic.step()
    until(lambda: elastic.step() > before + 2)
    gate.unlink()
    tasks.append(elastic.start(1, 3, TFGPU_RECOVERY_JOINS="1"))
    until(lambda: elastic.gang("here") == 3)
    gate.touch()
    until(lambda: elastic.gang("round") == 3)
    assert elastic.gang("without") == []
    elastic.resize(1)
    assert [task.wait() for task in tasks] == [0, 143, 143], "\n".join(task.log for task in tasks)
    assert all("left the gang, which continues with fewer workers" in task.log for task in tasks[1:])
    assert tasks[0].ended.get("inPlaceRestarts", 0) == 0
    assert len(set(resumed(tasks[0]))) == 4, tasks[0].log
    assert "round 2 has 2 workers, without worker-1" in tasks[1].log
    expected = plain_keras_weights(epochs=5)
    found = keras.saving.load_model(tmp_path / "out" / "model.keras").get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10
    rows = user_module.data("train")[0][:, 0]
    assert Counter(np.fromfile(seen)) == Counter(dict.fromkeys(rows, 5)), "each row once in each epoch"


@pytest.mark.deep
def test_a_spare_takes_the_place_of_a_worker_that_is_told_to_stop(launch_here, tmp_path):
    """No round waits for another pod, no step is repeated, and the result is that of one process."""
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    config = trainer_config(tmp_path / "out", checkpoint={"everyEpochs": 1000})
    spares = {"TFGPU_RECOVERY_SPARES": "1", "TEST_AFTER": str(gate), "TEST_SEEN": str(seen)}
    elastic = Elastic(launch_here, config, **spares)
    tasks = [elastic.start(0, 2), elastic.start(1, 2), elastic.start(2, 3, TFGPU_RECOVERY_JOINS="1")]
    until(lambda: elastic.gang("here") == 3)
    assert elastic.gang("without") == [2]
    gate.touch()
    until(lambda: elastic.step() > 4)
    told_to_stop = tasks.pop(1)
    told_to_stop.process.terminate()
    until(lambda: elastic.gang("without") == [1])
    assert [task.wait() for task in (told_to_stop, *tasks)] == [143, 0, 0], "\n".join(task.log for task in tasks)
    assert "round 1 has 2 workers, without worker-1" in tasks[1].log
    assert tasks[0].ended.get("inPlaceRestarts", 0) == 0
    expected = plain_keras_weights(epochs=5)
    found = keras.saving.load_model(tmp_path / "out" / "model.keras").get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10
    rows = user_module.data("train")[0][:, 0]
    assert Counter(np.fromfile(seen)) == Counter(dict.fromkeys(rows, 5)), "each row once in each epoch"


def resumed(task: Task) -> list[int]:
    """The steps after which it went on."""
    words = [line.split("resuming after step ")[1] for line in task.log.splitlines() if "resuming after step" in line]
    return [int(text.split()[0]) for text in words]


@pytest.mark.deep
def test_the_others_train_on_without_a_worker_that_is_killed_with_its_pod(launch_here, tmp_path):
    """It has said nothing: they wait until its processes have ended whatever has become of it, and no longer."""
    config = trainer_config(tmp_path / "out", checkpoint={"everySteps": 1})
    elastic = Elastic(launch_here, config)
    tasks = [elastic.start(index, 3) for index in range(3)]
    until(lambda: elastic.step() > 3)
    tasks.pop(1).process.kill()
    until(lambda: elastic.gang("without") == [1])
    assert [task.wait() for task in tasks] == [0, 0], "\n".join(task.log for task in tasks)
    assert "round 1 has 2 workers, without worker-1" in tasks[0].log
    expected = plain_keras_weights(epochs=5)
    found = keras.saving.load_model(tmp_path / "out" / "model.keras").get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 1e-10
