"""A gang whose pods do as they are told, with a clock of its own: crashes, hangs, resizes, pods that come and go."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.commands import (
    Brought,
    Command,
    Drain,
    End,
    GiveUp,
    Leave,
    MemberState,
    Naming,
    Send,
    Start,
    Stop,
)
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.rounds import PATIENCE_SECONDS, SILENT_SECONDS, Rounds

NOTICES_SECONDS = 10.0
"""After the leader, a member that is cut off notices it too."""
KILLED, PEER, RAISED, STOPPED = 137, 160, 1, 143
NAMING = Naming()


class KilledError(Exception):
    """In the middle of a copy."""


State = bytes
"""State of a training run: for each step, which round it was done in, of all that have begun."""


@dataclass(eq=False)
class Pod:
    """A member's, or one that is to become a member's."""

    name: str
    told: MemberState
    round: int
    """Round of its processes, whether they run or have ended."""
    runs: bool
    memory: MemoryFile = field(default_factory=MemoryFile.create)
    state: State = b""
    drains: bool = False
    """Its processes were told to stop after a step."""
    hangs: bool = False
    told_to_stop: bool = False
    """It is deleted: once its processes have stopped, it is gone."""
    unheard: float | None = None
    """Its connection is lost; when the leader detected that. It runs until it detects it too, or is deleted."""
    since: int | None = None
    """The step that its round has started from, if that was in memory."""
    alone: bool = False
    """Its leader is gone: it ends its processes, and looks for the next one."""
    starts: bool = False
    """Its processes of round 0 are still to begin."""
    restart: int = 0
    """How often a pod of its name was replaced before."""
    obeyed: int = 0
    """How often the leader's pod was replaced whose round it was in last."""
    strange: bool = False
    """No leader has heard of it yet, and its processes have met no others."""


