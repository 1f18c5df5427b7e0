"""A log that is read through streams that break off anywhere: every line once, and whole."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from tfgpujob.client.position import MARGIN, Position, _comparable
from tfgpujob.kube.lines import Part, Splitter

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def stamp(seconds: float, zone: str = "Z") -> str:
    shown = BEGAN + timedelta(seconds=seconds) + (timedelta(hours=1) if zone == "+01:00" else timedelta())
    return f"{shown.strftime('%Y-%m-%dT%H:%M:%S.%f').rstrip('0').rstrip('.')}{zone}"


def kubelet(log: list[str], since: str) -> bytes:
    """What a node gives: by the second, and in the order in which it was written."""
    old = _comparable(since)
    return b"".join(f"{line}\n".encode() for line in log if not old or _comparable(line.partition(" ")[0]) >= old)


def read(log: list[str], cuts: list[int], *, clean: bool, longest: int = 1 << 20) -> list[str]:
    """The texts as a reader prints them, whose streams break off after these bytes; the last one reaches its end."""
    position, printed = Position(), ""
    for cut in [*cuts, 1 << 30]:
        splitter, given = Splitter(longest), kubelet(log, position.since())
        whole, given = cut >= len(given), given[:cut]
        parts = [
            part for at in range(0, min(cut, len(given)), 7) for part in splitter.feed(given[at : min(at + 7, cut)])
        ]
        # A server that goes down may end a stream as if all had been said.
        for part in parts + (splitter.rest() if whole or clean else []):
            new = position.new(part)
            if new is not None:
                printed += f"{new.text.decode()}{chr(10) if new.ends else ''}"
    return printed.splitlines()


@pytest.mark.parametrize("seed", range(60))
def test_no_line_is_lost_and_none_comes_twice(seed: int) -> None:
    chance = random.Random(seed)
    at, log = 0.0, []
    for number in range(40):
        # Equal times, small steps, and clocks that are set back and forth.
        at += chance.choice([0, 0, 0.0001, 0.5, 3, 20, -0.5, -1]) * chance.uniform(0.9, 1.1)
        log.append(f"{stamp(at, chance.choice(['Z', '+01:00']) if seed % 2 else 'Z')} line {number}")
    cuts = [chance.randrange(1, 900) for _ in range(6)]
    assert read(log, cuts, clean=False) == [f"line {number}" for number in range(40)]


@pytest.mark.parametrize("cut", range(20, 80, 3))
def test_a_line_that_was_cut_off_is_completed(cut: int) -> None:
    log = [f"{stamp(1)} first", f"{stamp(2)} {'x' * 30}end", f"{stamp(3)} third"]
    assert read(log, [cut], clean=False, longest=32) == ["first", f"{'x' * 30}end", "third"]
    if cut > 48:
        # Past the second line's time.
        assert "".join(read(log, [cut], clean=True)) == f"first{'x' * 30}endthird"


def test_lines_that_are_not_in_the_log_any_more_are_not_waited_for() -> None:
    """The kubelet gives the present file only: what was read last may have been rotated away."""
    position = Position()
    assert position.new(Part(f"{stamp(1)} old".encode())) is not None
    assert position.since() == stamp(1 - MARGIN.total_seconds())
    assert position.new(Part(f"{stamp(5)} new".encode())) == Part(b"new")


def test_what_the_kubelet_says_itself_has_no_time() -> None:
    words = Part(b"unable to retrieve container logs for containerd://f00")
    assert Position().new(words) == words


def test_a_clock_that_is_set_far_back_while_nothing_is_read() -> None:
    """What is lost then is what was written until the clock is as late again, and no line comes twice."""
    log = [f"{stamp(3600)} before"]
    position = Position()
    assert position.new(Part(log[0].encode())) is not None
    log += [f"{stamp(0)} lost", f"{stamp(3601)} after"]
    splitter = Splitter()
    parts = splitter.feed(kubelet(log, position.since()))
    assert [new.text for part in parts if (new := position.new(part))] == [b"after"]
