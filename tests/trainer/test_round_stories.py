"""The leader's rules under random stories of a gang."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from tests.trainer.round_pods import NAMING, PEER, Chances, Pod
from tests.trainer.round_story import Gang
from tests.trainer.round_training import KilledError

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import rounds as rounds_module
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.commands import Brought, Command, Drain, End, MemberState, Start, Stop
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.rounds import Rounds

STORIES = 400
WITH_SPARES = range(1000, 1150)
MORTAL = range(2000, 2300)
"""Stories in which the leader's pod is lost, too."""
STARTING = range(3000, 3150)
"""The same, from before the pods have come for the first time."""
AWAY = range(4100, 4250)
"""Some train on without others that can't be heard, and that come back with their copies, often to another leader."""


def play(seed: int) -> Gang:
    """A story, of a gang with spares if its seed says so; raises AssertionError when it breaks a promise."""
    chance = random.Random(seed)
    budget = chance.randrange(10)
    names = NAMING.of(1 + chance.randrange(4))
    spares = 1 + seed % 2 if seed in WITH_SPARES or (seed in MORTAL and seed % 8 == 0) else 0
    starts, away = seed in STARTING, seed in AWAY
    resizable = chance.randrange(3) > 0 or spares > 0 or _is_mortal(seed)
    least = chance.choice([None, 1, 1, 2]) if not spares else len(names)
    if away:
        names, least = NAMING.of(3), 1
    of_workers = (NAMING, len(names) + spares, least, spares) if resizable else ()
    rounds = Rounds(names, budget, *of_workers)
    pods = {name: Pod(name, MemberState(name, NAMING if resizable else None), 0, runs=True) for name in names}
    story = Gang(
        rounds, chance, _chances(chance, seed, spares), pods, last=Start(0, None, len(names) if resizable else None)
    )
    come = names[: 1 if starts else None]
    for name in names[len(come) :]:
        pods[name].runs, pods[name].starts, pods[name].strange = False, True, True
    try:
        for name in come:
            assert rounds.joined(name, 0.0) is None
        story.connected, story.available = {name: pods[name] for name in come}, set(come)
        for _ in range(600):
            story.step()
        assert story.rounds.round - story.rounds.resizes <= budget
        if resizable:
            story.settle()
    finally:
        for pod in story.every:
            pod.memory.close()
    return story


def _chances(chance: random.Random, seed: int, spares: int) -> Chances:
    """What happens in it, and how often."""
    trouble = chance.choice([0.0, 0.01, 0.03, 0.2])
    resized, drained = chance.choice([(0.2, 0.0), (0.2, 0.5), (0.02, 1.0)])
    # Who waits for a pod that does not come can't train on without another one.
    full = chance.randrange(4) == 0
    if seed in AWAY:
        trouble, drained, full = 0.01, 0.0, False
    return Chances(
        trouble=trouble,
        resized=0.0 if full or seed in AWAY else resized,
        drained=0.5 if spares else drained,
        shared=seed % 2 == 0,
        mortal=_is_mortal(seed),
        full=full,
        away=0.6 if seed in AWAY else None,
    )


def _is_mortal(seed: int) -> bool:
    return any(seed in seeds for seeds in (MORTAL, STARTING, AWAY))


def play_all() -> None:
    for seed in (*range(STORIES), *WITH_SPARES, *MORTAL, *STARTING, *AWAY):
        play(seed)


@pytest.mark.parametrize("seed", [*range(STORIES), *WITH_SPARES, *MORTAL, *STARTING, *AWAY])
def test_whatever_happens_the_promises_of_a_gang_hold(seed):
    """No two rounds at once, none beyond the budget, no step that is held is done again, and resizes come about."""
    play(seed)


def test_the_stories_are_about_something():
    stories = [play(seed) for seed in range(100)]
    assert sum(story.rounds.resizes for story in stories) > 50
    assert sum(story.rounds.round - story.rounds.resizes for story in stories) > 50
    assert sum(story.counts["replaced"] for story in stories) > 20
    assert sum(story.counts["reduced"] for story in stories) > 5
    assert sum(play(seed).counts["taken"] for seed in WITH_SPARES) > 20
    assert sum(play(seed).counts["led"] for seed in MORTAL) > 50
    assert 20 < sum(story.over for story in stories) < 80


def _after(change: Callable[[Any], object], right: Any) -> Any:
    """A method, after what it is called on was changed."""

    def bug(self: Any, *args: Any, **more: Any) -> Any:
        change(self)
        return right(self, *args, **more)

    return bug


