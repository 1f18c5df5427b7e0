"""The leader's rules for restarting the processes of a gang in their pods. Pure, without a clock.

A round is one start of all training processes of an attempt; round 0 is the pods' own. When a process ends in a way
that is worth a retry, all processes are ended. The next round starts only after each member has reported its end, so
two rounds never run at once: no process joins another round's cluster, and no two write the same files. Cases that
these rules don't cover end in GiveUp: each pod exits as its own process did, and the operator decides as it does
without rounds.

A round continues from the newest in-memory checkpoint of all members. The leader's process restores it and sends it to
the others; a member with a newer one than the leader's sends it to the leader first. If it does not arrive, the round
continues without it, and all members delete newer ones: a state that the gang has abandoned never returns.

To change the number of workers, a round is drained: all processes stop after the same step, which is then in storage,
and the next round has the wanted number. The drain begins only when every member of the next round is connected. A
process that crashes in a drain, or does not end in time after another has stopped, turns it into a failure: the rest
are ended, the newest in-memory checkpoint is used, and the next round still has the wanted number. A joining member
that is gone again leaves the number as it is.

The gang waits for the replacement of a lost pod. Kubernetes creates a pod of the same name only when the old one is
gone with all its processes. So the next round starts once the new pod has connected, and costs no restart. It is the
same before all have connected for the first time, and then the round also waits for these: their processes start, and
are ended. The operator decides whether there will be a replacement; if not, it ends the pods. When a pod is asked to
stop, all processes stop after the same step, as in a drain.

The leader's pod is replaced like any other. The API server has one pod of its name, so that decides who leads, and
leaders are ordered by how often it was replaced. The new one knows nothing of the gang: to it all members are lost.
Each survivor has ended its processes when it connects, and brings its round and the step of its in-memory checkpoint.
Only those count that belong to the newest round, or that it has started from: any other may have been abandoned.

A pod that has reported the end of its processes before it left, as on a drain, an eviction or a preemption, has none
any more, nor has one whose connection was closed, since that ends with its supervisor, and the processes with that. The
others then train without it, if they are at least `least`, and admit its replacement like any joining member. A silent
pod has no processes after SILENT_SECONDS either, because it ends them without its leader (supervise/follower.py); a
replacement that connects earlier is used. `workers` counts the missing ones too.

Some of the worker pods may be `spares`: a round consists of the others, preferably those that already take part. When a
member of the round is gone, a connected spare is in the next round, and the lost pod's replacement becomes a spare. So
no round waits for it, and none is interrupted to admit it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.supervise.commands import Brought, Command, Drain, End, GiveUp, Naming, Send, Start, Stop

PATIENCE_SECONDS = 30.0
"""How long the members may take to end their processes before the leader gives up."""
SILENT_SECONDS = 20.0
"""Seconds after which the processes of a pod that the leader has lost have certainly ended.

