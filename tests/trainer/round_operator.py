"""What happens to the pods of a gang in a story from outside: by the operator, and by their nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.trainer.round_pods import NAMING, Pod

from tfgpujob_trainer.supervise.commands import MemberState, Start

if TYPE_CHECKING:
    from tests.trainer.round_story import Gang


class Operator:
    """Requests other numbers of workers, creates pods in the place of others, and deletes them."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._made: Counter[str] = Counter()
        """Pods in the place of others, by name."""
        self.asked = 0
        """The number of workers that was requested last; 0: none."""

    def create(self, name: str) -> Pod:
        """A pod in the place of another, or beside the others; if there was one of its name, that is known no more."""
        self._made[name] += 1
        told = MemberState(name, NAMING, joins=name != self._gang.rounds.leader)
        self._gang.pods[name] = pod = Pod(name, told, -1, runs=False, restart=self._made[name])
        self._gang.every.append(pod)
        return pod

    def look(self) -> None:
        """Ask, create what is missing, delete what the leader no longer has; else something happens to a pod."""
        gang, rounds = self._gang, self._gang.rounds
        wanted = set(NAMING.of(rounds.wanted))
        if not gang.calm and not rounds.spares and gang.chance.random() < gang.chances.resized:
            self.asked = 1 + gang.chance.randrange(4)
        if self.asked and self.asked != rounds.wanted and gang.leader.runs:
            gang.tell(rounds.resize(self.asked))
            return
        stopped = [pod for pod in gang.pods.values() if pod.told_to_stop and (pod.hangs or not pod.runs)]
        # What is on a lost node stays for long.
        patient = not gang.calm and (gang.chances.full or gang.chances.away is not None or gang.chance.randrange(8) > 0)
        unheard = [pod for pod in gang.pods.values() if pod.unheard is not None and not patient]
        if stopped or unheard:
            gang.lose([*stopped, *unheard][0])
            return
        lost = {name for name in rounds.members if name not in gang.pods}
        missing = (wanted - set(gang.pods) - set(rounds.members)) | lost
        if missing and (gang.calm or not gang.chances.full):
            self._fill(min(missing))
            return
        # Those as well that an earlier number has left out, whatever is wanted now.
        left = {
            name for name, pod in gang.connected.items() if name not in gang.available and pod in gang.pods.values()
        }
        if deleted := (set(gang.pods) - wanted | left) - set(rounds.members):
            gang.lose(gang.pods[min(deleted)])
            return
        self._strike()

    def _fill(self, name: str) -> None:
        outbox = self._gang.outbox
        gone = next((told[0] for told in reversed(outbox) if told[0].name == name), None)
        pod = self.create(name)
        # That the one before is gone may be heard later.
        late = [told for told in outbox if told[:2] == (gone, "left") and self._gang.chance.randrange(2)]
        self._gang.outbox = [told for told in outbox if told not in late] + [(pod, "joined", 0, None), *late]

    def _strike(self) -> None:
        """What happens to pods."""
        gang, chance, chances = self._gang, self._gang.chance, self._gang.chances
        if gang.calm:
            return
        waiting = [pod for pod in gang.pods.values() if not pod.told.takes_part]
        begins = any(isinstance(command, Start) for _, command in gang.inbox)
        forsaken = chances.away if chances.away is not None and gang.rounds.without else 0.0
        if chances.mortal and chance.random() < (0.5 if begins else forsaken):
            gang.lose(gang.leader)
        elif waiting and chance.randrange(3) == 0:
            gang.lose(chance.choice(waiting))
        elif len(gang.members) > 1:
            pod = chance.choice(gang.members if chances.mortal else gang.members[1:])
            if chance.random() < chances.drained and pod.runs and pod.unheard is None:
                pod.told_to_stop = pod.drains = True
            elif chance.randrange(30 if chances.away is None else 5) == 0 and chances.trouble and pod.unheard is None:
                heard = gang.connected.get(pod.name) is pod and pod.name != gang.rounds.leader
                chance.choice([gang.lose, gang.cut_off if heard else gang.lose])(pod)
