"""The leader's rules, played under random stories with a clock of their own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, Command, End, GiveUp, Rounds, Start, Stop

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


@dataclass
class Gang:
    """Members that do as they are told, on a network that delays, at a random moment each."""

    rounds: Rounds
    chance: random.Random
    now: float = 0.0
    running: dict[str, int] = field(default_factory=dict)
    """Of each member whose processes run, the round."""
    inbox: list[tuple[str, Command]] = field(default_factory=list)
    outbox: list[tuple[str, int, End]] = field(default_factory=list)
    starts: int = 0
    failures: list[bool] = field(default_factory=list)
    over: bool = False

    def tell(self, command: Command | None) -> None:
        if command is not None:
            self.over |= isinstance(command, GiveUp)
            assert not (self.over and isinstance(command, Start)), "a round after the leader gave up"
            self.inbox += [(member, command) for member in self.rounds.members]

    def end(self, member: str, code: int) -> None:
        self.outbox.append((member, self.running.pop(member), End(code, self.chance.random() < 0.7)))

    def obey(self, member: str, command: Command) -> None:
        if command == Stop(self.running.get(member, -1)):
            self.end(member, PEER)
        elif isinstance(command, Start) and not self.over:
            assert all(round_ == command.round for round_ in self.running.values()), "two rounds at once"
            assert member not in self.running
            self.running[member] = command.round
            self.starts += 1

    def step(self) -> None:
        self.now += self.chance.random()
        match self.chance.randrange(4):
            case 0 if self.running:
                member = self.chance.choice(sorted(self.running))
                self.end(member, self.chance.choice([KILLED, PEER, KILLED, PEER, KILLED, RAISED]))
            case 1 if self.inbox:
                # To one member commands arrive in their order.
                member = self.chance.choice(sorted({name for name, _ in self.inbox}))
                first = next(i for i, (name, _) in enumerate(self.inbox) if name == member)
                self.obey(*self.inbox.pop(first))
            case 2 if self.outbox:
                member, round_, end = self.outbox.pop(0)
                self.tell(self.rounds.ended(member, round_, end, self.now))
            case _:
                self.tell(self.rounds.waited(self.now))


@pytest.mark.parametrize("seed", range(300))
def test_no_two_rounds_run_at_once_and_none_beyond_the_budget(seed):
    chance = random.Random(seed)
    budget = chance.randrange(5)
    names = tuple(f"worker-{i}" for i in range(1 + chance.randrange(4)))
    play = Gang(gang(*names, budget=budget), chance, running=dict.fromkeys(names, 0))
    for _ in range(400):
        play.step()
    assert play.rounds.round <= budget
    assert play.starts <= budget * len(names)
