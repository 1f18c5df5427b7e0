"""The leader's rules under random stories of a gang."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.trainer.round_story import NAMING, PEER, Gang, KilledError, Pod

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import rounds as rounds_module
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.commands import Brought, Command, Drain, End, MemberState, Send, Start, Stop
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
    rounds = Rounds(names, budget, NAMING, len(names) + spares, least, spares)
    if not resizable:
        rounds = Rounds(names, budget)
    pods = {name: Pod(name, MemberState(name, NAMING if resizable else None), 0, runs=True) for name in names}
    story = Gang(rounds, chance, pods, last=Start(0, None, len(names) if resizable else None))
    _shape(story, seed)
    every = {id(pod): pod for pod in pods.values()}
    come = names[: 1 if starts else None]
    for name in names[len(come) :]:
        pods[name].runs, pods[name].starts, pods[name].strange = False, True, True
    try:
        for name in come:
            assert rounds.joined(name, 0.0) is None
        story.connected, story.available = {name: pods[name] for name in come}, set(come)
        for _ in range(600):
            story.step()
            every |= {id(pod): pod for pod in story.pods.values()}
        assert story.rounds.round - story.rounds.resizes <= budget
        if resizable:
            story.settle()
    finally:
        every |= {id(pod): pod for pod in story.pods.values()}
        for pod in every.values():
            pod.memory.close()
    return story


def _shape(story: Gang, seed: int) -> None:
    """What happens in it, and how often."""
    chance = story.chance
    story.trouble = chance.choice([0.0, 0.01, 0.03, 0.2])
    story.resized, story.drained = chance.choice([(0.2, 0.0), (0.2, 0.5), (0.02, 1.0)])
    if story.rounds.spares:
        story.drained = 0.5
    if chance.randrange(4) == 0:
        # Who waits for a pod that does not come can't train on without another one.
        story.full, story.resized = True, 0.0
    story.mortal, story.shared = _is_mortal(seed), seed % 2 == 0
    if seed in AWAY:
        story.trouble, story.resized, story.drained, story.full, story.away = 0.01, 0.0, 0.0, False, 0.6


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
    assert sum(story.replaced for story in stories) > 20
    assert sum(story.reduced for story in stories) > 5
    assert sum(play(seed).taken for seed in WITH_SPARES) > 20
    assert sum(play(seed).led for seed in MORTAL) > 50
    assert 20 < sum(story.over for story in stories) < 80


def _nobody_sends(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    newest = max(self._in_memory.values(), default=None)
    self._in_memory = {} if newest is None else {self.members[0]: newest}
    return right(self, now)


def _the_oldest(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    self._in_memory = dict([min(self._in_memory.items(), key=lambda item: item[1])]) if self._in_memory else {}
    return right(self, now)


def _endless_patience(self: Rounds, now: float, right: Any = Rounds.waited) -> Any:
    return None if self._sending is not None else right(self, now)


def _from_any_time(self: Rounds, sending: Send, _now: float) -> bool:
    return True


def _one_slot(self: MemoryFile, step: int, parts: Any, right: Any = MemoryFile.write) -> None:
    copy = self.newest()
    if copy is not None:
        self._empty(copy.slot)
    right(self, step, parts)


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


def _before_they_come(self: Rounds) -> Any:
    return (self.wanted, self.members if self.naming is None else self.naming.of(self.wanted))


def _without_the_leavers_copies(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    staying = set((self._following() or (0, ()))[1])
    self._in_memory = {name: step for name, step in self._in_memory.items() if name in staying}
    return right(self, now)


def _leavers_count(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    here = set(self._here)
    command = right(self, now)
    self._here = here
    return command


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


def _no_drain_ends_well(self: Rounds, member: str, end: End, right: Any = Rounds._refusal) -> Any:
    draining, self._draining = self._draining, False
    reason = right(self, member, end)
    self._draining = draining
    return reason


def _a_drain_may_last(self: Rounds, now: float, right: Any = Rounds.waited) -> Any:
    self._stopped_since = None
    return right(self, now)


def _the_start_is_forgotten(self: MemberState, _round: int) -> Any:
    return self.last


def _nobody_leaves(self: MemberState, command: Command) -> None:
    self.last = command
    if isinstance(command, Start):
        self._start = command


def _waits_for_ever(self: Rounds, *event: Any, right: Any = Rounds.joined, **joins: bool) -> Any:
    command = right(self, *event, **joins)
    if isinstance(command, Drain):
        self._draining = False
        return None
    return command


def _without_the_lost(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    self._here |= self._lost.keys()
    return right(self, now)


def _before_the_others_have_ended(self: Rounds, *event: Any, right: Any = Rounds._lose, **how: bool) -> Any:
    command = right(self, *event, **how)
    self._ends |= dict.fromkeys(self._at_work(), End(PEER, progressed=True))
    return command


def _nobody_is_told(self: Rounds, *event: Any, right: Any = Rounds._lose, **how: bool) -> Any:
    command = right(self, *event, **how)
    if isinstance(command, Stop):
        self._stopping_since = None
        return None
    return command


def _whoever_is_lost(self: Rounds, right: Any = Rounds._following) -> Any:
    silent, self._silent = self._silent, {*self._lost}
    following = right(self)
    self._silent = silent
    return following


def _however_few(self: Rounds, right: Any = Rounds._following) -> Any:
    least, self.least = self.least, None if self.least is None else 0
    following = right(self)
    self.least = least
    return following


def _spares_train_too(_self: Rounds, come: Any, _count: int) -> Any:
    return come


def _the_lowest_indexes(_self: Rounds, come: Any, count: int) -> Any:
    return come[:count]


def _no_spare_is_taken(self: Rounds, right: Any = Rounds._following) -> Any:
    return None if self.spares and self._lost.keys() | self._leaving else right(self)


def _however_many_come(self: Rounds, right: Any = Rounds._following) -> Any:
    spares, self.spares = self.spares, 0
    following = right(self)
    self.spares = spares
    return following if spares and self._lost else right(self)


def _all_count(_self: Rounds) -> tuple[int, ...]:
    return ()


def _nothing_is_brought(_self: Rounds, _member: str, _brought: Brought) -> None:
    return None


def _numbers_start_again(self: Rounds, now: float, right: Any = Rounds._next) -> Any:
    self._newest, self._highest = dataclasses.replace(self._newest, round=self.round), self.round
    return right(self, now)


def _without_the_leader(self: Rounds, right: Any = Rounds._following) -> Any:
    here = {*self._here}
    if self.least is not None and self.leader in self._leaving:
        self._leaving.discard(self.leader)
        following = right(self)
        self._leaving.add(self.leader)
        self._here = here
        return following
    return right(self)


def _whatever_its_round(_self: Brought, other: Brought) -> bool:
    return other.step is not None


def _whichever_it_obeyed(self: Leader, member: str, hello: Any, right: Any = Leader.knows) -> bool:
    return right(self, member, {**hello, "leader": 0})


def _whichever_is_there(self: Leader, member: str, hello: Any, right: Any = Leader.knows) -> bool:
    self._restarts.clear()
    return right(self, member, hello)


@pytest.mark.parametrize(
    ("where", "name", "bug", "broken"),
    [
        (Rounds, "_next", _nobody_sends, "a step that somebody holds is done again"),
        (Rounds, "_next", _the_oldest, "a step that somebody holds is done again"),
        (Rounds, "waited", _endless_patience, "a copy that never comes is waited for"),
        (Rounds, "awaits", _from_any_time, "a state that was left behind"),
        (MemoryFile, "keep", lambda *_: None, "a state that was left behind"),
        (MemoryFile, "write", _one_slot, "a step that somebody holds is done again"),
        (MemoryFile, "write", _marked_first, "a state that nobody had|is done again"),
        (transfer._Incoming, "chunks", _unchecked, "a state that nobody had"),
        (Rounds, "_following", _before_they_come, "stopped for a worker that has not come"),
        (Rounds, "_next", _leavers_count, "stopped for a worker that has not come"),
        (Rounds, "_next", _without_the_leavers_copies, "a step that somebody holds is done again"),
        (Rounds, "_next", _a_resize_is_a_restart, "a resize costs a restart"),
        (Rounds, "ended", _at_once, "two rounds at once|a resize costs a restart"),
        (Rounds, "left", _everybody_is_missed, "a pod that can be replaced ends the gang"),
        (Rounds, "_refusal", _no_drain_ends_well, "a drain ends the gang"),
        (Rounds, "waited", _a_drain_may_last, "what was asked for never comes about"),
        (Rounds, "joined", _waits_for_ever, "what was asked for never comes about"),
        (MemberState, "in_round", _the_start_is_forgotten, "what was asked for never comes about"),
        (MemberState, "take", _nobody_leaves, "a worker too many"),
        (Rounds, "_next", _without_the_lost, "a round of a worker that has not come|two rounds at once"),
        (Rounds, "_lose", _before_the_others_have_ended, "two rounds at once"),
        (Rounds, "_lose", _nobody_is_told, "what was asked for never comes about"),
        (Rounds, "_following", _whoever_is_lost, "two rounds at once|a worker that has not come"),
        (rounds_module, "SILENT_SECONDS", 5.0, "two rounds at once"),
        (rounds_module, "SILENT_SECONDS", math.inf, "nobody trains on"),
        (Rounds, "_following", _however_few, "too few workers train on"),
        (Rounds, "_chosen", _spares_train_too, "stopped for a spare|a round of spares too"),
        (Rounds, "_following", _however_many_come, "a round of spares too"),
        (Rounds, "_chosen", _the_lowest_indexes, "stopped for a spare"),
        (Rounds, "_following", _no_spare_is_taken, "nobody trains on|what was asked for never comes about"),
        (Rounds, "without", property(_all_count), "a round of a worker that has not come"),
        (Rounds, "_replaceable", False, "a pod that can be replaced ends the gang"),
        (Rounds, "_take_in", _nothing_is_brought, "a step that somebody holds is done again|never comes about"),
        (Rounds, "_next", _numbers_start_again, "what was asked for never comes about"),
        (Rounds, "_following", _without_the_leader, "a round of a worker that has not come"),
        (Brought, "accepts", _whatever_its_round, "a state that was left behind"),
        (Leader, "knows", _whichever_it_obeyed, "a leader that was replaced is obeyed"),
        (Leader, "knows", _whichever_is_there, "a pod that was replaced takes part"),
    ],
)
def test_the_stories_find_a_planted_bug(monkeypatch, where, name, bug, broken):
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError, match=broken):
        play_all()
