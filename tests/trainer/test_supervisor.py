"""How the training process is set up; what the supervisor says of its end is in test_processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.machine import PATIENCE

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.supervise import supervisor
from tfgpujob_trainer.supervise.processes import KEEP_MEMORY
from tfgpujob_trainer.supervise.supervisor import Supervisor

BATCHES = """
import resource, threading
import numpy as np

def read():
    for _ in range(200):
        rows = np.ones(200_000, "float32")
        tensor = rows.copy(), rows.copy()
        del rows, tensor

thread = threading.Thread(target=read)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
PAGES = 200 * 200_000 * 4 // 4096


@pytest.mark.parametrize(("keep", "fresh"), [(KEEP_MEMORY, False), ({}, True)])
def test_batches_that_come_and_go_do_not_cost_fresh_pages(keep, fresh):
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", BATCHES], env={**others, **keep}, check=True, capture_output=True)
    assert (int(done.stdout) > PAGES) is fresh


STANDS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(os.environ["BEATS"]), b'{"phase": "%s", "step": 3}\\n{"stoppable": true}\\n')
time.sleep(1000)
"""


def until(true):
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("phase", "ends"), [("running the script", True), ("starting", True), ("training", False)])
def test_who_is_asked_to_stop_outside_of_its_steps_ends_soon(phase, ends, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "OUTSIDE_SECONDS", 0.2)

    def spawn(_arguments, _environment, streams):
        passed = {**os.environ, "BEATS": str(streams.heartbeat)}
        program = [sys.executable, "-c", STANDS % phase]
        return subprocess.Popen(program, stdout=streams.stdout, pass_fds=[streams.heartbeat], env=passed)

    settings = config.parse({"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})
    process = Supervisor(settings, [], {"TFGPU_STRATEGY": "OneDevice"}, spawn)
    process.start()
    until(lambda: process._stoppable)
    process.signal(signal.SIGTERM)
    if ends:
        outcome = until(process.poll)
        assert (outcome.code, outcome.cause) == (ExitCode.STOPPED, "Stopped")
        assert "it ends after a step, or in 0.2 s" in capfd.readouterr().err
    else:
        assert not process._stays_outside(time.monotonic() + 1)
        process.kill()
        until(process.poll)


def test_a_trainer_that_can_not_be_imported_has_lost_no_peer():
    """A file keras.py beside the script hides Keras, on each of two workers and after each restart."""

    def spawn(_arguments, _environment, streams):
        program = [sys.executable, "-c", "import not_there_at_all"]
        return subprocess.Popen(program, stdout=streams.stdout, stderr=streams.stderr)

    cluster = {"worker": ["localhost:1", "localhost:2"]}
    tf_config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    settings = config.parse({"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})
    environment = {"TFGPU_STRATEGY": "MultiWorkerMirrored", "TF_CONFIG": tf_config}
    process = Supervisor(settings, [], environment, spawn)
    process.start()
    process.wait(PATIENCE)
    outcome = process.poll()
    assert outcome is not None
    assert (outcome.code, outcome.cause) == (ExitCode.FAILED, "Exception")
    assert outcome.message == "the trainer can't be imported: ModuleNotFoundError: No module named 'not_there_at_all'"
    assert "such as keras.py" in outcome.fix
