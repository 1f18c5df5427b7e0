"""How the members of a gang speak of its rounds: one connection from each member's pod to the leader's, JSON lines.

The leader is the first of `Environment.peers`; its rules are supervise/rounds.py. Under ParameterServer it is the
chief, and they are supervise/server_rounds.py. A member that is told to send its in-memory checkpoint says what it
sends, how long it is and, behind it, its SHA-256. Nothing else is taken from the network, and nothing at all before the
token of the job, which only its pods have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import Environment, Recovery
from tfgpujob_trainer.contract.resize import MAX_WORKERS, addresses
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Naming
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.server_leader import ServerLeader


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

    def restarts(self) -> int | None:
        """How many restarts in place are spent, where others may spend them while this pod's processes run."""


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

    def restarts(self) -> None:
        """There are none."""


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
    if env.is_asynchronous and recovery.leader is not None:
        return _of_servers(env, recovery, recovery.leader)
    if recovery.leader is None or (len(env.peers) <= processes and not recovery.resizable):
        return Leader([env.name], budget=recovery.budget, memory=memory, outside=env.is_asynchronous)
    members, (_, port) = env.worker_names[::processes], recovery.leader
    naming = Naming(env.worker_names[: env.chiefs : processes], processes) if recovery.resizable else None
    if env.name != members[0]:
        return Follower(
            env.name,
            recovery.leader,
            recovery.token,
            memory,
            naming,
            joins=env.joins,
            ready=ready,
            dispensable=recovery.least is not None,
            patient=recovery.spares > 0,
        )
    if naming is not None:
        try:
            addresses(env.peers[env.chiefs :], 1, processes)
        except ValueError as error:
            say(f"not resized in place: {error}")
            naming = None
    budget, token = recovery.budget, recovery.token
    try:
        return Leader(
            members,
            budget=budget,
            token=token,
            port=port,
            host=_host(env),
            memory=memory,
            naming=naming,
            least=recovery.least,
            spares=recovery.spares if naming is not None else 0,
        )
    except OSError as error:
        return _cannot_listen(port, error)


def _of_servers(env: Environment, recovery: Recovery, leader: tuple[str, int]) -> Member:
    """Under ParameterServer, where the chief's pod leads."""
    budget, token = recovery.budget, recovery.token
    if not env.is_chief:
        return Follower(env.name, leader, token, outlives=True, budget=budget)
    workers = [f"worker-{i}" for i in range(len(env.workers) if env.least_workers is None else MAX_WORKERS)]
    servers = [f"ps-{i}" for i in range(len(env.servers))]
    try:
        return ServerLeader(env.name, workers, servers, budget=budget, token=token, port=leader[1], host=_host(env))
    except OSError as error:
        return _cannot_listen(leader[1], error)


def _host(env: Environment) -> str:
    return "" if env.in_pod else "127.0.0.1"


def _cannot_listen(port: int, error: OSError) -> Alone:
    say(f"no restarts in place: port {port}: {error.strerror}")
    return Alone()