def _with(right: Any, **other: Callable[[Any], Any]) -> Any:
    """A method, while attributes of what it is called on have other values."""

    def bug(self: Any, *args: Any, **more: Any) -> Any:
        instead = {name: value(self) for name, value in other.items()}
        with contextlib.ExitStack() as stack:
            for name, value in instead.items():
                stack.enter_context(mock.patch.object(self, name, value))
            return right(self, *args, **more)

    return bug


def _without(kind: type, flag: str, right: Any) -> Any:
    """A method that never returns a command of this kind, and forgets that it would have."""

    def bug(self: Rounds, *args: Any, **more: Any) -> Any:
        command = right(self, *args, **more)
        if not isinstance(command, kind):
            return command
        setattr(self, flag, None)
        return None

    return bug


def _only_the_leader_has_copies(rounds: Rounds) -> None:
    newest = max(rounds._in_memory.values(), default=None)
    rounds._in_memory = {} if newest is None else {rounds.members[0]: newest}


def _only_the_oldest_copy(rounds: Rounds) -> None:
    rounds._in_memory = dict(sorted(rounds._in_memory.items(), key=lambda item: item[1])[:1])


def _no_copies_of_leavers(rounds: Rounds) -> None:
    staying = set((rounds._following(math.inf) or (0, ()))[1])
    rounds._in_memory = {name: step for name, step in rounds._in_memory.items() if name in staying}


def _only_the_newest_slot(file: MemoryFile) -> None:
    if (copy := file.newest()) is not None:
        file._empty(copy.slot)


def _numbers_start_again(rounds: Rounds) -> None:
    rounds._newest, rounds._highest = dataclasses.replace(rounds._newest, round=rounds.round), rounds.round


def _marked_first(self: MemoryFile, step: int, parts: Any, right: Any = MemoryFile.write) -> None:
    right(self, step, [b""])
    copy = self.newest()
    assert copy is not None
    content = b""
    with contextlib.suppress(KilledError):
        for part in parts:
            content += bytes(part)
    self._empty(copy.slot)
    right(self, step, [content])


def _unchecked(self: Any, wanted: Any) -> Iterator[bytes]:
    while self._left:
        chunk = self._stream.read(self._left)
        self._left -= len(chunk)
        yield chunk


def _before_they_come(self: Rounds, _now: float) -> Any:
    return (self.wanted, self.members if self.naming is None else self.naming.of(self.wanted))


