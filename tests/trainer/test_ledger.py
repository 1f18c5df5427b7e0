"""The goodput ledger of a pod: each moment has one name, in the process, in its supervisor, and after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import keras
import pytest
from tests.machine import scaled
from tests.trainer.cases import CE, labels, rows
from tests.trainer.inprocess import train_here

from tfgpujob_contract import goodput, phases
from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.checkpoints.manager import CheckpointManager
from tfgpujob_trainer.contract import config
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.data import feed
from tfgpujob_trainer.reporting.heartbeat import FD_VARIABLE, LEDGER_VARIABLE, Heartbeat
from tfgpujob_trainer.reporting.ledger import Bookkeeper, Ledger
from tfgpujob_trainer.step.synchronous import SynchronousSteps
from tfgpujob_trainer.supervise.supervisor import Supervisor

MS = 1_000_000
ALL_PHASES = [value for name, value in vars(phases).items() if name.isupper() and isinstance(value, str)]


class Process:
    """A training process under a clock of its own: `beat` after a number of milliseconds."""

    def __init__(self, account: Ledger | None = None) -> None:
        self.ledger = account or Ledger(0)
        self.books = Bookkeeper(self.ledger)
        self.now = self.ledger.since

    def beat(self, milliseconds: int, phase: str, step: int = 0, **aside: float) -> None:
        self.now += milliseconds * MS
        for part, seconds in aside.items():
            self.ledger.aside(part, seconds)
        self.ledger.spent(self.books.beat(phase, step), self.now, self.ledger.take_aside())
        self.ledger.stepped(step)

    @property
    def parts(self) -> dict[str, int]:
        """In milliseconds."""
        return {name: ns // MS for name, ns in self.ledger.parts.items() if ns}


def test_a_run_is_told_part_by_part():
    process = Process()
    process.beat(2000, phases.STARTING)
    process.beat(300, phases.CACHING)
    process.beat(10, phases.STARTING)
    process.beat(1000, phases.TRAINING, 1, input=0.2)
    process.beat(50, phases.TRAINING, 2, input=0.01, allReduce=0.015)
    process.beat(3, phases.SAVING, 2)
    process.beat(40, phases.TRAINING, 2)
    process.beat(20, phases.EVALUATING)
    process.beat(30, phases.EVALUATING)
    process.beat(60, phases.TRAINING, 3, saving=0.02)
    process.beat(5, phases.EXPORTING, 3)
    process.beat(100, phases.EXPORTING, 3)
    assert process.parts == {
        "importing": 2000,
        "building": 310,
        "input": 210,
        "tracing": 800,
        "allReduce": 15,
        "useful": 25 + 3 + 40 + 5,
        "saving": 40 + 20 + 100,
        "evaluating": 50,
    }


def test_the_first_prediction_traces_and_the_others_are_of_use():
    process = Process()
    process.beat(20, phases.STARTING)
    process.beat(500, phases.PREDICTING)
    process.beat(30, phases.PREDICTING)
    process.beat(7, phases.SCRIPT)
    process.beat(5, phases.SCRIPT)
    assert process.parts == {"importing": 20, "tracing": 500, "useful": 37, "other": 5}


def test_steps_up_to_the_highest_that_was_done_are_done_again():
    process = Process(Ledger(0, reached=12))
    process.beat(100, phases.STARTING)
    for step in range(10, 15):
        process.beat(10, phases.TRAINING, step)
    assert process.parts == {"importing": 100, "tracing": 10, "recomputing": 20, "useful": 20}
    assert process.ledger.marks == {"stepped": 140 * MS}
    assert process.ledger.reached == 14


def test_steps_of_another_fit_are_not_done_again():
    process = Process()
    process.beat(100, phases.STARTING)
    for _ in range(2):
        process.books.of_another_fit()
        for step in (1, 2):
            process.beat(10, phases.TRAINING, step)
    assert process.parts == {"importing": 100, "tracing": 20, "useful": 20}
    process = Process(Ledger(0, reached=2))  # restarted within the second
    process.books.of_another_fit()
    process.beat(10, phases.TRAINING, 1)
    process.beat(10, phases.TRAINING, 2)
    assert process.parts == {"tracing": 10, "recomputing": 10}


def test_whatever_happens_the_parts_are_the_whole():
    chance = random.Random(7)
    for _ in range(300):
        process = Process(Ledger(chance.randrange(10**15)))
        began = process.now
        for _ in range(chance.randrange(1, 60)):
            if chance.random() < 0.1:
                process.ledger.failed()
                process = Process(Ledger.from_json(process.ledger.to_json()))
            aside = {part: chance.random() * 0.2 for part in chance.sample(["input", "saving", "allReduce"], 2)}
            step = chance.choice([0, chance.randrange(50)])
            process.beat(chance.randrange(200), chance.choice(ALL_PHASES), step, **aside)
        assert sum(process.ledger.parts.values()) == process.now - began == process.ledger.since - began
        told = process.ledger.report(process.now, wall=1000.0)
        assert sum(told["parts"].values()) == (process.now - began) // MS
        assert told["until"] == 1_000_000
        assert set(told["parts"]) <= set(goodput.OF_TRAINER)
        assert min(told["parts"].values(), default=0) >= 0


def test_its_line_has_the_share_of_what_was_of_use():
    account = Ledger(0, {"useful": 700 * MS, "allReduce": 100 * MS, "input": 150 * MS, "lost": 40 * MS, "saving": 0})
    assert account.line() == "goodput 80.8% of 1.0 s: useful 0.7 s, waiting for input 0.1 s, all-reduce 0.1 s"
    assert Ledger(5).line() == ""


PROGRAM = """
import os, signal, sys, time
from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
heartbeat = Heartbeat.from_environment()
heartbeat.beat("starting")
heartbeat.spent("restoring", mark="restored")
for step in range(3, 8):
    heartbeat.ledger.aside("input", 0.001)
    time.sleep(0.002)
    heartbeat.beat("training", step)