@dataclass
class Gang:
    """Pods that do as they are told, on a network that delays, at a random moment each; and an operator that resizes.

    They train in step, copy their state to memory, and the first of them saves it too.
    """

    rounds: Rounds
    chance: random.Random
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
    saved: State = b""
    copied: dict[str, State] = field(default_factory=dict)
    """The last whole copy of each member in this round."""
    known: set[State] = field(default_factory=lambda: {b""})
    left_behind: dict[State, list[Pod]] = field(default_factory=dict)
    """With the members of the round that has left it behind: without these, a leader can't know."""
    just_left: set[State] = field(default_factory=set)
    """Those among them that a round has left behind that has done no step."""
    left_in: int = 0
    """That round."""
    asked_at: float | None = None
    """Since when a copy is awaited."""
    unsent: bool = False
    """Whether one did not come in this round."""
    last: Start = field(default_factory=lambda: Start(0))
    stop_at: int | None = None
    """The step after which all stop, as they agree in its all-reduce."""
    disturbed: bool = False
    """Whether any process of this round has ended other than by a drain, as the leader knows it."""
    bereft: bool = False
    """Whether the leader knows of a member of this round that its pod is gone, and may be replaced."""
    replaced: int = 0
    """Rounds that began with another pod in the place of a lost one."""
    reduced: int = 0
    """Rounds that began without a pod that had left."""
    taken: int = 0
    """Rounds in which a spare took the place of another."""
    departed: set[str] = field(default_factory=set)
    """Members whose pods have told the leader that they stop, and in whose place none has come yet."""
    missed: dict[str, float] = field(default_factory=dict)
    """Since when the leader does not hear members of this round, in whose place none has come."""
    full: bool = False
    """No new pod finds a node while failures are possible, and pods that are cut off are not deleted."""
    over: bool = False
    bereaved_at: float = 0.0
    """When the leader's pod was lost."""
    begun: int = 0
    """Rounds so far, of all leaders."""
    led: int = 0
    """Leaders that have replaced another."""
    trouble: float = 1.0
    """How often something fails."""
    resized: float = 0.2
    """How often another number of workers is requested."""
    drained: float = 0.1
    """How often a member's node is drained."""
    shared: bool = True
    """Whether what the leader saves outlives its pod."""
    away: float | None = None
    """How often a leader is lost that leads some without others, which come back later. Meanwhile copies are rare."""
    mortal: bool = False
    """Whether the leader's pod may be lost."""
    calm: bool = False
    """No more failures and requests."""
    made: Counter[str] = field(default_factory=Counter)
    """Pods in the place of others, by name."""
    known_to: dict[str, int] = field(default_factory=dict)
    """What the leader knows of these."""
    asked: int = 0
    """The number of workers that was requested last; 0: none."""

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
            come_back = {NAMING.worker(index) for index in self.last.without} & self.available
            assert come_back or awaited <= self.available, "stopped for a worker that has not come"
        if isinstance(command, Start):
            self.check_start(command)
        self.leader.told.take(command)
        self.inbox += [(pod, command) for pod in self.connected.values() if pod.name != self.rounds.leader]

    def check_start(self, start: Start) -> None:
        assert not self.running, "two rounds at once"
        if start.workers is not None:
            before, members = _members(self.last), _members(start)
            assert members <= self.available - self.departed, "a round of a worker that has not come"
            assert not start.without or len(members) >= (self.rounds.least or 99), "too few workers train on"
            assert not self.rounds.spares or len(members) == self.rounds.least, "a round of spares too"
            self.available &= members | (set(self.connected) - before)
            self.copied = {name: copy for name, copy in self.copied.items() if name in members}
            self.reduced += bool(start.without)
            self.departed |= {NAMING.worker(index) for index in start.without} - self.available
            costs = start.restarts > self.last.restarts
            failed = self.disturbed and not self.bereft
            assert costs == failed, "a resize costs a restart, or a restart costs nothing"
            self.replaced += self.bereft
            self.taken += self.rounds.spares > 0 and members != before
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
                assert workers is None or pod.name in _members(start), "a worker too many"
                pod.memory.keep(step)
                pod.round, pod.runs, pod.since = round_, True, step
                if pod.name == self.rounds.leader:
                    self.restore()

    def lose(self, pod: Pod) -> None:
        """The pod is gone, and its connection with it."""
        pod.runs = False
        self.copied.pop(pod.name, None)
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
        others = [pod for pod in self.pods.values() if pod.unheard is None and not pod.alone and not pod.strange]
        unsent = [pod for pod in others if self.chance.randrange(2)]
        self.inbox = [told for told in self.inbox if told[0] in others and told[0] not in unsent]
        told = [command for _, command in self.inbox] + [pod.told.in_round(pod.round) for pod in others]
        rounds = {pod.round for pod in others} | {command.round for command in told if isinstance(command, Start)}
        if self.left_in not in rounds:
            # No pod that knew of that round is left.
            self.left_behind = {one: pods for one, pods in self.left_behind.items() if one not in self.just_left}
        self.inbox += [(pod, None) for pod in others]
        self.connected, self.available, self.outbox, self.sent = {}, set(), [], []
        for pod in self.pods.values():
            pod.unheard = None if pod.unheard is None else min(pod.unheard, self.now - 0.1)
        if not self.shared:
            self.saved = b""

    def heal(self, pod: Pod) -> None:
        """Once it has noticed that it is cut off, and has ended its processes, it may be heard again."""
        since = self.now if pod.unheard is None or pod.runs else pod.unheard
        noticed = self.now - since > NOTICES_SECONDS and (self.away is None or self.bereaved_at > since)
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

    def create(self, name: str, told: MemberState) -> Pod:
        """A pod in the place of another, or beside the others; if there was one of its name, that is known no more."""
        self.made[name] += 1
        self.pods[name] = pod = Pod(name, told, -1, runs=False, restart=self.made[name])
        return pod

    def succeed(self, name: str) -> None:
        """A pod is created in the place of the leader's."""
        self.led += 1
        pod = self.create(name, MemberState(name, NAMING))
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
        self.copied.pop(pod.name, None)
        self.outbox.append((pod, "left", 0, None))

    def restore(self) -> None:
        """What the leader's training process does, and all others with it."""
        copy = self.leader.memory.newest()
        state = b"" if copy is None else self.leader.memory.read(copy, 0, copy.size)
        state = max(state, self.saved, key=len)
        assert state in self.known, "a state that nobody had"
        assert not {*self.left_behind.get(state, ())} & {*self.connected.values()}, "a state that was left behind"
        held = [len(copied) for name, copied in self.copied.items() if name in self.rounds.members]
        assert self.unsent or len(state) >= max(held, default=0), "a step that somebody holds is done again"
        self.just_left = {one for one in self.known if not state.startswith(one)} - self.left_behind.keys()
        self.left_behind |= dict.fromkeys(self.just_left, self.members)
        self.left_in = self.rounds.round
        for pod in self.members:
            pod.state = state
        self.copied.clear()
        self.stop_at, self.unsent = None, False

    def train(self) -> None:
        """A step of a member that is not ahead of another; a copy of it, or a part of one; a checkpoint."""
        round_, members = self.rounds.round, self.members
        candidates = [pod for pod in members if pod.runs and not pod.hangs]
        if not candidates or len(members) < len(self.rounds.members) or any(pod.round != round_ for pod in members):
            return
        if any(pod.strange for pod in members):
            return
        pod = self.chance.choice(candidates)
        if self.stop_at is not None and len(pod.state) == self.stop_at:
            self.stop(pod)
            return
        if any(len(other.state) < len(pod.state) for other in members):
            return
        following = next((other.state for other in members if len(other.state) > len(pod.state)), None)
        if following is None and self.stop_at is None and any(other.drains for other in members):
            self.stop_at = len(pod.state) + 1
        pod.state = state = following or pod.state + bytes([self.begun % 256])
        self.known.add(state)
        self.just_left = set()
        match self.chance.randrange(8):
            case 0 if self.fails():
                with contextlib.suppress(KilledError):
                    pod.memory.write(len(state), self.torn(state))
                self.end(pod, KILLED)
            case 1 | 2 | 3 | 4 | 5 if self.away is None or not self.rounds.without or self.chance.randrange(8) == 0:
                pod.memory.write(len(state), [state])
                self.copied[pod.name] = state
            case 6 if pod.name == self.rounds.leader:
                self.saved = state

    def stop(self, pod: Pod) -> None:
        """Stop by a drain: the leader saves once all have done the last step, and a pod that knows of it ends, or is
        killed.
        """
        # A pod that is being stopped may run out of time.
        if pod.told_to_stop and self.chance.randrange(8) == 0:
            self.lose(pod)
        elif self.saved != pod.state:
            if pod.name == self.rounds.leader and all(len(other.state) == self.stop_at for other in self.members):
                self.saved = pod.state
        else:
            fails = 1 if self.calm else self.chance.randrange(16)
            if fails == 0:
                pod.hangs = True
            else:
                pod.memory.write(len(pod.state), [pod.state])
                self.copied[pod.name] = pod.state
                self.end(pod, *((KILLED,) if fails == 2 else (STOPPED,)), saved=fails != 2 and not pod.told_to_stop)

    def fails(self) -> bool:
        return not self.calm and self.chance.random() < self.trouble

    def torn(self, state: State) -> Iterator[bytes]:
        yield state[: len(state) // 2] + b"\xff"
        raise KilledError

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
        self.unsent |= not whole
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
        self.unsent |= waiting is not None and self.rounds._sending != waiting
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
            self.available.add(pod.name)
            self.departed.discard(pod.name)
            self.missed.pop(pod.name, None)
            self.check_fence(pod)
            last = self.rounds_told
            self.bereft |= pod.name in self.rounds.members
            self.connected.pop(pod.name, None)
            brought = end if isinstance(end, Brought) else Brought()
            self.tell(self.rounds.joined(pod.name, self.now, joins=True, brought=brought))
            if (now := self.rounds_told) is not None and (now is not last or not isinstance(last, Start)):
                self.inbox.append((pod, now))
            self.connected[pod.name] = pod
        elif what == "left":
            pod.unheard = None if pod.unheard is None else self.now
            if self.connected.get(pod.name) is pod:
                del self.connected[pod.name]
                self.available.discard(pod.name)
                why = "" if pod.name in self.rounds.members and (self.disturbed or not self.rounds.naming) else "left"
                self.bereft |= pod.name in self.rounds.members
                if pod.name in {NAMING.worker(index) for index in self.last.without}:
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
        self.available.add(pod.name)
        self.tell(self.rounds.joined(pod.name, self.now))
        if self.rounds_told is not None:
            self.inbox.append((pod, self.rounds_told))
        self.connected[pod.name] = pod

    @property
    def rounds_told(self) -> Command | None:
        return self.leader.told.last

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

    def operate(self) -> None:
        """What the operator does: asks, creates what is missing, deletes what the leader no longer has."""
        rounds = self.rounds
        wanted = set(NAMING.of(rounds.wanted))
        if not self.calm and not rounds.spares and self.chance.random() < self.resized:
            self.asked = 1 + self.chance.randrange(4)
        if self.asked and self.asked != rounds.wanted and self.leader.runs:
            self.tell(rounds.resize(self.asked))
            return
        stopped = [pod for pod in self.pods.values() if pod.told_to_stop and (pod.hangs or not pod.runs)]
        # What is on a lost node stays for long.
        patient = not self.calm and (self.full or self.away is not None or self.chance.randrange(8) > 0)
        unheard = [p for p in self.pods.values() if p.unheard is not None and not patient]
        for pod in [*stopped, *unheard]:
            self.lose(pod)
            return
        lost = {name for name in rounds.members if name not in self.pods}
        for name in sorted((wanted - set(self.pods) - set(rounds.members)) | lost):
            if self.full and not self.calm:
                break
            gone = next((told[0] for told in reversed(self.outbox) if told[0].name == name), None)
            pod = self.create(name, MemberState(name, NAMING, joins=True))
            # That the one before is gone may be heard later.
            late = [told for told in self.outbox if told[:2] == (gone, "left") and self.chance.randrange(2)]
            self.outbox = [told for told in self.outbox if told not in late] + [(pod, "joined", 0, None), *late]
            return
        # Those as well that an earlier number has left out, whatever is wanted now.
        left = {
            name for name, pod in self.connected.items() if name not in self.available and pod in self.pods.values()
        }
        for name in sorted((set(self.pods) - wanted | left) - set(rounds.members)):
            self.lose(self.pods[name])
            return
        self.strike()

    def strike(self) -> None:
        """What happens to pods."""
        waiting = [pod for pod in self.pods.values() if not pod.told.takes_part]
        begins = any(isinstance(command, Start) for _, command in self.inbox)
        forsaken = self.away if self.away is not None and self.rounds.without else 0.0
        if self.mortal and not self.calm and self.chance.random() < (0.5 if begins else forsaken):
            self.lose(self.leader)
        elif waiting and not self.calm and self.chance.randrange(3) == 0:
            self.lose(self.chance.choice(waiting))
        elif not self.calm and len(self.members) > 1:
            pod = self.chance.choice(self.members if self.mortal else self.members[1:])
            if self.chance.random() < self.drained and pod.runs and pod.unheard is None:
                pod.told_to_stop = pod.drains = True
            elif self.chance.randrange(30 if self.away is None else 5) == 0 and self.trouble and pod.unheard is None:
                heard = self.connected.get(pod.name) is pod and pod.name != self.rounds.leader
                self.chance.choice([self.lose, self.cut_off if heard else self.lose])(pod)

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
                self.operate()
            case 8 if not self.over and not self.is_led and (self.calm or not self.full):
                self.succeed(self.rounds.leader)
            case _:
                self.train()

    def settle(self) -> None:
        """Once nothing fails any more, what was asked for last comes about."""
        self.calm = True
        if all(pod.runs for pod in self.members):
            # What hangs while all run is the watchdog's.
            for pod in self.members:
                pod.hangs = False
        for _ in range(5000):
            wanted = (self.asked or self.rounds.wanted) - self.rounds.spares
            at_work = {pod.name for pod in self.running if pod.round == self.rounds.round}
            if self.over or (at_work == {*self.rounds.members} and len(at_work) == wanted):
                return
            self.step()
        raise AssertionError("what was asked for never comes about")


def _members(start: Start) -> set[str]:
    """Members of the round that this starts, if the number of workers may change."""
    return set(NAMING.of(start.workers or 0)) - {NAMING.worker(index) for index in start.without}
