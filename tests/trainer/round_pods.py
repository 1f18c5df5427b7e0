"""The pods of a story of a gang, and how often something happens to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise.commands import MemberState, Naming, Start

NOTICES_SECONDS = 10.0
"""After the leader, a member that is cut off notices it too."""
KILLED, PEER, RAISED, STOPPED = 137, 160, 1, 143
NAMING = Naming()


@dataclass(eq=False)
class Pod:
    """A member's, or one that is to become a member's."""

    name: str
    told: MemberState
    round: int
    """Round of its processes, whether they run or have ended."""
    runs: bool
    memory: MemoryFile = field(default_factory=MemoryFile.create)
    state: bytes = b""
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

    @property
    def speaks(self) -> bool:
        """Whether it has a leader that can hear it."""
        return self.unheard is None and not self.alone and not self.strange


@dataclass(frozen=True, kw_only=True)
class Chances:
    """How often something happens, by its share, and what may."""

    trouble: float
    """Something fails."""
    resized: float
    """Another number of workers is requested."""
    drained: float
    """A member's node is drained."""
    shared: bool
    """What the leader saves outlives its pod."""
    mortal: bool
    """The leader's pod may be lost."""
    full: bool
    """No new pod finds a node while failures are possible, and pods that are cut off are not deleted."""
    away: float | None = None
    """A leader is lost that leads some without others, which come back later. Meanwhile copies are rare."""


def members_of(start: Start) -> set[str]:
    """Members of the round that this starts, if the number of workers may change."""
    return set(NAMING.of(start.workers or 0)) - without(start)


def without(start: Start) -> set[str]:
    """Those that are absent in it."""
    return {NAMING.worker(index) for index in start.without}