def _a_resize_is_a_restart(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    command = right(self, now)
    self.resizes = 0
    return dataclasses.replace(command, resizes=0) if isinstance(command, Start) else command


def _at_once(self: Rounds, member: str, round_: int, end: End, now: float, right: Any = Rounds.ended) -> Any:
    if end.saved and self._draining and not self.given_up and round_ == self.round:
        self._ends = dict.fromkeys(self.members, end)
    return right(self, member, round_, end, now)


def _everybody_is_missed(self: Rounds, member: str, _now: float, **_: bool) -> Any:
    return self._give_up(f"{member} has left")


def _nobody_leaves(self: MemberState, command: Command) -> None:
    self.last = command
    if isinstance(command, Start):
        self._start = command


def _before_the_others_have_ended(self: Rounds, *event: Any, right: Any = Rounds._lose, **how: bool) -> Any:
    command = right(self, *event, **how)
    self._ends |= dict.fromkeys(self._at_work(), End(PEER, progressed=True))
    return command


def _no_spare_is_taken(self: Rounds, now: float, right: Any = Rounds._following) -> Any:
    return None if self.spares and self._lost.keys() | self._leaving else right(self, now)


def _however_many_come(self: Rounds, now: float, right: Any = Rounds._following) -> Any:
    following = _with(right, spares=lambda _: 0)(self, now)
    return following if self.spares and self._lost else right(self, now)


def _without_the_leader(self: Rounds, now: float, right: Any = Rounds._following) -> Any:
    if self.least is None or self.leader not in self._leaving:
        return right(self, now)
    return _with(
        right, _leaving=lambda rounds: rounds._leaving - {rounds.leader}, _here=lambda rounds: {*rounds._here}
    )(self, now)


def _whichever_it_obeyed(self: Leader, member: str, hello: Any, right: Any = Leader.knows) -> bool:
    return right(self, member, {**hello, "leader": 0})


@pytest.mark.parametrize(
    ("where", "name", "bug", "broken"),
    [
        (
            Rounds,
            "_next",
            _after(_only_the_leader_has_copies, Rounds._next),
            "a step that somebody holds is done again",
        ),
        (Rounds, "_next", _after(_only_the_oldest_copy, Rounds._next), "a step that somebody holds is done again"),
        (
            Rounds,
            "waited",
            lambda self, now, right=Rounds.waited: None if self._sending is not None else right(self, now),
            "a copy that never comes is waited for",
        ),
        (Rounds, "awaits", lambda *_: True, "a state that was left behind|a step that somebody holds is done again"),
        (MemoryFile, "keep", lambda *_: None, "a state that was left behind"),
        (
            MemoryFile,
            "write",
            _after(_only_the_newest_slot, MemoryFile.write),
            "a step that somebody holds is done again",
        ),
        (MemoryFile, "write", _marked_first, "a state that nobody had|is done again"),
        (transfer._Incoming, "chunks", _unchecked, "a state that nobody had"),
        (Rounds, "_following", _before_they_come, "stopped for a worker that has not come"),
        (
            Rounds,
            "_next",
            _with(Rounds._next, _here=lambda rounds: {*rounds._here}),
            "stopped for a worker that has not come",
        ),
        (Rounds, "_next", _after(_no_copies_of_leavers, Rounds._next), "a step that somebody holds is done again"),
        (Rounds, "_next", _a_resize_is_a_restart, "a resize costs a restart"),
        (Rounds, "ended", _at_once, "two rounds at once|a resize costs a restart"),
        (Rounds, "left", _everybody_is_missed, "a pod that can be replaced ends the gang"),
        (Rounds, "_refusal", _with(Rounds._refusal, _draining=lambda _: False), "a drain ends the gang"),
        (
            Rounds,
            "waited",
            _after(lambda rounds: setattr(rounds, "_stopped_since", None), Rounds.waited),
            "what was asked for never comes about",
        ),
        (Rounds, "joined", _without(Drain, "_draining", Rounds.joined), "what was asked for never comes about"),
        (MemberState, "in_round", lambda self, _: self.last, "what was asked for never comes about"),
        (MemberState, "take", _nobody_leaves, "a worker too many"),
        (
            Rounds,
            "_next",
            _after(lambda rounds: rounds._here.update(rounds._lost), Rounds._next),
            "a round of a worker that has not come|two rounds at once",
        ),
        (Rounds, "_lose", _before_the_others_have_ended, "two rounds at once"),
        (Rounds, "_lose", _without(Stop, "_stopping_since", Rounds._lose), "what was asked for never comes about"),
        (
            Rounds,
            "_following",
            _with(Rounds._following, _lost=lambda rounds: dict.fromkeys(rounds._lost, -math.inf)),
            "two rounds at once|a worker that has not come",
        ),
        (rounds_module, "SILENT_SECONDS", 5.0, "two rounds at once"),
        (rounds_module, "SILENT_SECONDS", math.inf, "nobody trains on"),
        (
            Rounds,
            "_following",
            _with(Rounds._following, least=lambda rounds: rounds.least and 0),
            "too few workers train on",
        ),
        (Rounds, "_chosen", lambda _, come, __: come, "stopped for a spare|a round of spares too"),
        (Rounds, "_following", _however_many_come, "a round of spares too"),
        (Rounds, "_chosen", lambda _, come, count: come[:count], "stopped for a spare"),
        (Rounds, "_following", _no_spare_is_taken, "nobody trains on|what was asked for never comes about"),
        (Rounds, "without", property(lambda _: ()), "a round of a worker that has not come"),
        (Rounds, "_replaceable", False, "a pod that can be replaced ends the gang"),
        (Rounds, "_take_in", lambda *_: None, "a step that somebody holds is done again|never comes about"),
        (Rounds, "_next", _after(_numbers_start_again, Rounds._next), "what was asked for never comes about"),
        (Rounds, "_following", _without_the_leader, "a round of a worker that has not come"),
        (Brought, "accepts", lambda _, other: other.step is not None, "a state that was left behind"),
        (Leader, "knows", _whichever_it_obeyed, "a leader that was replaced is obeyed"),
        (
            Leader,
            "knows",
            _after(lambda leader: leader._restarts.clear(), Leader.knows),
            "a pod that was replaced takes part",
        ),
    ],
)
def test_the_stories_find_a_planted_bug(monkeypatch, where, name, bug, broken):
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError, match=broken):
        play_all()