With the keep-alive of supervise/messages.py a pod detects the loss of its leader at most 10 s after the leader detects
its loss: each receives something at least every 5 s until both receive nothing, and checks every 5 s whether that was
20 s ago.
"""
_LOOP = "a second failure without a step in between"
_NOTHING = Brought()


@dataclass(slots=True)
class Rounds:
    """The leader's state. Each method takes an event and returns what to send to all members, at most one command.

    The leader is the first of `members`. `budget` is how many restarts in place are left in the attempt; times are
    seconds of one monotonic clock. With `naming` there are `workers` worker pods, and their number may change.
    """

    members: Sequence[str]
    budget: int
    naming: Naming | None = None
    workers: int = 0
    least: int | None = None
    """The fewest workers that continue when others have left; None: all are needed."""
    spares: int = 0
    """How many of the `workers` a round leaves out."""
    term: int = 0
    """How often the leader's pod was replaced."""
    outside: bool = False
    """Its processes depend on others than the members, as a chief does on parameter servers: it can't restart before
    those have, which the operator coordinates."""
    wanted: int = field(init=False)
    round: int = 0
    resizes: int = 0
    """Rounds that changed the number of workers, or replaced a lost pod: no failures."""
    given_up: GiveUp | None = None
    _here: set[str] = field(default_factory=set)
    """Connected members, and those that wait to join."""
    _ends: dict[str, End] = field(default_factory=dict)
    _lost: dict[str, float] = field(default_factory=dict)
    """When members of this round were lost; a replacement may have connected since."""
    _leaving: set[str] = field(default_factory=set)
    """Members of this round whose processes have ended because their pods are being stopped."""
    _progressed: set[int] = field(default_factory=set)
    _failed_before: bool = False
    """Whether this round followed a failure."""
    _draining: bool = False
    _stopped_since: float | None = None
    """When the first member stopped after a step, as all are about to."""
    _stopping_since: float | None = None
    _in_memory: dict[str, int] = field(default_factory=dict)
    """Step of the newest in-memory checkpoint by member, once its processes have ended."""
    _sending: Send | None = None
    _heard: float = 0.0
    """When data of a checkpoint last arrived."""
    _brought: dict[str, Brought] = field(default_factory=dict)
    """By member of this round that is back after its connection was lost."""
    _newest: Brought = field(default_factory=lambda: Brought(0))
    """The newest round that is known."""
    _highest: int = -1
    """The highest number of a round that a pod was in, also of one that came too late for its copy to count."""

    def __post_init__(self) -> None:
        self.wanted = self.workers

    @property
    def here(self) -> int:
        """Connected worker pods, of those of this round and of the wanted one."""
        assert self.naming is not None
        return len(self._here & set(self.naming.workers(max(self.workers, self.wanted))))

    @property
    def without(self) -> tuple[int, ...]:
        """Indexes of worker pods that this round leaves out."""
        assert self.naming is not None
        return tuple(i for i, name in enumerate(self.naming.workers(self.workers)) if name not in self.members)

    @property
    def leader(self) -> str:
        """The member in whose pod these rules are applied. It is in each round."""
        return self.members[0]

    def take_over(self, now: float) -> Command | None:
        """This leader's pod replaces the previous one: nothing is known of the round that the members were in."""
        self.round = self.resizes = -1
        self._newest = Brought()
        self._lost = dict.fromkeys(self.members, now)
        return self.joined(self.leader, now, joins=True)

    def is_late(self, member: str) -> bool:
        """True if the pods' own round has gone without this pod: with another leader, or another pod in its place."""
        return self.naming is not None and (self.term + self.round > 0 or member in self._here | self._lost.keys())

    def joined(self, member: str, now: float, *, joins: bool = False, brought: Brought = _NOTHING) -> Command | None:
        """A member has connected; the previous process of a restarted pod can't be part of this attempt's rounds.

        A member that `joins` takes part in a later round: as an additional worker, as the replacement of a lost one of
        its name, or again, after its connection was lost and its processes have ended.
        """
        if self.given_up is not None:
            return self.given_up
        if self.naming is None and member not in self.members:
            return self._give_up(f"{member} has come a second time")
        command = None
        # A joining member is not in the running round: if the previous pod never connected, its part is missing.
        if member in self.members and (joins or member in self._lost.keys() | self._here):
            if not joins or not self._replaceable:
                return self._give_up(f"{member} has come a second time")
            # This also reports the loss of the previous pod, unless its connection was already lost.
            command = self._lose(member, now) if member not in self._lost else None
            self._take_in(member, brought)
        self._here.add(member)
        self._highest = max(self._highest, brought.round)
        self._leaving.discard(member)
        return command or self._advance(now) or self._drain(now)

    def left(self, member: str, now: float, *, silent: bool = True) -> Command | None:
        """A member's pod is gone, and its processes with it; if it is only `silent`, that is unknown."""
        if member not in self.members or self.given_up is not None:
            self._here.discard(member)
            return self.given_up
        if not self._replaceable:
            return self._give_up(f"{member} has left")
        return self._lose(member, now, silent=silent)

    def resize(self, wanted: int) -> Command | None:
        """From now on this many workers are wanted."""
        if self.given_up is not None or self.naming is None or self.spares:
            return self.given_up
        self.wanted = wanted
        return self._drain(-math.inf)

    def ended(self, member: str, round_: int, end: End, now: float) -> Command | None:
        """All processes of a member have ended, by themselves or on a command."""
        if self.given_up is not None or round_ != self.round or member not in {*self.members} - self._lost.keys():
            return self.given_up
        if end.progressed:
            self._progressed.add(round_)
        self._ends[member] = end
        if end.leaves:
            self._leaving.add(member)
        elif end.in_memory is not None:
            self._in_memory[member] = end.in_memory
        if (reason := self._refusal(member, end)) is not None:
            return self._give_up(reason)
        if self._ends.keys() | self._lost.keys() == set(self.members):
            reason = self._verdict()
            return self._advance(now) if reason is None else self._give_up(reason)
        if end.saved or end.leaves:
            self._stopped_since = now if self._stopped_since is None else self._stopped_since
        # Before its first step a pod stops alone, and the others would wait for it.
        stops = end.worth_a_retry or (end.leaves and not end.progressed)
        return self._stop(now) if stops and self._stopping_since is None else None

    def awaits(self, sending: Send, now: float) -> bool:
        """Data of a checkpoint has arrived; returns whether it is still needed."""
        if sending == self._sending:
            self._heard = now
        return sending == self._sending

    def sent(self, sending: Send, now: float, *, whole: bool) -> Command | None:
        """The checkpoint is complete, or it will never be."""
        if self.given_up is not None or sending != self._sending:
            return self.given_up
        if whole:
            self._in_memory[self.members[0]] = sending.step
        else:
            self._in_memory.pop(sending.member, None)
        self._sending = None
        return self._advance(now)

    def waited(self, now: float) -> Command | None:
        """Time has passed."""
        if self.given_up is not None:
            return None
        if self._lost and (command := self._advance(now)) is not None:
            return command
        if self._sending is not None:
            late = now - self._heard > PATIENCE_SECONDS
            return self.sent(self._sending, now, whole=False) if late else None
        since = self._stopped_since if self._stopping_since is None else self._stopping_since
        missing = ", ".join(sorted(self._at_work() & self._here))
        if since is None or now - since <= PATIENCE_SECONDS or not missing:
            return None
        if self._stopping_since is None:
            return self._stop(now)
        return self._give_up(f"{missing} did not end within {PATIENCE_SECONDS:g} s")

    def _stop(self, now: float) -> Stop:
        self._stopping_since = now
        return Stop(self.round)

    def _at_work(self) -> set[str]:
        """Members whose processes may still run, or whose pod is ending and not gone yet."""
        ended = {name for name, end in self._ends.items() if not end.leaves}
        return set(self.members) - self._lost.keys() - ended - self._dispensable()

    @property
    def _replaceable(self) -> bool:
        """True if the next round may wait for the replacement of a lost pod."""
        return self.naming is not None and all(end.code != ExitCode.DONE for end in self._ends.values())

    def _lose(self, member: str, now: float, *, silent: bool = True) -> Command | None:
        """A lost pod's in-memory checkpoint is gone."""
        end = self._ends.pop(member, None)
        self._in_memory.pop(member, None)
        self._brought.pop(member, None)
        self._here.discard(member)
        self._lost[member] = now if silent else -math.inf
        if self._sending is not None and self._sending.member == member:
            self._sending = None
        if self._stopping_since is None and self._at_work() and not (end is not None and end.leaves):
            return self._stop(now)
        return self._advance(now)

    def _take_in(self, member: str, brought: Brought) -> None:
        """A lost member has come back. What is newer than its round has started from may be out of date."""
        self._brought[member] = brought
        if brought.round > self._newest.round:
            self._newest, self._sending = brought, None
            self._in_memory.clear()
        for name, its in self._brought.items():
            if its.step is not None and self._newest.accepts(its):
                self._in_memory[name] = its.step

    def _dispensable(self) -> set[str]:
        """Members without running processes, and without which the others may train."""
        if self.naming is None or self.least is None:
            return set()
        return self._leaving | self._lost.keys() | (set(self.naming.of(self.workers)) - set(self.members))

    def _following(self, now: float) -> tuple[int, Sequence[str]] | None:
        """The number of workers of the next round if it started now, and its members: the wanted ones, if they are
        connected. None: a member is missing."""
        here = self._here - self._leaving
        if self.naming is None:
            return (self.workers, self.members) if set(self.members) <= here else None
        may_run = {name for name, lost in self._lost.items() if now - lost <= SILENT_SECONDS}
        if may_run - here - self._leaving:
            return None
        for workers in (self.wanted, self.workers):
            come = tuple(name for name in self.naming.of(workers) if name in here) if self.leader in here else ()
            gone = set(self.naming.of(workers)) - set(come)
            members = self._chosen(come, len(self.naming.chiefs) + workers - self.spares)
            enough = len(members) - len(self.naming.chiefs) >= (self.least or 0)
            if not gone or (gone <= self._dispensable() and enough):
                return workers, members
        return None

    def _chosen(self, come: Sequence[str], count: int) -> tuple[str, ...]:
        """`count` of the connected ones: the leader, those that already take part, then the lowest indexes."""

        def rank(name: str) -> tuple[bool, bool]:
            new = name in self._brought and self._brought[name].round < self._newest.round
            return name != self.leader, new or name not in self.members

        chosen = set(sorted(come, key=rank)[:count])
        return tuple(name for name in come if name in chosen)

    def _drain(self, now: float) -> Drain | None:
        """End this round for another number of workers, if that is possible and nothing else is in progress."""
        going_on = self._ends or self._lost or self._draining or self._stopping_since is not None
        following = self._following(now)
        if going_on or following is None or not set(self.members) <= self._here:
            return None
        if set(following[1]) == set(self.members):
            self.workers = following[0]
            return None
        self._draining = True
        return Drain(self.round)

    def _refusal(self, member: str, end: End) -> str | None:
        """Why no round can follow this end; None if one can."""
        if end.code == ExitCode.DONE and self._stopping_since is None and self._stopped_since is None:
            return None
        all_saved = all(name in self._ends and self._ends[name].saved for name in self.members)
        # Others may report that they have stopped before the pod that was asked to stop does.
        stopped = end.saved and (self._draining or (self.naming is not None and not all_saved))
        stopped = stopped or (end.leaves and self._replaceable)
        done = [name for name, other in self._ends.items() if other.code == ExitCode.DONE]
        missing = set(self.members) - self._here - self._lost.keys()
        looped = self._stopping_since is None and self._looped
        # A cluster detects the loss of a member before its connection breaks, and a loss costs nothing.
        lost = bool(self._lost) or self._awaits_verdict(end)
        judged = not (stopped or lost)
        reasons = (
            (not (stopped or end.worth_a_retry), f"{member} ended with code {end.code}"),
            (self.outside and end.code == ExitCode.PEER_FAILURE, f"{member} lost what is no part of the gang"),
            (bool(done), f"{member} failed after {', '.join(sorted(done))} had finished"),
            (bool(missing) and not lost, f"{', '.join(sorted(missing))} had not come yet"),
            (judged and self._is_spent, self._spent),
            (judged and looped, _LOOP),
        )
        return next((reason for refused, reason in reasons if refused), None)

    def _awaits_verdict(self, end: End) -> bool:
        """True while the failed member is unknown: one that has not reported yet may be lost."""
        missed = end.code == ExitCode.PEER_FAILURE and self.naming is not None
        return missed and self._ends.keys() | self._lost.keys() != set(self.members)

    def _verdict(self) -> str | None:
        """Why no round can follow, now that all have ended after failures that could have been a loss; None if one
        can.
        """
        if self._lost or self.naming is None or all(e.code != ExitCode.PEER_FAILURE for e in self._ends.values()):
            return None
        if self._is_spent:
            return self._spent
        return _LOOP if self._looped else None

    @property
    def _is_spent(self) -> bool:
        return self.round - self.resizes >= self.budget

    @property
    def _spent(self) -> str:
        return f"{self.budget} restarts in place are all that runPolicy.backoffLimit leaves"

    @property
    def _looped(self) -> bool:
        return self._failed_before and self.round not in self._progressed

    def _advance(self, now: float) -> Send | Start | None:
        """The next step once no process of this round runs: a new round, when each lost pod is replaced."""
        done = any(end.code == ExitCode.DONE for end in self._ends.values())
        return None if done or self._at_work() or self._sending is not None else self._next(now)

    def _next(self, now: float) -> Send | Start | None:
        own = self._in_memory.get(self.members[0])
        drained = bool(self._ends) and all(end.saved for end in self._ends.values() if not end.leaves)
        member, newest = max(self._in_memory.items(), key=lambda item: item[1], default=("", None))
        # After a drain nothing is newer than what is in storage.
        if newest is not None and (own is None or newest > own) and not drained:
            self._sending, self._heard = Send(self.round, member, newest), now
            return self._sending
        following = self._following(now)
        if following is None:
            return None
        drained = drained or bool(self._lost or self._leaving)
        before = self.round
        self.round = max(self._newest.round, self._highest) + 1
        self._newest = Brought(self.round, since=own)
        self.resizes += drained + self.round - before - 1
        self._failed_before = not drained
        gone = {*self._leaving}
        for known in (self._ends, self._lost, self._leaving, self._in_memory, self._brought):
            known.clear()
        self._draining = False
        self._stopping_since = self._stopped_since = self._sending = None
        if self.naming is None:
            return Start(self.round, own)
        gone |= set(self.members)
        self.workers, self.members = following
        self._here -= gone - set(self.members)
        return Start(self.round, own, self.workers, self.resizes, self.without, self.term)

    def _give_up(self, reason: str) -> GiveUp:
        self.given_up = self.given_up or GiveUp(reason)
        return self.given_up
