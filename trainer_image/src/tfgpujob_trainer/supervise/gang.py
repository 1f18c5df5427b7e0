"""How the members of a gang speak of its rounds: one connection from each member's pod to the leader's, JSON lines.

The leader is the first of `Environment.peers`; its rules are supervise/rounds.py. A member that is told to send its
in-memory checkpoint says what it sends, how long it is and, behind it, its SHA-256. Nothing else is taken from the
network, and nothing at all before the token of the job, which only its pods have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.resize import addresses
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Naming
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader


class Member(Protocol):
    """What the launcher of one pod asks."""

    speaks: bool
    """Whether there are rounds at all."""

    def ended(self, round_: int, end: End) -> None:
        """Say that the processes of this pod have ended."""

    def command(self, round_: int) -> Command | None:
        """The last command to all members that counts for processes of this round."""

    def resize(self, workers: int) -> None:
        """Somebody who may has asked for so many workers."""

    def gang(self) -> dict[str, Any] | None:
        """What is said of the gang where the number of its workers may change, by its leader."""


class Alone:
    """Without rounds: each end is the pod's."""

    speaks = False

    def ended(self, round_: int, end: End) -> None:
        """Nobody has to know."""

    def command(self, round_: int) -> Command | None:  # noqa: ARG002
        """Never another round."""
        return GiveUp("off")

    def resize(self, workers: int) -> None:
        """It can't be."""

    def gang(self) -> None:
        """There is none."""


def member(
    env: Environment,
    processes: int,
    memory: MemoryFile | None = None,
    *,
    ready: Callable[[], None] = lambda: None,
) -> Member:
    """The member that a pod with so many training processes is, by the environment of its first.

    `memory` is where that one keeps its in-memory checkpoints; who joins waits until `ready` returns.
    """
    recovery = env.recovery
    if recovery is None:
        return Alone()
    if recovery.leader is None or (len(env.peers) <= processes and not recovery.resizable):
        return Leader([env.name], budget=recovery.budget, memory=memory, outside=env.is_asynchronous)
    members, (_, port) = env.worker_names[::processes], recovery.leader
    naming = Naming(env.worker_names[: env.chiefs : processes], processes) if recovery.resizable else None
    if env.name != members[0]:
        return Follower(env.name, recovery.leader, recovery.token, memory, naming, joins=env.joins, ready=ready)
    if naming is not None:
        try:
            addresses(env.peers[env.chiefs :], 1, processes)
        except ValueError as error:
            say(f"not resized in place: {error}")
            naming = None
    host = "" if env.in_pod else "127.0.0.1"
    budget, token = recovery.budget, recovery.token
    try:
        return Leader(members, budget=budget, token=token, port=port, host=host, memory=memory, naming=naming)
    except OSError as error:
        say(f"no restarts in place: port {port}: {error.strerror}")
        return Alone()
