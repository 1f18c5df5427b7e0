"""When the processes of a gang start again in their pods: the rules of the leader. Pure; no clock of its own.

A round is one start of all training processes of an attempt; round 0 is the pods' own. Once a process ends in a way
that is worth a retry, all are ended, and only when each member has said so does the next round begin: two rounds never
run at once, so no process meets another round's cluster, and none writes beside another. Whatever these rules don't
cover is given up: each pod then ends as its own process did, and the operator, which stays the judge, does what it
does without them.

A round goes on from the newest in-memory checkpoint of all members, which the leader's process restores and sends to
the others. If another member has a newer one than the leader, it sends that first. If it does not come, the round goes
on without it, and all forget what is newer than that: a state that the gang has left behind never comes back.

Where the number of workers may change, a round is drained for it: all processes stop after the same step, which is then
in storage, and the next round has the number that is wanted. Nobody stops before every member of the next round is
there. Whoever crashes in a drain, or does not end in time once another has stopped, makes it a failure like any other:
the rest are ended, the newest in-memory checkpoint is looked for, and the round that follows has the wanted number all
the same. A member that was to join and is gone leaves the number as it is. One of the running round that is gone while
the number changes ends it all, whether it was to stay or not, since nobody can say that its processes have ended.

Otherwise a worker's pod that is gone is waited for, where the number of workers may change: a pod of its name can be
created only when it is gone for good, with all its processes. So the next round begins once another has come in its
place, and costs no restart. Whether one comes is the operator's to decide; if not, it ends the pods. A pod that is told
to stop stops all after the same step, as a drain does. The leader's own pod and a chief's can't be waited for.

A pod that has said so itself before it went, as one that is drained, evicted or preempted does, has no processes any
more. So the others train on without it, if they are `least` or more, and take in the one that comes in its place as
they take in whoever joins. A pod that has fallen silent has none after a while either: without its leader it ends them
(supervise/follower.py), so the others wait for SILENT_SECONDS, in which another may come, and train on too. `workers`
counts both all the while: the workers of a round are those of a number of workers, but for some of them.

Some of the worker pods may be `spares`: a round is of all others, those that take part already first, and does without
the rest. A spare that has come is a member of the next round if one of this round is gone, and the pod that comes in
that one's place is a spare then. So nobody waits for it, and nobody stops to take it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tfgpujob_trainer.contract.exits import ExitCode
from tfgpujob_trainer.supervise.commands import Command, Drain, End, GiveUp, Naming, Send, Start, Stop

PATIENCE_SECONDS = 30.0
"""How long the members may take to end their processes, before the leader gives up."""
SILENT_SECONDS = 20.0
"""After which the processes of a pod that the leader has lost have ended, whatever has become of it.