print(heartbeat.ledger.to_json(), flush=True)
if sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
heartbeat.ended(Outcome(code=0, cause="Completed", message="done"))
print(heartbeat.ledger.to_json(), flush=True)
"""


CONFIG = config.parse({"entrypoint": "digits", "globalBatchSize": 8, "epochs": 1})


def supervised(how: str, account: Ledger) -> tuple[Outcome, dict[str, Any]]:
    """A process under a supervisor, and what it said last of its ledger."""

    def spawn(_arguments, environment, streams):
        passed = {**os.environ, **environment, FD_VARIABLE: str(streams.heartbeat)}
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, how], env=passed, pass_fds=[streams.heartbeat], stdout=streams.stdout
        )

    process = Supervisor(CONFIG, [], {}, spawn, ledger=account)
    process.start()
    until = time.monotonic() + scaled(60)
    while (outcome := process.poll()) is None:
        assert time.monotonic() < until
        process.wait(0.05)
    return outcome, json.loads(process.last_lines[-1])


def test_the_supervisor_has_what_the_process_had_when_it_is_killed():
    began = time.monotonic_ns()
    account = Ledger(began, reached=5)
    outcome, said = supervised("dies", account)
    assert outcome.code == 128 + signal.SIGKILL
    lost = account.parts.pop("lost")
    assert account.parts == said["parts"], "to the nanosecond"
    assert set(said["parts"]) == {"importing", "restoring", "tracing", "input", "recomputing", "useful"}
    assert sum(said["parts"].values()) + lost == account.since - began
    assert account.reached == 7
    marks = account.marks
    assert list(marks) == ["failed", "detected", "ended"]
    assert said["since"] == marks["failed"] <= marks["detected"] <= marks["ended"] == account.since


def test_who_gives_a_sign_of_life_while_it_is_ended_has_failed_no_later_than_that_was_noticed():
    account = Ledger(0)
    process = Supervisor(CONFIG, [], {}, ledger=account)
    process._told_to_end = 5
    account.spent("useful", 7)
    process._close_ledger(well=False)
    assert account.marks["failed"] <= account.marks["detected"] <= account.marks["ended"]


def test_the_next_process_goes_on_with_it_and_tells_of_the_restart():
    account = Ledger(time.monotonic_ns())
    supervised("dies", account)
    parts, began = dict(account.parts), account.since
    time.sleep(0.01)
    outcome, said = supervised("ends", account)
    assert outcome.code == ExitCode.DONE
    assert account.parts["restarting"] >= 10 * MS
    assert account.parts["lost"] == parts["lost"]
    assert {**said["parts"], "other": account.parts["other"]} == account.parts
    assert sum(account.parts.values()) - sum(parts.values()) == account.since - began
    told = account.report(time.monotonic_ns(), time.time())
    assert list(told["marks"]) == ["failed", "detected", "ended", "started", "restored"]
    assert sorted(told["marks"].values()) == list(told["marks"].values())
    assert account.parts["recomputing"] > 0, "all steps had been done before"
    assert LEDGER_VARIABLE not in os.environ


def test_the_moment_of_the_first_new_step_is_told():
    account = Ledger(time.monotonic_ns(), reached=4)
    supervised("ends", account)
    marks = account.marks
    assert list(marks) == ["started", "restored", "stepped"]
    assert marks["restored"] < marks["stepped"]


def test_a_process_after_one_that_was_stopped_has_times_of_its_own():
    account = Ledger(time.monotonic_ns())
    supervised("ends", account)
    first = account.marks["started"]
    supervised("ends", account)
    assert account.marks["started"] > first


def make_model():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    net.compile(keras.optimizers.SGD(0.1), CE(from_logits=True))
    return net


@pytest.fixture(scope="module")
def usual() -> dict[str, float]:
    return shares()


def shares() -> dict[str, float]:
    """Seconds by part of a run of 12 steps in this process."""
    heartbeat = Heartbeat(None)
    began = heartbeat.ledger.since
    data = rows(6), labels()
    train_here(
        make_model,
        data,
        validation=data,
        batch=16,
        seed=1,
        devices=1,
        epochs=None,
        steps=12,
        evaluate={"everySteps": 4},
        checkpoint={"everySteps": 3},
        heartbeat=heartbeat,
    )
    parts = heartbeat.ledger.parts
    assert sum(parts.values()) == heartbeat.ledger.since - began
    return {name: ns / 1e9 for name, ns in parts.items()}


def test_a_run_in_this_process_has_all_its_parts(usual):
    assert {name for name, seconds in usual.items() if seconds} == {
        "building",
        "importing",
        "restoring",
        "tracing",
        "input",
        "useful",
        "saving",
        "evaluating",
    }


def slow(monkeypatch, owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def slower(*arguments, **more):
        time.sleep(0.1)
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, slower)


@pytest.mark.parametrize(
    ("owner", "name", "part", "seconds"),
    [
        (feed.Feed, "_place", "input", 1.2),
        (CheckpointManager, "save", "saving", 0.4),
        (CheckpointManager, "restore", "restoring", 0.1),
        (SynchronousSteps, "evaluate", "evaluating", 2.1),
    ],
)
def test_what_is_made_slow_is_what_grows(monkeypatch, usual, owner, name, part, seconds):
    slow(monkeypatch, owner, name)
    found = shares()
    assert found[part] >= seconds
    assert part in usual
