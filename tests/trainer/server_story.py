"""Random stories of pods under ParameterServer, whose processes fail and start again in place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Start, Stop
from tfgpujob_trainer.supervise.server_rounds import ServerRounds

KILLED, PEER, HUNG, RAISED, STOPPED, DONE = 137, 160, 161, 1, 143, 0
SERVERS, WORKERS, CHIEF = ("ps-0", "ps-1"), ("worker-0", "worker-1"), "chief-0"


def new(budget: int = 6) -> ServerRounds:
    rounds = ServerRounds(CHIEF, frozenset(SERVERS), budget)
    for name in SERVERS:
        assert rounds.joined(name, budget) == {}
    return rounds


def with_workers(budget: int = 6) -> ServerRounds:
    rounds = new(budget)
    for name in WORKERS:
        assert rounds.joined(name, budget, 0) == {}
    return rounds


@dataclass
class Process:
    round: int = 0
    runs: bool = True
    progressed: bool = False
    after: int = 0
    """How many servers had been lost when it began."""


@dataclass
class Story:
    """Processes that fail, pods that come and go, and messages that take their time; asserts what is promised."""

    rounds: ServerRounds
    chance: random.Random
    budget: int
    pods: dict[str, Process] = field(default_factory=lambda: {n: Process() for n in (CHIEF, *SERVERS, *WORKERS)})
    outbox: list[tuple[str, Process, End | None]] = field(default_factory=list)
    inbox: list[tuple[str, Process, Command]] = field(default_factory=list)
    ends: int = 0
    lost: int = 0
    """Processes of servers that have ended."""
    step: int = 0
    copied: int | None = None
    lost_variables: bool = False
    """A server has started again since the chief's process began."""
    now: float = 0.0
    patient: bool = True
    """The chief waits for the workers that end, however long that takes."""
    over: str = ""

    def end(self, name: str, code: int) -> None:
        pod = self.pods[name]
        pod.runs = False
        self.ends += 1
        self.lost += name in SERVERS
        self.outbox.append((name, pod, End(code, pod.progressed, self.copied if name == CHIEF else None)))

    def play(self) -> None:
        for _ in range(200):
            if self.over:
                return
            self.now += self.chance.random()
            self.turn()
        self.settle()

    def turn(self) -> None:
        name = self.chance.choice(list(self.pods))
        pod = self.pods[name]
        match self.chance.randrange(8):
            case 0 if pod.runs and self.chance.randrange(6) == 0:
                self.end(name, self.chance.choice([KILLED] * 19 + [RAISED]))
            case 1 | 2 if self.outbox:
                self.hear()
            case 3 | 4 if self.inbox:
                self.obey()
            case 5 if name != CHIEF and self.chance.randrange(40) == 0:
                self.replace(name)
            case _:
                self.train()
        self.wait()

    def wait(self) -> None:
        told = self.rounds.waited(self.now)
        self.patient &= not told
        self.tell(told)

    def train(self) -> None:
        chief, servers = self.pods[CHIEF], [self.pods[name] for name in SERVERS]
        if not chief.runs:
            return
        if not all(server.runs for server in servers):
            if self.chance.randrange(3) == 0:
                self.end(CHIEF, PEER)
            return
        # It would call that an exception of the user's.
        assert not self.lost_variables, "a chief that still runs finds a server without its variables"
        self.step += 1
        chief.progressed = True
        for worker in WORKERS:
            self.pods[worker].progressed |= self.pods[worker].runs
        if self.chance.randrange(2):
            self.copied = self.step

    def hear(self) -> None:
        name, pod, end = self.outbox.pop(0)
        if self.pods.get(name) is not pod:
            return
        if end is None:
            self.tell(self.rounds.joined(name, None, pod.round if name in WORKERS else None))
        else:
            self.tell(self.rounds.ended(name, pod.round, end, self.now))

    def tell(self, told: Mapping[str, Command]) -> None:
        self.inbox += [(name, self.pods[name], command) for name, command in told.items()]

    def obey(self) -> None:
        # To each pod in their order, and to one earlier than to another.
        name = self.chance.choice([name for name, _, _ in self.inbox])
        name, pod, command = self.inbox.pop(next(i for i, (to, _, _) in enumerate(self.inbox) if to == name))
        if self.pods.get(name) is not pod:
            return
        match command:
            case GiveUp() if name == CHIEF:
                self.over = command.reason
            case GiveUp():
                assert not pod.runs, "who runs is given up"
                self.replace(name)
            case Stop(round_) if pod.runs and round_ == pod.round:
                self.end(name, PEER)
            case Start(round_, step):
                assert not pod.runs, "two processes of one pod at once"
                assert round_ == pod.round + 1, "a round is left out"
                assert name != CHIEF or step == self.copied, "a step that somebody holds is done again"
                pod.round, pod.runs, pod.progressed, pod.after = round_, True, False, self.lost
                if name == CHIEF:
                    self.lost_variables = False
                    assert self.alone(), "the chief calls a worker that is about to end"
                elif name in SERVERS:
                    self.lost_variables = self.pods[CHIEF].runs and self.pods[CHIEF].progressed

    def alone(self) -> bool:
        """No worker is about to end, unless the chief's process is too or did not wait for one out of reach."""
        ending = {to for to, pod, told in self.inbox if self.pods[to] is pod and pod.runs and told == Stop(pod.round)}
        return not ending or CHIEF in ending or not self.patient

    def replace(self, name: str) -> None:
        """By the operator, and with a server the chief's pod: that is the end of this story."""
        if name in SERVERS:
            self.over = "a server's pod is gone"
            return
        self.tell(self.rounds.gone(name))
        self.pods[name] = Process(after=self.lost)
        self.outbox.append((name, self.pods[name], None))

    def settle(self) -> None:
        """Once nothing fails any more, all run again."""
        for _ in range(200):
            self.now += 1.0
            if self.over or (all(pod.runs for pod in self.pods.values()) and not self.inbox):
                break
            while self.outbox:
                self.hear()
            while self.inbox and not self.over:
                self.obey()
            self.wait()
        else:
            raise AssertionError("somebody waits for ever")
        assert self.rounds.restarts <= self.budget, "more restarts than the budget has"
        if not self.over:
            assert all(self.pods[name].after == self.lost for name in WORKERS), "a worker goes on with a lost server"


def play(seed: int) -> Story:
    chance = random.Random(seed)
    budget = chance.randrange(12)
    story = Story(with_workers(budget), chance, budget)
    story.play()
    return story


def play_all() -> list[Story]:
    return [play(seed) for seed in range(300)]
