"""The leader's rules, played under random stories with a clock of their own."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, Command, End, GiveUp, Rounds, Send, Start, Stop

KILLED, PEER, RAISED, STOPPED, DONE = 137, 160, 1, 143, 0


def gang(*names: str, budget: int = 6) -> Rounds:
    rounds = Rounds(names or ("worker-0", "worker-1"), budget)
    for name in rounds.members:
        assert rounds.joined(name) is None
    return rounds


def ended(rounds: Rounds, member: str, code: int, *, round_: int = 0, progressed: bool = True, now: float = 0.0):
    return rounds.ended(member, round_, End(code, progressed), now)


def test_a_failure_ends_all_and_the_next_round_waits_for_each():
    rounds = gang("worker-0", "worker-1", "worker-2")
    assert ended(rounds, "worker-1", KILLED) == Stop(0)
    assert ended(rounds, "worker-2", PEER) is None
    assert ended(rounds, "worker-0", PEER) == Start(1)
    assert ended(rounds, "worker-0", KILLED, round_=1) == Stop(1)


def test_a_pod_of_its_own_needs_nobody():
    assert ended(gang("worker-0"), "worker-0", KILLED) == Start(1)


@pytest.mark.parametrize("code", [RAISED, 2, 70, STOPPED])
@pytest.mark.parametrize("after_a_peer", [False, True])
def test_what_is_no_failure_of_a_machine_is_never_tried_again(code, after_a_peer):
    rounds = gang()
    if after_a_peer:
        assert ended(rounds, "worker-0", PEER) == Stop(0)
    assert isinstance(ended(rounds, "worker-1", code), GiveUp)


def test_a_second_failure_without_a_step_in_between_is_the_pods():
    rounds = gang("worker-0")
    assert ended(rounds, "worker-0", KILLED, progressed=False) == Start(1)
    assert ended(rounds, "worker-0", KILLED, round_=1, progressed=True) == Start(2)
    command = ended(rounds, "worker-0", KILLED, round_=2, progressed=False)
    assert command == GiveUp("a second failure without a step in between")


def test_the_budget_is_the_jobs():
    rounds = gang("worker-0", budget=1)
    assert ended(rounds, "worker-0", KILLED) == Start(1)
    assert isinstance(ended(rounds, "worker-0", KILLED, round_=1), GiveUp)


def test_whoever_has_finished_does_not_train_again():
    rounds = gang()
    assert ended(rounds, "worker-0", DONE) is None
    assert ended(rounds, "worker-1", PEER) == GiveUp("worker-1 failed after worker-0 had finished")


def test_success_of_all_is_the_end():
    rounds = gang()
    assert (ended(rounds, "worker-0", DONE), ended(rounds, "worker-1", DONE)) == (None, None)


def test_who_does_not_come_or_leaves_or_hangs_ends_it():
    late = Rounds(("worker-0", "worker-1"), 6)
    late.joined("worker-0")
    assert ended(late, "worker-0", KILLED) == GiveUp("worker-1 had not come yet")
    assert late.joined("worker-1") == late.given_up
    assert gang().left("worker-1") == GiveUp("worker-1 has left")
    assert gang().joined("worker-1") == GiveUp("worker-1 has come a second time")
    hung = gang()
    ended(hung, "worker-0", KILLED, now=100.0)
    assert hung.waited(100.0 + PATIENCE_SECONDS) is None
    assert hung.waited(100.1 + PATIENCE_SECONDS) == GiveUp("worker-1 did not end within 30 s")


def with_copies(**steps: int | None) -> Command | None:
    """What follows when each member had such an in-memory checkpoint as its processes ended; the first leads."""
    rounds, command = gang(*steps), None
    for name, step in steps.items():
        command = rounds.ended(name, 0, End(KILLED if name == "a" else PEER, True, step), 0.0)
    return command


def test_a_round_goes_on_from_the_newest_copy_that_anybody_has():
    assert with_copies(a=7, b=6) == Start(1, 7)
    assert with_copies(a=7, b=7) == Start(1, 7)
    assert with_copies(a=6, b=7, c=8) == Send(0, "c", 8)
    assert with_copies(a=None, b=7) == Send(0, "b", 7)
    assert with_copies(a=None, b=None) == Start(1, None)


def sending() -> tuple[Rounds, Send]:
    """Of three members, the leader has a copy of step 5, the others have newer ones."""
    rounds = gang("a", "b", "c")
    commands = [rounds.ended(name, 0, End(PEER, True, step), 0.0) for name, step in {"a": 5, "b": 8, "c": 7}.items()]
    assert commands == [Stop(0), None, Send(0, "b", 8)]
    return rounds, Send(0, "b", 8)


def test_the_next_round_waits_for_a_newer_copy():
    rounds, sent = sending()
    assert rounds.sent(sent, 1.0, whole=True) == Start(1, 8)
    assert rounds.sent(sent, 2.0, whole=True) is None, "it is over"


def test_a_copy_that_does_not_come_is_done_without():
    rounds, sent = sending()
    assert rounds.sent(sent, 1.0, whole=False) == Send(0, "c", 7)
    assert rounds.sent(sent, 2.0, whole=True) is None, "too late"
    assert rounds.awaits(Send(0, "c", 7), 25.0)
    assert rounds.waited(25.0 + PATIENCE_SECONDS) is None
    assert rounds.waited(25.1 + PATIENCE_SECONDS) == Start(1, 5)
    assert not rounds.awaits(Send(0, "c", 7), 60.0)


class KilledError(Exception):
    """In the middle of a copy."""


State = bytes
"""Of a training run: of each step, in which round it was done."""


@dataclass
class Gang:
    """Members that do as they are told, on a network that delays, at a random moment each.

    They train in step, copy their state to memory, and the first of them saves it too.
    """

    rounds: Rounds
    chance: random.Random
    memory: dict[str, MemoryFile]
    now: float = 0.0
    running: dict[str, int] = field(default_factory=dict)
    """Of each member whose processes run, the round."""
    inbox: list[tuple[str, Command]] = field(default_factory=list)
    outbox: list[tuple[str, int, End]] = field(default_factory=list)
    sent: list[tuple[Send, bytes]] = field(default_factory=list)
    """Under way to the leader."""
    states: dict[str, State] = field(default_factory=dict)
    """Of each member, in this round or when its processes ended."""
    saved: State = b""
    copied: dict[str, State] = field(default_factory=dict)
    """The last whole copy of each member in this round."""
    known: set[State] = field(default_factory=lambda: {b""})
    left_behind: set[State] = field(default_factory=set)
    asked: float | None = None
    """Since when a copy is awaited."""
    unsent: bool = False
    """Whether one did not come in this round."""
    started: dict[str, int] = field(default_factory=dict)
    """Of each member, the last round that it was told to start."""
    starts: int = 0
    over: bool = False

    @property
    def leader(self) -> str:
        return self.rounds.members[0]

    def tell(self, command: Command | None) -> None:
        if command is None:
            return
        self.over |= isinstance(command, GiveUp)
        assert not (self.over and isinstance(command, Start)), "a round after the leader gave up"
        self.asked = self.now if isinstance(command, Send) else None
        self.inbox += [(member, command) for member in self.rounds.members]

    def end(self, member: str, code: int) -> None:
        newest = self.memory[member].newest()
        step = None if newest is None else newest.step
        self.outbox.append((member, self.running.pop(member), End(code, self.chance.random() < 0.9, step)))

    def obey(self, member: str, command: Command) -> None:
        if command == Stop(self.running.get(member, -1)):
            self.end(member, PEER)
        elif isinstance(command, Send) and command.member == member:
            told = io.BytesIO()
            told.sendall = told.write  # type: ignore[attr-defined]
            transfer.send({}, command.step, self.memory[member], told)  # type: ignore[arg-type]
            self.sent.append((command, told.getvalue()))
        elif isinstance(command, Start) and not self.over:
            assert all(round_ == command.round for round_ in self.running.values()), "two rounds at once"
            assert member not in self.running
            self.memory[member].keep(command.step)
            self.running[member] = self.started[member] = command.round
            self.starts += 1
            if member == self.leader:
                self.restore()

    def restore(self) -> None:
        """What the leader's training process does, and all others with it."""
        copy = self.memory[self.leader].newest()
        state = b"" if copy is None else self.memory[self.leader].read(copy, 0, copy.size)
        state = max(state, self.saved, key=len)
        assert state in self.known, "a state that nobody had"
        assert state not in self.left_behind, "a state that was left behind"
        held = [len(copied) for copied in self.copied.values()]
        assert self.unsent or len(state) >= max(held, default=0), "a step that somebody holds is done again"
        self.left_behind |= {one for one in self.known if not state.startswith(one)}
        self.states = dict.fromkeys(self.rounds.members, state)
        self.copied.clear()
        self.unsent = False

    def train(self) -> None:
        """A step of a member that is not ahead of another; a copy of it, or a part of one; a checkpoint."""
        round_ = self.rounds.round
        if not self.running or any(self.started.get(name, 0) != round_ for name in self.rounds.members):
            return
        member = self.chance.choice(sorted(self.running))
        state = self.states[member]
        if any(len(other) < len(state) for other in self.states.values()) or len(state) > 200:
            return
        self.states[member] = state = self.states.get(self.ahead(len(state)), state + bytes([round_]))
        self.known.add(state)
        match self.chance.randrange(8):
            case 0:
                with contextlib.suppress(KilledError):
                    self.memory[member].write(len(state), self.torn(state))
                self.end(member, KILLED)
            case 1 | 2 | 3 | 4 | 5:
                self.memory[member].write(len(state), [state])
                self.copied[member] = state
            case 6 if member == self.leader:
                self.saved = state

    def ahead(self, steps: int) -> str:
        return next((name for name, state in self.states.items() if len(state) == steps + 1), "")

    def torn(self, state: State) -> Iterator[bytes]:
        yield state[: len(state) // 2] + b"\xff"
        raise KilledError

    def arrive(self) -> None:
        """Something that was sent comes: whole, changed, or only when nobody waits for it any more."""
        sending, content = self.sent.pop(0)
        match self.chance.randrange(4):
            case 0:
                self.now += 2 * PATIENCE_SECONDS
                self.tell_time()
            case 1:
                at = self.chance.randrange(content.index(b"\n") + 1, len(content))
                content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        lines = io.BytesIO(content)
        size = json.loads(lines.readline())["bytes"]
        copy = transfer.receive(sending.step, size, lines, lambda: self.rounds.awaits(sending, self.now))
        whole = copy is not None and self.rounds.awaits(sending, self.now)
        if copy is not None:
            if whole:
                self.memory[self.leader].replace(copy)
            else:
                copy.close()
        self.unsent |= not whole
        self.tell(self.rounds.sent(sending, self.now, whole=whole))

    def tell_time(self) -> None:
        waiting = self.rounds._sending
        self.tell(self.rounds.waited(self.now))
        self.unsent |= waiting is not None and self.rounds._sending != waiting
        late = self.asked is not None and self.now > self.asked + PATIENCE_SECONDS
        assert self.over or not late, "a copy that never comes is waited for"

    def step(self) -> None:
        self.now += self.chance.random()
        match self.chance.randrange(8):
            case 0 if self.running:
                member = self.chance.choice(sorted(self.running))
                self.end(member, self.chance.choice([KILLED, PEER, KILLED, PEER, KILLED, PEER, KILLED, RAISED]))
            case 1 if self.inbox:
                # To one member commands arrive in their order.
                member = self.chance.choice(sorted({name for name, _ in self.inbox}))
                first = next(i for i, (name, _) in enumerate(self.inbox) if name == member)
                self.obey(*self.inbox.pop(first))
            case 2 if self.outbox:
                member, round_, end = self.outbox.pop(0)
                self.tell(self.rounds.ended(member, round_, end, self.now))
            case 3 if self.sent:
                self.arrive()
            case 4:
                self.tell_time()
            case _:
                self.train()


def play(seed: int) -> Gang:
    """A story; raises AssertionError when it breaks a promise."""
    chance = random.Random(seed)
    budget = chance.randrange(8)
    names = tuple(f"worker-{i}" for i in range(1 + chance.randrange(4)))
    memory = {name: MemoryFile.create() for name in names}
    try:
        rounds = gang(*names, budget=budget)
        states = dict.fromkeys(names, b"")
        story = Gang(rounds, chance, memory, running=dict.fromkeys(names, 0), states=states)
        for _ in range(400):
            story.step()
        assert story.rounds.round <= budget
        assert story.starts <= budget * len(names)
    finally:
        for file in memory.values():
            file.close()
    return story


def play_all() -> None:
    for seed in range(300):
        play(seed)


@pytest.mark.parametrize("seed", range(300))
def test_no_two_rounds_run_at_once_none_beyond_the_budget_and_no_step_that_is_held_is_done_again(seed):
    play(seed)


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


@pytest.mark.parametrize(
    ("where", "name", "bug", "broken"),
    [
        (Rounds, "_next", _nobody_sends, "a step that somebody holds is done again"),
        (Rounds, "_next", _the_oldest, "a step that somebody holds is done again"),
        (Rounds, "waited", _endless_patience, "a copy that never comes is waited for"),
        (Rounds, "awaits", _from_any_time, "a state that was left behind"),
        (MemoryFile, "keep", lambda *_: None, "a state that was left behind"),
        (MemoryFile, "write", _one_slot, "a step that somebody holds is done again"),
        (MemoryFile, "write", _marked_first, "a state that nobody had"),
        (transfer._Incoming, "chunks", _unchecked, "a state that nobody had"),
    ],
)
def test_the_stories_find_a_planted_bug(monkeypatch, where, name, bug, broken):
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError, match=broken):
        play_all()
