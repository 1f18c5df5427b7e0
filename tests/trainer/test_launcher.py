"""Several processes of one pod have one end: the first of the most specific."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tfgpujob_trainer.contract.exits import Outcome
from tfgpujob_trainer.reporting.resize_requests import ResizeRequests
from tfgpujob_trainer.supervise import launcher
from tfgpujob_trainer.supervise.commands import Drain, End, GiveUp, Leave, Start
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.member import Member


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
    """A stand-in for a Supervisor that ends when asked to, or never does."""

    def __init__(self, name, *, code=None, obeys=True):
        self.name, self.mark, self.last_lines = name, "", [name]
        self.progressed = self.explained = False
        self.resizes = None
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

    def drain(self):
        self._code, self.explained, self.progressed = 143, True, True

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

    def start(now):
        codes = (None, 137) if now.round == 0 else (0, 0)
        rounds.append([Process(f"worker-{i}", code=code, obeys=False) for i, code in enumerate(codes)])
        return rounds[-1]

    end, _ = run_in_place(start)
    assert (end.code, end.in_place_restarts) == (0, 1)
    assert len(rounds) == 2
    assert rounds[0][0].killed


def test_an_exception_that_a_process_has_told_of_is_never_started_over():
    """It is reported before the connections close by which its peers detect it."""
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
    end, lines = run_in_place(lambda now: [Process(f"life-{now.round}", code=137)])
    assert (end.code, lines) == (137, ["life-1"])
    assert "not started again in place: a second failure without a step in between" in capsys.readouterr().out


class Told(Member):
    """A member that gets one command after the other."""

    speaks = True

    def __init__(self, *commands):
        self.commands, self.ends = list(commands), []

    def ended(self, round_, end):
        self.ends.append((round_, end))
        self.commands.pop(0)

    def command(self, round_):
        return self.commands[0] if self.commands else None

    def resize(self, workers):
        self.asked = workers

    def gang(self):
        return {"round": 0, "workers": 2, "wanted": 2, "here": 2}


def test_a_drain_is_no_end_and_the_next_round_has_another_number(capsys):
    member, rounds = Told(Drain(0), Start(1, None, 3, 1), None), []

    def start(now):
        rounds.append(now)
        return [Process("worker-0", code=None if now.round == 0 else 0)]

    end, _ = launcher.run(start, member)
    assert (end.code, end.in_place_restarts) == (0, 0)
    assert member.ends[0] == (0, End(143, progressed=True, saved=True))
    assert [(now.round, now.workers) for now in rounds] == [(0, None), (1, 3)]
    said = capsys.readouterr().out
    assert "round 1 has 3 workers" in said
    assert "started again" not in said


def test_who_has_no_part_in_the_next_round_ends_as_stopped():
    processes: list[Any] = [Process("worker-1")]
    end, _ = launcher.run(lambda _: processes, Told(Drain(0), Leave(1)))
    assert (end.code, end.message) == (143, "left the gang, which continues with fewer workers")


def test_who_joins_starts_nothing_before_its_first_round():
    rounds: list[Start] = []

    def start(now):
        rounds.append(now)
        return [Process("worker-2", code=0)]

    end, _ = launcher.run(start, Told(Start(3, 7, 3, 1), None), joins=True)
    assert (end.code, end.in_place_restarts, rounds) == (0, 2, [Start(3, 7, 3, 1)])
    never, _ = launcher.run(start, Told(GiveUp("the leader has left")), joins=True)
    assert (never.code, never.in_place_restarts, len(rounds)) == (160, 0, 1)


@pytest.mark.parametrize(("progressed", "rounds"), [(True, [0, 0]), (False, [])])
def test_a_pod_leaves_its_memory_behind_while_its_process_waits_for_one_that_is_lost(progressed, rounds):
    """And again at its end, if there is more. Not what a round began with that has done no step."""
    left: list[int] = []
    waits: Any = Process("worker-1", obeys=False)
    waits.progressed = progressed
    waits.poll = lambda: outcome(160) if left or not progressed else None
    lost = GiveUp("the leader has left")
    launcher.run(lambda _: [waits], Told(lost, lost), leave=left.append)
    assert left == rounds


@pytest.mark.parametrize(("code", "rounds"), [(1, []), (137, [0])])
def test_who_has_failed_for_good_says_so_before_anybody_writes_a_copy(code, rounds):
    left: list[int] = []
    failed: Any = Process("worker-1", code=code)
    failed.progressed = True
    launcher.run(lambda _: [failed], Told(None, GiveUp("it has failed")), leave=left.append)
    assert left == rounds


def test_a_pod_that_is_told_to_stop_in_a_start_leaves_what_it_began_with():
    class Stopped(Process):
        def wait(self, seconds):
            os.kill(os.getpid(), signal.SIGTERM)

    left: list[int] = []
    stopped: Any = Stopped("worker-0")
    launcher.run(lambda _: [stopped], Leader(["worker-0"], budget=2), leave=left.append)
    assert left == [0]


def test_what_is_asked_for_reaches_the_leader_and_its_answer_the_process():
    ours, theirs = ResizeRequests.pair()
    process: Any = Process("worker-0", code=None)
    process.resizes = ours
    member = Told(Drain(0), None)
    heard = []

    def wait(_seconds):
        theirs.send({"workers": 9, "request": 3})
        if (told := theirs.newest()) is not None:
            heard.append(told)
        member.commands[0] = Drain(0) if heard else None

    process.wait = wait
    member.commands = [None, GiveUp("enough")]
    launcher.run(lambda _: [process], member)
    assert member.asked == 9
    assert heard == [{"gang": member.gang(), "answered": 3}], "once, as it does not change"
