"""Several processes of one pod have one end: the first of the most specific."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.supervise import launcher
from tfgpujob_trainer.supervise.gang import Leader


def outcome(code):
    return Outcome(code=code, cause="Cause", message=f"ended with {code}")


@pytest.mark.parametrize(
    ("codes", "told", "blamed"),
    [
        ([0, 0], False, 0),
        ([160, 1], False, 1),
        ([160, 143, 70, 1], False, 2),
        ([143, 160], False, 1),
        ([160, 143], True, 1),
        ([0, 143], True, 1),
        ([0, 160], False, 1),
        ([0, 137], False, 1),
    ],
)
def test_whose_end_is_the_pods(codes, told, blamed):
    assert launcher.root_cause([outcome(code) for code in codes], told_to_stop=told) == blamed


class Process:
    """A stand-in for a Supervisor that ends when it is told to, or never does."""

    def __init__(self, name, *, code=None, obeys=True):
        self.name, self.mark, self.last_lines = name, "", [name]
        self.progressed = self.explained = False
        self._code, self._obeys, self.killed = code, obeys, False

    def start(self):
        pass

    def wait(self, seconds):
        pass

    def poll(self):
        return None if self._code is None else outcome(self._code)

    def signal(self, number):
        assert number == signal.SIGTERM
        if self._obeys:
            self._code = 143

    def kill(self):
        self.killed = True


def run(processes: list[Any]) -> Any:
    return launcher.run(lambda _: processes)


@pytest.fixture(autouse=True)
def own_signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_when_one_fails_the_others_are_stopped():
    end, lines = run([Process("worker-0"), Process("worker-1", code=70)])
    assert (end.code, end.message) == (70, "worker-1: ended with 70")
    assert lines == ["worker-1"]


def test_those_that_do_not_stop_are_ended(monkeypatch):
    monkeypatch.setattr(launcher, "_STRAGGLERS_SECONDS", -1.0)
    deaf = Process("worker-0", obeys=False)
    end, _ = run([deaf, Process("worker-1", code=1)])
    assert deaf.killed
    assert end.code == 1


def run_in_place(start: Any) -> Any:
    return launcher.run(start, Leader(["worker-0"], budget=2))


def test_in_place_the_others_are_ended_and_all_start_again():
    rounds: list[list[Process]] = []

    def start(round_):
        codes = (None, 137) if round_ == 0 else (0, 0)
        rounds.append([Process(f"worker-{i}", code=code, obeys=False) for i, code in enumerate(codes)])
        return rounds[-1]

    end, _ = run_in_place(start)
    assert (end.code, end.in_place_restarts) == (0, 1)
    assert len(rounds) == 2
    assert rounds[0][0].killed


def test_an_exception_that_a_process_has_told_of_is_never_started_over():
    """It is told before the connections close by which its peers notice."""
    raised = Process("worker-1", code=1)
    raised.explained = True
    raised.poll = lambda: outcome(1) if raised.killed else None  # type: ignore[method-assign]
    end, _ = run_in_place(lambda _: [Process("worker-0", code=160), raised])
    assert (end.code, end.message) == (1, "worker-1: ended with 1")


def test_whoever_is_told_to_stop_does_not_start_again():
    class Stopped(Process):
        def wait(self, seconds):
            os.kill(os.getpid(), signal.SIGTERM)

    end, _ = run_in_place(lambda _: [Stopped("worker-0", code=None)])
    assert end.code == 143


def test_a_loop_ends_with_what_ended_it(capsys):
    end, lines = run_in_place(lambda round_: [Process(f"life-{round_}", code=137)])
    assert (end.code, lines) == (137, ["life-1"])
    assert "not started again in place: a second failure without a step in between" in capsys.readouterr().out
