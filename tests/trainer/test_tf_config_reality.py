"""TF_CONFIG as TensorFlow 2.21 really takes it: why the operator builds it as it does.

Each row is real processes with a deadline. All are started together, so the wait is paid once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.harness import free_ports, until

SCRIPT = Path(__file__).with_name("tf_config_script.py")
pytestmark = pytest.mark.deep
HANG_SECONDS = 6
"""Much longer than the same call takes once it can succeed (under 1 s)."""

_THREADS = {"TF_NUM_INTEROP_THREADS": "16", "TF_NUM_INTRAOP_THREADS": "2"}
"""Servers of one process wait for each other; with a thread for each core, two cores are too few for four."""


class Process:
    """A process of the script."""

    def __init__(self, directory: Path, name: str, what: str, env: Mapping[str, str]) -> None:
        self.log_path = directory / f"{name}.log"
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", **_THREADS, **env}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), what], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def answer(self) -> dict[str, Any] | None:
        """The JSON line, once there is one."""
        lines = [x for x in self.log_path.read_text(errors="replace").splitlines() if x.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    def wait(self, seconds: float = 90) -> dict[str, Any]:
        """The JSON line."""
        until(lambda: self.answer() is not None or self._process.poll() is not None, seconds)
        answer = self.answer()
        assert answer is not None, self.log_path.read_text(errors="replace")
        return answer

    def end(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.wait()


def config(cluster: Mapping[str, Any], role: str, index: int) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": role, "index": index}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tf_config")
    ports = [f"127.0.0.1:{port}" for port in free_ports(16)]
    nobody = "127.0.0.1:1"
    started: dict[str, Process] = {}

    def start(name: str, what: str, tf_config: dict[str, Any]) -> None:
        started[name] = Process(directory, name, what, {"TF_CONFIG": json.dumps(tf_config)})

    def serve(name: str, configs: list[dict[str, Any]]) -> None:
        started[name] = Process(directory, name, "servers", {"SERVERS": json.dumps(configs)})

    start("evaluator alone", "resolve", config({"evaluator": [nobody]}, "evaluator", 0))
    start("master", "multi_worker_mirrored", config({"master": [ports[0]], "worker": [ports[1]]}, "master", 0))
    start(
        "two evaluators",
        "multi_worker_mirrored",
        config({"worker": [ports[2]], "evaluator": ["a:1", "b:1"]}, "worker", 0),
    )
    start(
        "evaluator listed", "multi_worker_mirrored", config({"worker": [ports[3]], "evaluator": [nobody]}, "worker", 0)
    )
    start("sparse v1", "multi_worker_mirrored", config({"worker": {"1": ports[4]}}, "worker", 1))

    # Two clusters of one worker and one ps; their servers know of an evaluator, which is nowhere.
    coordinators = {}
    for name, (chief, worker, ps) in {"coordinator": ports[5:8], "hang": ports[8:11]}.items():
        cluster = {"chief": [chief], "worker": [worker], "ps": [ps]}
        listed = {**cluster, "evaluator": [nobody]}
        serve(f"{name} servers", [config(listed, "worker", 0), config(listed, "ps", 0)])
        coordinators[name] = config(listed if name == "hang" else cluster, "chief", 0)

    # A worker knows itself and every ps, a ps only itself, the chief everybody.
    chief, w0, w1, p0, p1 = ports[11:16]
    workers = [config({"worker": {i: a}, "ps": [p0, p1]}, "worker", i) for i, a in enumerate([w0, w1])]
    serve("sparse servers", [*workers, *(config({"ps": {i: a}}, "ps", i) for i, a in enumerate([p0, p1]))])
    coordinators["sparse"] = config({"chief": [chief], "worker": [w0, w1], "ps": [p0, p1]}, "chief", 0)

    # As the peer gate does: a coordinator starts when its ps and workers serve.
    for name, tf_config in coordinators.items():
        assert "serving" in started[f"{name} servers"].wait()
        start(name, "parameter_server", tf_config)
    yield started
    for process in started.values():
        process.end()


def test_an_evaluator_alone_in_its_own_tf_config_works_with_every_helper(rows):
    assert rows["evaluator alone"].wait() == {
        "role": "evaluator",
        "index": 0,
        "is_chief": True,
        "worker_count": 1,
        "id_in_cluster": 0,
    }


def test_master_is_a_disallowed_task_type(rows):
    assert "Disallowed task type" in rows["master"].wait()["error"]


def test_two_evaluators_are_refused(rows):
    assert "at most one 'evaluator'" in rows["two evaluators"].wait()["error"]


def test_an_evaluator_listed_under_multi_worker_mirrored_does_no_harm(rows):
    assert rows["evaluator listed"].wait() == {"replicas": 1}


def test_the_sparse_form_of_v1_is_unusable_for_multi_worker_mirrored(rows):
    assert "exceeds the maximum id of worker" in rows["sparse v1"].wait()["error"]


def test_an_evaluator_known_to_workers_and_ps_only_does_no_harm(rows):
    assert rows["coordinator"].wait()["sums"] == [20.0, 20.0]


def test_an_evaluator_in_the_coordinators_cluster_hangs(rows):
    rows["coordinator"].wait()
    with pytest.raises(AssertionError, match="not met in time"):
        rows["hang"].wait(HANG_SECONDS)


def test_the_working_sparse_form_for_parameter_server_trains(rows):
    result = rows["sparse"].wait()
    assert result["sums"] == [20.0, 20.0]
    assert len(result["devices"]) == 1