By what supervise/messages.py asks of a connection, a pod misses its leader at most 10 s after the leader has missed it:
each hears the other at least every 5 s until both hear nothing, and looks every 5 s whether that was 20 s ago.
"""
_LOOP = "a second failure without a step in between"


@dataclass(slots=True)
class Rounds:
    """What the leader knows. Each method takes an event and returns what to tell all members, at most one command.

    The leader is the first of `members`. `budget` is how many restarts in place the attempt may still spend; times are
    seconds of one monotonic clock. With `naming` there are `workers` worker pods, and their number may change.
    """

    members: Sequence[str]
    budget: int
    naming: Naming | None = None
    workers: int = 0
    least: int | None = None
    """The fewest workers that train on when others have left; None: nobody trains without them."""
    spares: int = 0
    """Of the `workers`, as many as a round does without."""
    outside: bool = False
    """Its processes depend on others than the members, as a chief does on parameter servers: it can't begin again
    before those have, and the operator sees to that."""
    wanted: int = field(init=False)
    round: int = 0
    resizes: int = 0
    """Rounds that were begun for another number of workers, or with another pod for a lost one: no failures."""
    given_up: GiveUp | None = None
    _here: set[str] = field(default_factory=set)
    """Members, and those that wait to become some."""
    _ends: dict[str, End] = field(default_factory=dict)
    _lost: dict[str, float] = field(default_factory=dict)
    """Since when members of this round are gone, or not heard; another may have come in the place of one."""
    _silent: set[str] = field(default_factory=set)
    """Those of them that have been for so long that their processes have ended, and in whose place none has come."""
    _leaving: set[str] = field(default_factory=set)
    """Members of this round whose processes have ended since their pods are told to stop."""
    _progressed: set[int] = field(default_factory=set)
    _failed_before: bool = False
    """Whether this round was begun after a failure."""
    _draining: bool = False
    _stopped_since: float | None = None
    """When the first member had stopped after a step, as all are about to."""
    _stopping_since: float | None = None
    _in_memory: dict[str, int] = field(default_factory=dict)
    """Of each member that has one, the step of its newest in-memory checkpoint, once its processes have ended."""
    _sending: Send | None = None
    _heard: float = 0.0
    """When something came of what is sent."""

    def __post_init__(self) -> None:
        self.wanted = self.workers

    @property
    def here(self) -> int:
        """Worker pods that have come, of those of this round and of the one that is wanted."""
        assert self.naming is not None
        return len(self._here & set(self.naming.workers(max(self.workers, self.wanted))))

    @property
    def without(self) -> tuple[int, ...]:
        """The indexes of worker pods that this round does without."""
        assert self.naming is not None
        return tuple(i for i, name in enumerate(self.naming.workers(self.workers)) if name not in self.members)

    def joined(self, member: str, now: float, *, joins: bool = False) -> Command | None:
        """A member has come; one of an earlier life of a pod can't be part of this attempt's rounds.

        Who `joins` is to take part in a later round: it may come and go, or take the place of a lost one of its name.
        """
        if self.given_up is not None:
            return self.given_up
        if self.naming is None and member not in self.members:
            return self._give_up(f"{member} has come a second time")
        command = None
        # Who joins takes part in no round that runs: if the pod before it has never come, nobody does its part.
        if member in self.members and (joins or member in self._lost.keys() | self._here):
            if not joins or not self._replaceable(member):
                return self._give_up(f"{member} has come a second time")
            # It is news that the pod before is gone, unless its connection has been missed already.
            command = self._lose(member, now) if member in self._here else None
        self._here.add(member)
        self._leaving.discard(member)
        self._silent.discard(member)
        return command or self._advance(now) or self._drain()

    def left(self, member: str, now: float) -> Command | None:
        """A member's pod is gone or can't be reached: nobody can say that its processes have ended."""
        if member not in self.members or self.given_up is not None:
            self._here.discard(member)
            return self.given_up
        return self._lose(member, now) if self._replaceable(member) else self._give_up(f"{member} has left")

    def resize(self, wanted: int) -> Command | None:
        """So many workers are asked for from now on."""
        if self.given_up is not None or self.naming is None or self.spares:
            return self.given_up
        self.wanted = wanted
        return self._drain()

    def ended(self, member: str, round_: int, end: End, now: float) -> Command | None:
        """All processes of a member have ended, by themselves or because it was told to end them."""
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
        """Something has come of what a member sends; whether it is still wanted."""
        if sending == self._sending:
            self._heard = now
        return sending == self._sending

    def sent(self, sending: Send, now: float, *, whole: bool) -> Command | None:
        """All of it has come, or it never will."""
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
        silent = {name for name, lost in self._lost.items() if now - lost > SILENT_SECONDS} - self._here
        if silent != self._silent:
            self._silent = silent
            if (command := self._advance(now)) is not None:
                return command
        if self._sending is not None:
            late = now - self._heard > PATIENCE_SECONDS
            return self.sent(self._sending, now, whole=False) if late else None
        since = self._stopped_since if self._stopping_since is None else self._stopping_since
        missing = ", ".join(sorted(self._at_work()))
        if since is None or now - since <= PATIENCE_SECONDS or not missing:
            return None
        if self._stopping_since is None:
            return self._stop(now)
        return self._give_up(f"{missing} did not end within {PATIENCE_SECONDS:g} s")

    def _stop(self, now: float) -> Stop:
        self._stopping_since = now
        return Stop(self.round)

    def _at_work(self) -> set[str]:
        """Members whose processes may still run, or whose pod ends and is not gone yet."""
        ended = {name for name, end in self._ends.items() if not end.leaves}
        return set(self.members) - self._lost.keys() - ended - self._dispensable()

    def _replaceable(self, member: str) -> bool:
        """Whether the next round may wait for another pod of this name."""
        come = self._here | self._lost.keys()
        if self.naming is None or self.wanted != self.workers or not set(self.members) <= come:
            return False
        worker = member in self.naming.workers(self.workers) and member != self.members[0]
        return worker and all(end.code != ExitCode.DONE for end in self._ends.values())

    def _lose(self, member: str, now: float) -> Command | None:
        """What a pod that is gone had, nobody has any more."""
        end = self._ends.pop(member, None)
        self._in_memory.pop(member, None)
        self._here.discard(member)
        self._lost[member] = now
        if self._sending is not None and self._sending.member == member:
            self._sending = None
        if self._stopping_since is None and self._at_work() and not (end is not None and end.leaves):
            return self._stop(now)
        return self._advance(now)

    def _dispensable(self) -> set[str]:
        """Of whom it is known that none of their processes runs, and without whom the others may train."""
        if self.naming is None or self.least is None:
            return set()
        return self._leaving | self._silent | (set(self.naming.of(self.workers)) - set(self.members))

    def _following(self) -> tuple[int, Sequence[str]] | None:
        """The number of workers of the round that would follow this one now, and its members: as many as are wanted, if
        they have come. None: somebody has to come first."""
        here = self._here - self._leaving
        if self.naming is None:
            return (self.workers, self.members) if set(self.members) <= here else None
        for workers in (self.wanted, self.workers):
            come = tuple(name for name in self.naming.of(workers) if name in here)
            gone = set(self.naming.of(workers)) - set(come)
            members = self._chosen(come, len(self.naming.chiefs) + workers - self.spares)
            enough = len(members) - len(self.naming.chiefs) >= (self.least or 0)
            if not gone or (gone <= self._dispensable() and enough):
                return workers, members
        return None

    def _chosen(self, come: Sequence[str], count: int) -> tuple[str, ...]:
        """So many of those that have come. Who takes part already stays, and then the lowest indexes are taken."""
        chosen = set(sorted(come, key=lambda name: name not in self.members)[:count])
        return tuple(name for name in come if name in chosen)

    def _drain(self) -> Drain | None:
        """End this round for another number of workers, if that can be had and nothing else goes on."""
        going_on = self._ends or self._lost or self._draining or self._stopping_since is not None
        following = self._following()
        if going_on or following is None or not set(self.members) <= self._here:
            return None
        if set(following[1]) == set(self.members):
            return None
        self._draining = True
        return Drain(self.round)

    def _refusal(self, member: str, end: End) -> str | None:
        """Why no other round follows this end, if none does."""
        if end.code == ExitCode.DONE and self._stopping_since is None and self._stopped_since is None:
            return None
        all_saved = all(name in self._ends and self._ends[name].saved for name in self.members)
        # Others may say that they have stopped before the pod does that is told to stop.
        stopped = end.saved and (self._draining or (self.naming is not None and not all_saved))
        stopped = stopped or (end.leaves and self._replaceable(member))
        done = [name for name, other in self._ends.items() if other.code == ExitCode.DONE]
        missing = set(self.members) - self._here - self._lost.keys()
        looped = self._stopping_since is None and self._looped
        # A cluster misses a member before its connection is missed, and a loss costs nothing.
        judged = not (stopped or self._lost or self._awaits_verdict(end))
        reasons = (
            (not (stopped or end.worth_a_retry), f"{member} ended with code {end.code}"),
            (self.outside and end.code == ExitCode.PEER_FAILURE, f"{member} lost what is no part of the gang"),
            (bool(done), f"{member} failed after {', '.join(sorted(done))} had finished"),
            (bool(missing), f"{', '.join(sorted(missing))} had not come yet"),
            (judged and self._is_spent, self._spent),
            (judged and looped, _LOOP),
        )
        return next((reason for refused, reason in reasons if refused), None)

    def _awaits_verdict(self, end: End) -> bool:
        """Whether it is still to be seen whose failure this was: a member that is not heard of yet may be lost."""
        missed = end.code == ExitCode.PEER_FAILURE and self.least is not None
        return missed and self._ends.keys() | self._lost.keys() != set(self.members)

    def _verdict(self) -> str | None:
        """Why no other round follows, now that all have ended, after failures that might have been a loss."""
        if self._lost or self.least is None or all(e.code != ExitCode.PEER_FAILURE for e in self._ends.values()):
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
        """What follows once nothing of this round runs any more: the next begins when each lost pod has another."""
        done = any(end.code == ExitCode.DONE for end in self._ends.values())
        return None if done or self._at_work() or self._sending is not None else self._next(now)

    def _next(self, now: float) -> Send | Start | None:
        own = self._in_memory.get(self.members[0])
        drained = all(end.saved for end in self._ends.values() if not end.leaves)
        member, newest = max(self._in_memory.items(), key=lambda item: item[1], default=("", None))
        # After a drain nothing is newer than what is in storage.
        if newest is not None and (own is None or newest > own) and not drained:
            self._sending, self._heard = Send(self.round, member, newest), now
            return self._sending
        following = self._following()
        if following is None:
            return None
        self.round += 1
        drained = drained or bool(self._lost or self._leaving)
        self.resizes += drained
        self._failed_before = not drained
        gone = {*self._leaving}
        for known in (self._ends, self._lost, self._leaving, self._silent, self._in_memory):
            known.clear()
        self._draining = False
        self._stopping_since = self._stopped_since = self._sending = None
        if self.naming is None:
            return Start(self.round, own)
        before = self.members
        self.workers, self.members = following
        self._here -= gone | (set(before) - set(self.members))
        return Start(self.round, own, self.workers, self.resizes, self.without)

    def _give_up(self, reason: str) -> GiveUp:
        self.given_up = self.given_up or GiveUp(reason)
        return self.given_up
