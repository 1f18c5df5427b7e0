"""A gang whose pods do as they are told, with a clock of its own: crashes, hangs, resizes, pods that come and go."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from tests.trainer.round_operator import Operator
from tests.trainer.round_pods import KILLED, NAMING, NOTICES_SECONDS, PEER, RAISED, Chances, Pod, members_of, without
from tests.trainer.round_training import Training

from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.commands import (
    Brought,
    Command,
    Drain,
    End,
    GiveUp,
    Leave,
    MemberState,
    Send,
    Start,
    Stop,
)
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, SILENT_SECONDS, Rounds


@dataclass
class Gang:
    """Pods that do as they are told, on a network that delays, at a random moment each."""

    rounds: Rounds
    chance: random.Random
    chances: Chances
    pods: dict[str, Pod]
    now: float = 0.0
    connected: dict[str, Pod] = field(default_factory=dict)
    """As the leader knows it, its own pod as well."""
    available: set[str] = field(default_factory=set)
    """Connected, and not told to leave."""
    inbox: list[tuple[Pod, Command | None]] = field(default_factory=list)
    """None: the connection is closed."""
    outbox: list[tuple[Pod, str, int, End | Brought | None]] = field(default_factory=list)
    sent: list[tuple[Send, bytes]] = field(default_factory=list)
    """Under way to the leader."""
    asked_at: float | None = None
    """Since when a copy is awaited."""
    last: Start = field(kw_only=True)
    disturbed: bool = False
    """Whether any process of this round has ended other than by a drain, as the leader knows it."""
    bereft: bool = False
    """Whether the leader knows of a member of this round that its pod is gone, and may be replaced."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rounds in which lost pods were `replaced`, that began without some (`reduced`), or with a spare (`taken`), and
    leaders that have replaced another (`led`)."""
    departed: set[str] = field(default_factory=set)
    """Members whose pods have told the leader that they stop, and in whose place none has come yet."""
    missed: dict[str, float] = field(default_factory=dict)
    """Since when the leader does not hear members of this round, in whose place none has come."""
    over: bool = False
    bereaved_at: float = 0.0
    """When the leader's pod was lost."""
    begun: int = 0
    """Rounds so far, of all leaders."""
    calm: bool = False
    """No more failures and requests."""
    known_to: dict[str, int] = field(default_factory=dict)
    """How often the leader knows the pods of each name to be replaced."""

    def __post_init__(self) -> None:
        self.training, self.operator = Training(self), Operator(self)
        self.every = list(self.pods.values())
        """All pods, those that are gone too."""

    @property
    def leader(self) -> Pod:
        return self.pods[self.rounds.leader]

    @property
    def is_led(self) -> bool:
        return self.rounds.leader in self.pods

    @property
    def members(self) -> list[Pod]:
        return [self.pods[name] for name in self.rounds.members if name in self.pods]

    @property
    def running(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.runs and not pod.strange]

    def tell(self, command: Command | None, *, why: str = "") -> None:
        if command is None:
            return
        if isinstance(command, GiveUp) and not self.over:
            assert why != "left", "a pod that can be replaced ends the gang"
            assert why != "saved" or self.disturbed, "a drain ends the gang"
        self.over |= isinstance(command, GiveUp)
        assert not (self.over and isinstance(command, Start)), "a round after the leader gave up"
        self.asked_at = self.now if isinstance(command, Send) else None
        if isinstance(command, Drain):
            assert not self.rounds.spares, "stopped for a spare"
            awaited = set(NAMING.of(self.rounds.wanted)) - self.departed
            come_back = without(self.last) & self.available
            assert come_back or awaited <= self.available, "stopped for a worker that has not come"
        if isinstance(command, Start):
            self.check_start(command)
        self.leader.told.take(command)
        self.inbox += [(pod, command) for pod in self.connected.values() if pod.name != self.rounds.leader]

    def check_start(self, start: Start) -> None:
        assert not self.running, "two rounds at once"
        if start.workers is not None:
            before, members = members_of(self.last), members_of(start)
            assert members <= self.available - self.departed, "a round of a worker that has not come"
            assert not start.without or len(members) >= (self.rounds.least or 99), "too few workers train on"
            assert not self.rounds.spares or len(members) == self.rounds.least, "a round of spares too"
            self.available &= members | (set(self.connected) - before)
            for name in self.training.copied.keys() - members:
                del self.training.copied[name]
            self.counts["reduced"] += bool(start.without)
            self.departed |= without(start) - self.available
            costs = start.restarts > self.last.restarts
            failed = self.disturbed and not self.bereft
            assert costs == failed, "a resize costs a restart, or a restart costs nothing"
            self.counts["replaced"] += self.bereft
            self.counts["taken"] += self.rounds.spares > 0 and members != before
        self.last, self.disturbed, self.bereft = start, False, False
        self.begun += 1
        self.missed.clear()

    def end(self, pod: Pod, code: int, *, saved: bool = False) -> None:
        newest = pod.memory.newest()
        step = None if newest is None else newest.step
        pod.runs = pod.drains = pod.hangs = False
        if pod.unheard is None and self.connected.get(pod.name) is pod:
            self.outbox.append((pod, "ended", pod.round, End(code, self.chance.random() < 0.9, step, saved)))
        if pod.told_to_stop and self.chance.randrange(2):
            self.lose(pod)

    def obey(self, pod: Pod) -> None:
        """What its launcher does when it looks what was told."""
        if pod.unheard is not None:
            self.heal(pod)
            return
        if pod.alone or pod.strange:
            (self.come_back if pod.alone else self.come)(pod)
            return
        match pod.told.in_round(pod.round):
            case Stop(round_) if round_ == pod.round and pod.runs:
                self.end(pod, PEER)
            case Drain(round_) if round_ == pod.round and pod.runs:
                pod.drains = True
            case Leave() if not pod.runs:
                self.lose(pod)
            case Start(round_, step, workers) as start if round_ > pod.round and not pod.runs and not self.over:
                assert all(other.round == round_ for other in self.running), "two rounds at once"
                assert workers is None or pod.name in members_of(start), "a worker too many"
                pod.memory.keep(step)
                pod.round, pod.runs, pod.since = round_, True, step
                if pod.name == self.rounds.leader:
                    self.training.restore()

    def lose(self, pod: Pod) -> None:
        """The pod is gone, and its connection with it."""
        pod.runs = False
        self.training.copied.pop(pod.name, None)
        del self.pods[pod.name]
        if pod.name == self.rounds.leader:
            self.bereave()
        elif pod.unheard is None and self.is_led and not pod.strange:
            self.outbox.append((pod, "left", 0, None))

    def bereave(self) -> None:
        """The leader is gone. What it has sent may still reach some of the others, and then they know."""
        self.bereaved_at, self.asked_at = self.now, None
        # No member knows it now.
        self.bereft, self.departed = True, set()
        others = [pod for pod in self.pods.values() if pod.speaks]
        unsent = [pod for pod in others if self.chance.randrange(2)]
        self.inbox = [told for told in self.inbox if told[0] in others and told[0] not in unsent]
        told = [command for _, command in self.inbox] + [pod.told.in_round(pod.round) for pod in others]
        starts = {command.round for command in told if isinstance(command, Start)}
        self.training.forget({pod.round for pod in others} | starts)
        self.inbox += [(pod, None) for pod in others]
        self.connected, self.available, self.outbox, self.sent = {}, set(), [], []
        for pod in self.pods.values():
            pod.unheard = None if pod.unheard is None else min(pod.unheard, self.now - 0.1)

    def heal(self, pod: Pod) -> None:
        """Once it has noticed that it is cut off, and has ended its processes, it may be heard again."""
        since = self.now if pod.unheard is None or pod.runs else pod.unheard
        noticed = self.now - since > NOTICES_SECONDS and (self.chances.away is None or self.bereaved_at > since)
        if noticed and self.rounds.naming is not None and not pod.told_to_stop and self.chance.randrange(2):
            self.inbox = [told for told in self.inbox if told[0] is not pod]
            pod.hangs = pod.drains = False
            pod.unheard, pod.alone = None, not isinstance(pod.told.last, GiveUp | Leave)

    def come(self, pod: Pod) -> None:
        """What a member does that no leader has heard of: start its processes, and find the leader."""
        if pod.starts:
            pod.starts, pod.runs = False, True
        elif self.is_led and (pod, "comes", 0, None) not in self.outbox:
            self.outbox.append((pod, "comes", 0, None))

    def come_back(self, pod: Pod) -> None:
        """What a member without a leader does, a piece at a time: end its processes, and find the next leader."""
        start = pod.told.in_round(pod.round)
        if isinstance(start, Start) and start.round > pod.round:
            # It had been told before.
            pod.memory.keep(start.step)
            pod.round, pod.since = start.round, start.step
        elif pod.runs:
            self.end(pod, PEER)
        elif self.is_led and pod.name in self.pods:
            earlier = self.is_known(pod, to=self.rounds.term - 1, known_to={})
            assert not (earlier and pod.obeyed == self.rounds.term), "a leader that was replaced is obeyed"
            newest = pod.memory.newest()
            brought = Brought(pod.round, None if newest is None else newest.step, pod.since)
            pod.alone, pod.told = False, MemberState(pod.name, NAMING, joins=True)
            self.outbox.append((pod, "back", 0, brought))

    def is_known(self, pod: Pod, *, to: int, known_to: dict[str, int]) -> bool:
        """What a leader that was replaced so often says to this pod, which has obeyed another meanwhile."""
        rounds = SimpleNamespace(term=to)
        leader: Any = SimpleNamespace(
            _naming=NAMING, _lock=contextlib.nullcontext(), _rounds=rounds, _restarts=known_to
        )
        return Leader.knows(leader, pod.name, {"joins": True, "restart": pod.restart, "leader": pod.obeyed})

    def succeed(self, name: str) -> None:
        """A pod is created in the place of the leader's."""
        self.counts["led"] += 1
        pod = self.operator.create(name)
        self.known_to = {}
        before = self.rounds
        # As the operator knows it: the end of a resize may be unknown to it.
        workers = self.chance.choice([before.workers, max(before.workers, before.wanted)])
        names = NAMING.of(workers)
        self.missed = dict.fromkeys(names[1:], self.now)
        self.rounds = Rounds(names, before.budget, NAMING, workers, before.least, before.spares, before.term + 1)
        self.connected, self.available = {name: pod}, {name}
        self.disturbed, self.bereft, self.last = False, True, Start(-1, None, workers, -1)
        self.tell(self.rounds.take_over(self.now))

    def cut_off(self, pod: Pod) -> None:
        """The pod can't be heard any more. What it has is lost, though it may run for a while."""
        pod.unheard = math.inf
        self.training.copied.pop(pod.name, None)
        self.outbox.append((pod, "left", 0, None))

    def fails(self) -> bool:
        return not self.calm and self.chance.random() < self.chances.trouble

    def arrive(self) -> None:
        """Deliver something that was sent: completely, altered, or too late."""
        sending, content = self.sent.pop(0)
        match self.chance.randrange(4):
            case 0:
                self.now += 2 * PATIENCE_SECONDS
                self.tell_time()
            case 1 if content.index(b"\n") + 1 < len(content):
                at = self.chance.randrange(content.index(b"\n") + 1, len(content))
                content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        lines = io.BytesIO(content)
        size = json.loads(lines.readline())["bytes"]
        copy = transfer.receive(sending.step, size, lines, lambda: self.rounds.awaits(sending, self.now))
        whole = copy is not None and self.rounds.awaits(sending, self.now)
        if copy is not None:
            if whole:
                self.leader.memory.replace(copy)
            else:
                copy.close()
        self.training.unsent |= not whole
        self.tell(self.rounds.sent(sending, self.now, whole=whole))

    def tell_time(self) -> None:
        for pod in self.pods.values():
            if pod.unheard is not None and self.now - pod.unheard > NOTICES_SECONDS:
                pod.runs = False
        if self.inbox and self.now - self.bereaved_at > NOTICES_SECONDS:
            for pod in dict.fromkeys(pod for pod, command in self.inbox if command is None):
                self.notice(pod)
        for pod in self.running if self.now - self.bereaved_at > SILENT_SECONDS else ():
            if pod.alone:
                self.end(pod, PEER)
        if not self.is_led:
            return
        waiting = self.rounds._sending
        self.tell(self.rounds.waited(self.now))
        self.training.unsent |= waiting is not None and self.rounds._sending != waiting
        late = self.asked_at is not None and self.now > self.asked_at + PATIENCE_SECONDS
        waits = self.rounds._sending is not None and not self.over
        assert not (waits and late), "a copy that never comes is waited for"
        self.check_wait()

    def check_wait(self) -> None:
        """Those that are left wait for a silent member no longer than they have to."""
        rounds, left = self.rounds, self.available - self.departed
        if self.over or rounds.least is None or rounds._at_work() or rounds._sending is not None or not self.missed:
            return
        late = self.now - max(self.missed.values()) > SILENT_SECONDS + PATIENCE_SECONDS
        enough = len(left if rounds.spares else left & set(rounds.members)) >= rounds.least
        assert not (late and enough), "nobody trains on"

    def hear(self) -> None:
        """What a pod has said reaches the leader."""
        pod, what, round_, end = self.outbox.pop(0)
        if what == "comes":
            pod.strange = False
            if self.pods.get(pod.name) is pod:
                self.welcome(pod)
        elif what in ("joined", "back"):
            self.departed.discard(pod.name)
            self.missed.pop(pod.name, None)
            self.check_fence(pod)
            self.bereft |= pod.name in self.rounds.members
            self.connect(pod, end if isinstance(end, Brought) else Brought(), joins=True)
        elif what == "left":
            pod.unheard = None if pod.unheard is None else self.now
            if self.connected.get(pod.name) is pod:
                del self.connected[pod.name]
                self.available.discard(pod.name)
                why = "" if pod.name in self.rounds.members and (self.disturbed or not self.rounds.naming) else "left"
                self.bereft |= pod.name in self.rounds.members
                if pod.name in without(self.last):
                    self.departed.add(pod.name)
                if pod.name in self.rounds.members:
                    self.missed[pod.name] = self.now
                self.tell(self.rounds.left(pod.name, self.now, silent=pod.unheard is not None), why=why)
        else:
            assert isinstance(end, End)
            self.disturbed |= not end.saved and not end.leaves
            if end.leaves and round_ == self.rounds.round and pod.name in self.rounds.members:
                self.bereft = True
                self.departed.add(pod.name)
            self.tell(self.rounds.ended(pod.name, round_, end, self.now), why="saved" if end.saved else "")

    def check_fence(self, pod: Pod) -> None:
        """The leader takes in this pod, and from then on none that it has replaced."""
        assert self.is_known(pod, to=self.rounds.term, known_to=self.known_to), "a pod that is there is refused"
        before = replace(pod, restart=pod.restart - 1)
        again = pod.restart and self.is_known(before, to=self.rounds.term, known_to=self.known_to)
        assert not again, "a pod that was replaced takes part"

    def welcome(self, pod: Pod) -> None:
        """A member of the pods' own round comes; with a leader that has replaced another it ends that, and joins."""
        if self.rounds.term:
            self.end(pod, PEER)
            pod.alone = True
            return
        self.connect(pod, Brought(), joins=False)

    def connect(self, pod: Pod, brought: Brought, *, joins: bool) -> None:
        """The leader takes a pod in. It hears the last command, but no start that was before it joined."""
        self.available.add(pod.name)
        self.connected.pop(pod.name, None)
        last = self.leader.told.last
        self.tell(self.rounds.joined(pod.name, self.now, joins=joins, brought=brought))
        told = self.leader.told.last
        if told is not None and not (joins and told is last and isinstance(told, Start)):
            self.inbox.append((pod, told))
        self.connected[pod.name] = pod

    def reach(self) -> None:
        """A command reaches a member; to each they come in their order."""
        pod = self.chance.choice(list(dict.fromkeys(pod for pod, _ in self.inbox)))
        at = next(i for i, (other, _) in enumerate(self.inbox) if other is pod)
        _, command = self.inbox.pop(at)
        if self.pods.get(pod.name) is not pod:
            return
        if command is None:
            self.notice(pod)
            return
        pod.told.take(command)
        if isinstance(command, Start) and pod.told.last is command:
            pod.obeyed = command.leader
        if isinstance(command, Send) and command.member == pod.name and self.connected.get(pod.name) is pod:
            told = io.BytesIO()
            transfer.send({}, command.step, pod.memory, told.write)
            self.sent.append((command, told.getvalue()))

    def notice(self, pod: Pod) -> None:
        """It knows that its leader is gone."""
        self.inbox = [(other, command) for other, command in self.inbox if other is not pod]
        pod.alone, pod.drains = not isinstance(pod.told.last, GiveUp | Leave), False
        if pod.told_to_stop and self.pods.get(pod.name) is pod:
            self.lose(pod)

    def step(self) -> None:
        self.now += self.chance.random() / 2
        match self.chance.randrange(10):
            case 0 if self.running and self.fails():
                pod = self.chance.choice(self.running)
                self.end(pod, self.chance.choice([KILLED, PEER] * 12 + [RAISED]))
            case 1 | 2 if self.pods:
                self.obey(self.chance.choice(list(self.pods.values())))
            case 3 | 4 if self.inbox:
                self.reach()
            case 5 if self.outbox:
                self.hear()
            case 6 if self.sent:
                self.arrive()
            case 7:
                self.tell_time()
            case 8 if self.rounds.naming is not None and not self.over and self.is_led:
                self.operator.look()
            case 8 if not self.over and not self.is_led and (self.calm or not self.chances.full):
                self.succeed(self.rounds.leader)
            case _:
                self.training.step()

    def settle(self) -> None:
        """Once nothing fails any more, what was asked for last comes about."""
        self.calm = True
        if all(pod.runs for pod in self.members):
            # What hangs while all run is the watchdog's.
            for pod in self.members:
                pod.hangs = False
        for _ in range(5000):
            wanted = (self.operator.asked or self.rounds.wanted) - self.rounds.spares
            at_work = {pod.name for pod in self.running if pod.round == self.rounds.round}
            if self.over or (at_work == {*self.rounds.members} and len(at_work) == wanted):
                return
            self.step()
        raise AssertionError("what was asked for never comes about")
