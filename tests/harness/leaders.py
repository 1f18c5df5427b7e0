"""Leaders of gangs that are resized in place: what they answer to PUT /workers, and when they start the next round.

As in the trainer's supervisor (docs/adr/0027), a round with another number of workers starts once all its workers are
up, and a moment after it was decided. A worker that has left ends with the exit code of a stop, or waits to be deleted.
If a pod is lost, the leader's too, the others wait in theirs for its replacement (docs/adr/0061). If another has
reported its end, or is silent for longer than its processes live, they train without it until then, if the pods are
configured for it, or with a spare instead (docs/design/membership.md).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.harness.canonical import tf_config
from tests.harness.resources import Object

from tfgpujob import names
from tfgpujob_contract.variables import Variable

STOP = 143
SECONDS = 2.4
"""Between the decision and the first step of the next round: no whole number, so that a request comes before or after
it, and not with it."""


class Gang(Protocol):
    """The running workers of one attempt of a job, by index."""

    def __call__(self, leader: Object) -> dict[int, Object]: ...


@dataclass(slots=True)
class _Leader:
    workers: int
    wanted: int
    next: int = 0
    """Workers of the round that is about to begin; 0: none is."""
    members: dict[int, str] = field(default_factory=dict)
    """uids of the pods of the round that runs, by index."""
    chosen: frozenset[str] = frozenset()
    """uids of the pods of the round that is about to begin, as it was decided."""
    without: frozenset[int] = frozenset()
    """Indexes of workers that the round does without."""
    gone: set[str] = field(default_factory=set)
    """uids of pods of which no process runs any more."""


class Leaders:
    def __init__(
        self,
        *,
        gang: Gang,
        begins: Callable[[Sequence[Object]], None],
        leaves: Callable[[Object, int], None],
        trains: Callable[[Object, int], None],
    ) -> None:
        """`begins`: a round with these pods. `leaves`: this pod ends with this code. `trains`: with the leader, the
        number of workers, at most, of the running round and of the next one."""
        self.refuses = self.patient = False
        """`patient`: they wait for a member that has said nothing."""
        self._gang, self._begins, self._leaves, self._trains = gang, begins, leaves, trains
        self._known: dict[str, _Leader] = {}

    def put_workers(self, leader: Object, workers: int) -> tuple[int, bytes] | None:
        """The answer to PUT /workers; None before the first round."""
        if not environment(leader, Variable.RECOVERY_RESIZE):
            return 404, b""
        if self.refuses:
            return 409, b'{"reason": "it has given up"}'
        known = self._leader(leader)
        if not known.members:
            # No process runs that could answer.
            return None
        if not known.next:
            known.wanted = workers
            self.look(leader)
        return 200, json.dumps(self._answer(known)).encode()

    def begun(self, leader: Object, workers: Mapping[int, Object]) -> None:
        """A round with these pods runs."""
        self._leader(leader).members = {index: pod["metadata"]["uid"] for index, pod in workers.items()}

    def said_goodbye(self, leader: Object, pod: Object) -> None:
        """This member's processes have ended because its pod is being stopped."""
        its_own = pod["metadata"]["uid"] == leader["metadata"]["uid"]
        if environment(leader, Variable.RECOVERY_LEAST) and not its_own:
            self._leader(leader).gone.add(pod["metadata"]["uid"])
            self.look(leader)

    def gave_up_waiting(self, leader: Object) -> None:
        """The first round of a leader that has replaced another may do without those that have not come by now."""
        known, up = self._leader(leader), self._up(leader)
        if not known.members and environment(leader, Variable.RECOVERY_LEAST):
            known.without |= frozenset(range(known.workers)) - {*up}
            self.look(leader)

    def fell_silent(self, leader: Object, pod: Object) -> None:
        """This member has not been heard for longer than its processes live."""
        if not self.patient:
            self.said_goodbye(leader, pod)

    @staticmethod
    def _answer(known: _Leader) -> Object:
        return {"workers": known.workers, "wanted": known.wanted, "without": sorted(known.without)}

    def look(self, leader: Object) -> None:
        """A worker has come up or is gone, or another number is wanted."""
        known, up = self._leader(leader), self._up(leader)
        following = next((n for n in (known.wanted, known.workers) if self._enough(leader, up, n)), None)
        if following is None or known.next:
            return
        members = {index: up[index]["metadata"]["uid"] for index in self._members(leader, up, following)}
        if following == known.workers and members == known.members:
            return
        if not known.members and not any(environment(up[index], Variable.RECOVERY_JOINS) for index in members):
            # The pods' own round, which each begins by itself.
            return
        known.next, known.chosen = following, frozenset(members.values())
        self._trains(leader, max(known.next, known.workers))
        asyncio.get_running_loop().call_later(SECONDS, self._begin, leader)

    def _begin(self, leader: Object) -> None:
        known, up = self._leader(leader), self._up(leader)
        workers, known.next = known.next, 0
        if not self._enough(leader, up, workers):
            self._trains(leader, known.workers)
            return
        known.workers, before = workers, {*known.members.values()}
        members = self._members(leader, up, workers)
        known.without = frozenset(range(workers)) - {*members}
        self._trains(leader, workers)
        for index in up.keys() - range(workers):
            # One that waits to join waits on.
            if index % 2 and up[index]["metadata"]["uid"] in before:
                self._leaves(up[index], STOP)
        self._begins([up[index] for index in members])
        self.look(leader)

    def _members(self, leader: Object, up: Mapping[int, Object], workers: int) -> list[int]:
        """Members of the next round: those of this one that are up, and as many more as it may have."""
        known = self._leader(leader)
        uids = {*known.members.values(), *known.chosen}
        those = sorted((i for i in up if i < workers), key=lambda i: (up[i]["metadata"]["uid"] not in uids, i))
        return sorted(those[: workers - _spares(leader)])

    def _up(self, leader: Object) -> dict[int, Object]:
        gone = self._leader(leader).gone
        return {index: pod for index, pod in self._gang(leader).items() if pod["metadata"]["uid"] not in gone}

    def _enough(self, leader: Object, up: Mapping[int, Object], workers: int) -> bool:
        """True if a round of this size may start: each worker is up, or known to have no processes, and enough are
        left.
        """
        known, missing = self._leader(leader), set(range(workers)) - up.keys()
        dispensable = known.without | {index for index, uid in known.members.items() if uid in known.gone}
        least = int(environment(leader, Variable.RECOVERY_LEAST) or workers)
        return not missing or (missing <= dispensable and workers - len(missing) >= least)

    def _leader(self, leader: Object) -> _Leader:
        first, uid = len(tf_config(leader)["cluster"]["worker"]), leader["metadata"]["uid"]
        if uid not in self._known and environment(leader, Variable.RECOVERY_JOINS):
            trained = (before.members.values() for before in self._known.values())
            self._known[uid] = _Leader(first, first, chosen=frozenset().union(*trained))
        workers = first + _spares(leader)
        begun = _Leader(workers, workers, without=frozenset(range(first, workers)))
        return self._known.setdefault(uid, begun)


def _spares(leader: Object) -> int:
    return int(environment(leader, Variable.RECOVERY_SPARES) or 0)


def environment(pod: Object, name: str) -> str:
    for container in pod["spec"]["containers"]:
        for entry in container.get("env") or ():
            if container["name"] == names.CONTAINER and entry["name"] == name:
                return str(entry["value"])
    return ""
