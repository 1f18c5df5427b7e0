"""Several processes of one pod have one end: the first of the most specific."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.supervise import launcher


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
    return launcher.run(processes)


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
