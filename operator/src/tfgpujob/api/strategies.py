"""One row for each strategy, with all its traits.

The rules (and their CEL), TF_CONFIG, the wait-for-peers init container, restart scope, success, GPU defaults and
`tfgpu explain` read it. A new strategy is a row here and a name in `Strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from tfgpujob.names import Role
from tfgpujob_contract.strategies import Strategy


class Cluster(Enum):
    """What TF_CONFIG's cluster shows a task. An evaluator always sees only itself."""

    NONE = auto()
    """No TF_CONFIG: there are no other tasks."""
    FULL = auto()
    """All tasks but the evaluator, the same for all."""
    SPARSE = auto()
    """For workers that join and leave: a worker sees itself and every ps, a ps itself, the chief all of them."""


class Restart(Enum):
    """What restarts when a replica fails and restartScope is Auto or Replica; Gang is always the gang."""

    GANG = auto()
    REPLICA = auto()
    BY_RESTART_SCOPE = auto()
    """The gang, and with restartScope Replica the replica alone."""


class Work(Enum):
    """How replicas share the training."""

    SYNCHRONOUS = auto()
    """One all-reduce a step: each replica computes a part of the global batch."""
    PARAMETER_SERVERS = auto()
    """Workers compute whole batches, each at its own pace; the variables are on parameter servers."""
    OWN_PROGRAM = auto()
    """Unknown to the operator: the user's program decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    work: Work
    one_worker: bool = False
    """Exactly one worker, and no chief: one process has all the GPUs of its pod."""
    needs: frozenset[Role] = frozenset()
    """Roles with at least one replica."""
    refuses: frozenset[Role] = frozenset()
    """Roles that are not allowed."""
    adds_chief: bool = False
    """A job without a chief gets one, as coordinator."""
    cluster: Cluster
    waits_for: Mapping[Role, tuple[Role, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By role: the roles whose host names must resolve before it may connect. The bundled trainer waits for them by
    itself; other programs have a wait-for-peers init container."""
    restart: Restart
    runs_on_without: frozenset[Role] = frozenset()
    """Roles of which a replica may restart while the job continues and stays Running."""
    ends_together: bool = False
    """All tasks end together, so that success waits a moment for stragglers."""
    no_gpus: frozenset[Role] = frozenset({Role.PS})
    """Roles whose pods get no GPUs unless they request them."""
    trainer_trains: bool = True
    """The bundled trainer can train under it."""
    trainer_predicts: bool = False
    """trainer.mode predict is possible under it."""
    resizable: bool = False
    """The bundled trainer can continue from a checkpoint with another number of workers."""
    workers_come_and_go: bool = False
    """Its chief also admits workers, and lets them leave, while the others train."""
    several_processes: bool = False
    """The bundled trainer may start several processes in a pod (gpu.processesPerGpu)."""
    placement: bool = False
    """The bundled trainer may place layers on GPUs (trainer.placement)."""
    communications: tuple[str, ...] = ()
    """Values of trainer.communication, besides Auto, that the bundled trainer supports. Empty: the strategy restricts
    none."""
    advice: str = ""
    """The sentence of `tfgpu explain` about when it suits; empty: it depends on the devices."""


_COLLECTIVE: Final = (Role.CHIEF, Role.WORKER)

TRAITS: Final[Mapping[Strategy, Traits]] = MappingProxyType(
    {
        Strategy.ONE_DEVICE: Traits(
            work=Work.SYNCHRONOUS,
            one_worker=True,
            refuses=frozenset({Role.CHIEF, Role.PS}),
            cluster=Cluster.NONE,
            restart=Restart.GANG,
            trainer_predicts=True,
            placement=True,
        ),
        Strategy.MIRRORED: Traits(
            work=Work.SYNCHRONOUS,
            one_worker=True,
            refuses=frozenset({Role.CHIEF, Role.PS}),
            cluster=Cluster.NONE,
            restart=Restart.GANG,
            trainer_predicts=True,
            communications=("NCCL", "HierarchicalCopy"),
        ),
        Strategy.MULTI_WORKER_MIRRORED: Traits(
            work=Work.SYNCHRONOUS,
            needs=frozenset({Role.WORKER}),
            refuses=frozenset({Role.PS}),
            cluster=Cluster.FULL,
            waits_for=MappingProxyType(dict.fromkeys(_COLLECTIVE, _COLLECTIVE)),
            restart=Restart.GANG,
            ends_together=True,
            resizable=True,
            several_processes=True,
            communications=("Ring", "NCCL"),
        ),
        Strategy.PARAMETER_SERVER: Traits(
            work=Work.PARAMETER_SERVERS,
            needs=frozenset({Role.WORKER, Role.PS}),
            adds_chief=True,
            cluster=Cluster.SPARSE,
            waits_for=MappingProxyType({Role.CHIEF: (Role.WORKER, Role.PS)}),
            restart=Restart.REPLICA,
            runs_on_without=frozenset({Role.WORKER}),
            resizable=True,
            workers_come_and_go=True,
            no_gpus=frozenset({Role.PS, Role.CHIEF}),
            advice="ParameterServer suits workers that come and go, and embeddings too large for one GPU. Elsewhere "
            "MultiWorkerMirrored takes each example exactly once an epoch, and needs no ps.",
        ),
        Strategy.CUSTOM: Traits(
            work=Work.OWN_PROGRAM,
            cluster=Cluster.FULL,
            restart=Restart.BY_RESTART_SCOPE,
            trainer_trains=False,
            trainer_predicts=True,
            advice="Custom leaves it to the program, which finds TF_CONFIG in its environment.",
        ),
    }
)


def having(trait: Callable[[Traits], bool]) -> tuple[Strategy, ...]:
    """The strategies that have the trait, in the order of `Strategy`."""
    return tuple(strategy for strategy in Strategy if trait(TRAITS[strategy]))


def listed(strategies: tuple[Strategy, ...], conjunction: str) -> str:
    """`A`, `A or B`, `A, B or C`."""
    *most, last = strategies
    return f"{', '.join(most)} {conjunction} {last}" if most else str(last)
