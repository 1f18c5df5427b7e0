"""How the members of a gang agree on rounds: one connection from each member's pod to the leader's, with JSON lines.

The leader is the first of `Environment.peers`; supervise/rounds.py has its rules. Under ParameterServer it is the
chief, with the rules of supervise/server_rounds.py. A member that sends its in-memory checkpoint announces its length,
and appends its SHA-256. Nothing else is accepted from the network, and nothing before the job's token, which only its
pods have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_contract.variables import Variable
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract import environment
from tfgpujob_trainer.contract.environment import Environment, Recovery
from tfgpujob_trainer.contract.resize import addresses, resized, tasks
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise.commands import Naming, Start
from tfgpujob_trainer.supervise.follower import Follower
from tfgpujob_trainer.supervise.leader import Leader
from tfgpujob_trainer.supervise.member import Member
from tfgpujob_trainer.supervise.server_leader import ServerLeader


def member(
    env: Environment,
    processes: int,
    memory: MemoryFile | None = None,
    *,
    ready: Callable[[], None] = lambda: None,
) -> Member:
    """The member for a pod with this many training processes, by the environment of the first.

    `memory` has the first process's in-memory checkpoints; a member that joins waits until `ready` returns.
    """
    recovery = env.recovery
    if recovery is None:
        return Member()
    if recovery.leader is None or (len(env.peers) <= processes and not (recovery.resizable or env.is_asynchronous)):
        return Leader([env.name], budget=recovery.budget, memory=memory, outside=env.is_asynchronous)
    try:
        return _of_servers(env, recovery) if env.is_asynchronous else _of_gang(env, recovery, processes, memory, ready)
    except OSError as error:
        say(f"no restarts in place: port {recovery.leader[1]}: {error.strerror}")
        return Member()


def _of_gang(
    env: Environment, recovery: Recovery, processes: int, memory: MemoryFile | None, ready: Callable[[], None]
) -> Member:
    """Under MultiWorkerMirrored; raises OSError if the leader's port is in use."""
    members = env.worker_names[::processes]
    assert recovery.leader is not None
    naming = Naming(env.worker_names[: env.chiefs : processes], processes) if recovery.resizable else None
    if env.name != members[0]:
        restart = env.replica_restart if naming is not None else None
        return Follower(
            env.name, recovery.leader, recovery.token, memory, naming, joins=env.joins, ready=ready, restart=restart
        )
    if naming is not None:
        try:
            addresses(env.peers[env.chiefs :], 1, processes)
        except ValueError:  # as on one machine, where no pod comes or goes
            naming = None
    return Leader(
        members,
        budget=recovery.budget,
        token=recovery.token,
        port=recovery.leader[1],
        host=_host(env),
        memory=memory,
        naming=naming,
        least=recovery.least,
        spares=recovery.spares if naming is not None else 0,
        term=env.replica_restart if env.joins else None,
    )


def _of_servers(env: Environment, recovery: Recovery) -> Member:
    """Under ParameterServer, with the chief's pod as leader; raises OSError if its port is in use."""
    budget, token, leader = recovery.budget, recovery.token, recovery.leader
    assert leader is not None
    if not env.is_chief:
        return Follower(env.name, leader, token, outlives=True, budget=budget)
    workers = [f"worker-{i}" for i in range(len(env.workers) if env.least_workers is None else MAX_REPLICAS)]
    servers = [f"ps-{i}" for i in range(len(env.servers))]
    return ServerLeader(env.name, workers, servers, budget=budget, token=token, port=leader[1], host=_host(env))


def _host(env: Environment) -> str:
    return "" if env.in_pod else "127.0.0.1"


def in_round(own: Mapping[str, str], now: Start, processes: int, restarts: int | None) -> dict[str, str]:
    """The environment of a training process in a round, from its own, which is that of round 0. `processes`: in each
    pod; `restarts`: of all pods, if they are not the round's."""
    told = dict(own)
    if now.round:
        times = now.restarts if restarts is None else restarts
        told |= {environment.ROUND: str(now.round), environment.IN_PLACE_RESTARTS: str(times)}
    if now.workers is not None:
        told["TF_CONFIG"] = resized(own["TF_CONFIG"], now.workers, processes, now.without)
        told[environment.WITHOUT] = ",".join(str(task) for task in tasks(now.without, processes))
        # TF_CONFIG's index no longer identifies the pod.
        told[Variable.REPLICA_INDEX] = str(environment.read(own).index)
    return told
