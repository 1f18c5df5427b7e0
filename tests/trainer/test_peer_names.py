"""A task whose peers' names do not resolve: it waits, says for whom, and gives up when the operator does."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.trainer.harness import ask, free_ports, trainer_config, until

from tfgpujob_trainer.cluster import peer_names
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.supervise.watchdog import Watchdog

MISSING = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"worker": ["127.0.0.1:1", "job-worker-1.nobody.invalid:2"]},
            "task": {"type": "worker", "index": 0},
        }
    )
}

OWN_LOOP = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("the strategy is made")
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = strategy.run(lambda: tf.constant(1.0))
"""


def test_a_pod_says_for_whom_it_waits_and_may_be_stopped(launch_here):
    (port,) = free_ports(1)
    env = {**MISSING, "TFGPU_PROGRESS_PORT": str(port), "TFGPU_START_DEADLINE_SECONDS": "600"}
    task = launch_here.start(trainer_config(launch_here.directory / "waits"), env=env)
    until(lambda: ask(port).get("waitsFor") is not None)
    told = ask(port)
    assert (told["phase"], told["waitsFor"]) == ("waiting for peers", ["job-worker-1"])
    assert {"started", "imported"} <= told["ledger"]["marks"].keys()
    assert "resolved" not in told["ledger"]["marks"]
    task.process.terminate()
    assert task.wait() == 143


def test_it_gives_up_when_the_start_is_too_late_and_that_is_no_failure_of_its_own(launch_here):
    env = {**MISSING, "TFGPU_START_DEADLINE_SECONDS": "1"}
    task = launch_here.start(trainer_config(launch_here.directory / "late"), env=env).ends(164)
    assert task.ended["cause"] == "PeersMissing"
    assert "job-worker-1.nobody.invalid" in task.ended["message"]
    assert "startDeadlineSeconds" in task.ended["message"]


def test_so_does_the_pod_of_a_script_that_builds_its_strategy_itself(launch_here):
    (launch_here.directory / "own.py").write_text(OWN_LOOP)
    env = {**MISSING, "TFGPU_START_DEADLINE_SECONDS": "1", "TFGPU_CODE_DIR": str(launch_here.directory)}
    task = launch_here.start(
        {"entrypoint": "own.py", "output": {"directory": str(launch_here.directory / "own")}}, env=env
    ).ends(164)
    assert "runs as it is" in task.log
    assert "waiting for the names of 1 peer: job-worker-1.nobody.invalid" in task.log
    assert "the strategy is made" not in task.log


def test_those_that_are_missing_are_looked_up_until_all_have_come(monkeypatch):
    looks: list[str] = []
    told: list[Sequence[str]] = []
    later = {"a-worker-1.a.b.svc": 3, "a-ps-0.a.b.svc": 2}

    def resolves(host):
        looks.append(host)
        return looks.count(host) >= later.get(host, 1)

    monkeypatch.setattr("tfgpujob_contract.peers.resolves", resolves)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    workers = ("a-worker-0.a.b.svc:2222", "a-worker-1.a.b.svc:2222")
    env = Environment(workers=workers, servers=("a-ps-0.a.b.svc:2222",), start_seconds=9)
    peer_names.resolve_peers(env, told.append)
    assert told == [["a-worker-1", "a-ps-0"], ["a-worker-1"], []]
    assert looks.count("a-worker-0.a.b.svc") == 1
    told.clear()
    peer_names.resolve_peers(env, told.append)
    assert told == [], "nothing was waited for"


def test_the_deadline_of_the_start_up_begins_when_all_have_come():
    dog = Watchdog(startup_seconds=60, step_seconds=5, now=0)
    dog.beat("waiting for peers", 0, 10)
    assert dog.overdue(1700) is None
    dog.beat("waiting for peers", 0, 1700)
    dog.beat("starting", 0, 1701)
    assert dog.overdue(1759) is None
    assert dog.overdue(1761) is not None


def test_the_time_is_that_of_waiting():
    heartbeat = Heartbeat(None)
    heartbeat.spent("importing", mark="imported")
    heartbeat.waits_for(["job-worker-1"])
    heartbeat.waits_for(())
    assert heartbeat.ledger.parts.keys() == {"importing", "waiting"}
    assert json.loads(heartbeat.run_status.to_json())["waitsFor"] is None
