"""What the training processes of a gang in a story compute, copy to memory and save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.trainer.round_pods import KILLED, STOPPED, Pod

if TYPE_CHECKING:
    from tests.trainer.round_story import Gang


class KilledError(Exception):
    """In the middle of a copy."""


State = bytes
"""State of a training run: for each step, which round it was done in, of all that have begun."""


class Training:
    """They train in step, copy their state to memory, and the first of them saves it too."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self.saved: State = b""
        self.copied: dict[str, State] = {}
        """The last whole copy of each member in this round."""
        self._known: set[State] = {b""}
        self._left_behind: dict[State, list[Pod]] = {}
        """With the members of the round that has left it behind: without these, a leader can't know."""
        self._just_left: set[State] = set()
        """Those among them that a round has left behind that has done no step."""
        self._left_in = 0
        """That round."""
        self._stop_at: int | None = None
        """The step after which all stop, as they agree in its all-reduce."""
        self.unsent = False
        """Whether a copy was awaited in this round, and did not come."""

    def forget(self, rounds: set[int]) -> None:
        """The leader is gone; `rounds` are those of which any pod that is left knows."""
        if self._left_in not in rounds:
            kept = self._left_behind.keys() - self._just_left
            self._left_behind = {one: pods for one, pods in self._left_behind.items() if one in kept}
        if not self._gang.chances.shared:
            self.saved = b""

    def restore(self) -> None:
        """What the leader's training process does, and all others with it."""
        gang = self._gang
        copy = gang.leader.memory.newest()
        state = b"" if copy is None else gang.leader.memory.read(copy, 0, copy.size)
        state = max(state, self.saved, key=len)
        assert state in self._known, "a state that nobody had"
        assert not {*self._left_behind.get(state, ())} & {*gang.connected.values()}, "a state that was left behind"
        held = [len(copied) for name, copied in self.copied.items() if name in gang.rounds.members]
        assert self.unsent or len(state) >= max(held, default=0), "a step that somebody holds is done again"
        self._just_left = {one for one in self._known if not state.startswith(one)} - self._left_behind.keys()
        self._left_behind |= dict.fromkeys(self._just_left, gang.members)
        self._left_in = gang.rounds.round
        for pod in gang.members:
            pod.state = state
        self.copied.clear()
        self._stop_at, self.unsent = None, False

    def step(self) -> None:
        """A step of a member that is not ahead of another; a copy of it, or a part of one; a checkpoint."""
        gang = self._gang
        members, chance = gang.members, gang.chance
        candidates = [pod for pod in members if pod.runs and not pod.hangs]
        together = all(pod.round == gang.rounds.round and not pod.strange for pod in members)
        if not candidates or len(members) < len(gang.rounds.members) or not together:
            return
        pod = chance.choice(candidates)
        if self._stop_at is not None and len(pod.state) == self._stop_at:
            self._stop(pod)
            return
        if any(len(other.state) < len(pod.state) for other in members):
            return
        following = next((other.state for other in members if len(other.state) > len(pod.state)), None)
        if following is None and self._stop_at is None and any(other.drains for other in members):
            self._stop_at = len(pod.state) + 1
        pod.state = state = following or pod.state + bytes([gang.begun % 256])
        self._known.add(state)
        self._just_left = set()
        rarely = gang.chances.away is not None and gang.rounds.without
        match chance.randrange(8):
            case 0 if gang.fails():
                with contextlib.suppress(KilledError):
                    pod.memory.write(len(state), _torn(state))
                gang.end(pod, KILLED)
            case 1 | 2 | 3 | 4 | 5 if not rarely or chance.randrange(8) == 0:
                self._copy(pod)
            case 6 if pod.name == gang.rounds.leader:
                self.saved = state

    def _copy(self, pod: Pod) -> None:
        pod.memory.write(len(pod.state), [pod.state])
        self.copied[pod.name] = pod.state

    def _stop(self, pod: Pod) -> None:
        """Stop by a drain: the leader saves once all have done the last step, and a pod that knows of it ends, or is
        killed.
        """
        gang = self._gang
        # A pod that is being stopped may run out of time.
        if pod.told_to_stop and gang.chance.randrange(8) == 0:
            gang.lose(pod)
        elif self.saved != pod.state:
            if pod.name == gang.rounds.leader and all(len(other.state) == self._stop_at for other in gang.members):
                self.saved = pod.state
        else:
            fails = 1 if gang.calm else gang.chance.randrange(16)
            if fails == 0:
                pod.hangs = True
            else:
                self._copy(pod)
                gang.end(pod, KILLED if fails == 2 else STOPPED, saved=fails != 2 and not pod.told_to_stop)


def _torn(state: State) -> Iterator[bytes]:
    yield state[: len(state) // 2] + b"\xff"
    raise KilledError
