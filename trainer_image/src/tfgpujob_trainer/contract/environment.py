"""The trainer's settings in environment variables of the pod. Does not import TensorFlow.

All are optional: without them the trainer runs as one worker from a shell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfgpujob_contract.pod import CODE_DIR, PROGRESS_PORT
from tfgpujob_contract.strategies import STRATEGIES, Strategy, Traits, strategy_of, traits
from tfgpujob_contract.variables import LocalVariable, Variable
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean

CODE_DIRECTORY = Path(CODE_DIR)
"""Folder of the code in a pod; a local run uses another one."""
_BACKEND = "tensorflow"
ROUND = "TFGPU_ROUND"
IN_PLACE_RESTARTS = "TFGPU_IN_PLACE_RESTARTS"
WITHOUT = "TFGPU_WITHOUT"
"""The supervisor sets these three, not the operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """`TFGPU_RECOVERY=InPlace`, and what the gang needs for it."""

    budget: int
    """Restarts in place that are left in this attempt."""
    leader: tuple[str, int] | None = None
    """Host and port of the leader, under ParameterServer the chief; None for a single pod."""
    token: str = field(default="", repr=False)
    resizable: bool = False
    """Whether the number of workers may change from round to round."""
    least: int | None = None
    """The fewest worker pods that continue when others have left; None: all are needed."""
    spares: int = 0
    """Worker pods in addition to those of a round; one of them replaces a pod that has left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The task of this process and the limits of its GPUs."""

    strategy: str = Strategy.ONE_DEVICE
    job: str = "local"
    namespace: str = ""
    job_uid: str = ""
    role: str = "worker"
    index: int = 0
    attempt: int = 1
    replica_restart: int = 0
    replicas: int = 1
    """Workers that share the rows of mode predict."""
    shared_parts: bool = False
    """Whether they join and leave, and each takes the next part that no other has."""
    gpus: int | None = None
    processes_per_gpu: int = 1
    """Processes that share the GPU of this process."""
    memory_growth: bool = True
    memory_limit_mib: int | None = None
    peers: tuple[str, ...] = ()
    """The tasks that train in step with this one, including it."""
    chiefs: int = 0
    workers: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    """Under ParameterServer, the workers and parameter servers in this task's TF_CONFIG."""
    chief_addresses: tuple[str, ...] = ()
    """Under ParameterServer, the chief in it."""
    least_workers: int | None = None
    """For a chief whose workers join and leave under ParameterServer: the fewest with which it starts. None: it has
    exactly those of TF_CONFIG."""
    code_directory: Path = CODE_DIRECTORY
    files_directory: Path | None = None
    """Where a local run lets a replica but the first run a script. None: in the folder of the code, or as in a pod."""
    progress_port: int = 0
    progress_token: str = field(default="", repr=False)
    """Required by GET /progress; empty: not required."""
    recovery: Recovery | None = None
    """Whether and how processes are started again in their pods."""
    joins: bool = False
    """Whether this pod joins a gang that is training."""
    round: int = 0
    """How often the gang's processes were restarted in this attempt."""
    in_place_restarts: int = 0
    """How many of these followed a failure."""
    without: tuple[int, ...] = ()
    """Indexes of workers that are missing from `peers` between others."""
    start_seconds: int | None = None
    """How long the pods of the job may take to start; None: the operator has not started this one."""
    reached_step: int = 0
    """The highest step that earlier attempts are known to have completed: steps up to it are repetitions."""

    @property
    def in_pod(self) -> bool:
        """True if the operator started this process, False in a shell."""
        return bool(self.job_uid)

    @property
    def is_chief(self) -> bool:
        """True if this process writes checkpoints and the model: the chief, or else worker 0."""
        if self.is_asynchronous:
            return self.role == "chief"
        return not self.is_evaluator and self.position == 0

    @property
    def traits(self) -> Traits:
        """The strategy's traits for this task."""
        return traits(self.strategy)

    @property
    def is_asynchronous(self) -> bool:
        """True if a chief dispatches the steps and the variables are on parameter servers."""
        return self.traits.asynchronous

    @property
    def serves(self) -> bool:
        """True for a worker or a parameter server that serves a chief."""
        return self.is_asynchronous and not self.is_chief

    @property
    def has_peers(self) -> bool:
        """True if the end of another task can be the cause of this one's."""
        return len(self.peers) > 1 or self.is_asynchronous

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The tasks whose names must resolve before the strategy is built. Building the strategy of workers that join
        and leave waits for them."""
        workers = self.workers if self.least_workers is None else ()
        return (*self.peers, *workers, *self.servers)

    @property
    def on_one_machine(self) -> bool:
        """True if all tasks that train have the same host, as in a local run or several processes of a pod."""
        return len({address.rpartition(":")[0] for address in self.peers}) <= 1

    @property
    def is_evaluator(self) -> bool:
        """True if this process evaluates the checkpoints of a training run."""
        return self.role == "evaluator"

    @property
    def position(self) -> int:
        """The index of this task in `peers`."""
        if self.role == "chief":
            return self.index
        return self.chiefs + self.index - sum(absent < self.index for absent in self.without)

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The names of all tasks that train, in the order of `peers`; without peers this task's."""
        if not self.peers:
            return (self.name,)
        workers = len(self.peers) - self.chiefs + len(self.without)
        present = (f"worker-{i}" for i in range(workers) if i not in self.without)
        return (*(f"chief-{i}" for i in range(self.chiefs)), *present)

    @property
    def name(self) -> str:
        """`worker-1`, as in log lines."""
        return f"{self.role}-{self.index}"


def read(env: Mapping[str, str]) -> Environment:
    """Raises ConfigError with the name of an invalid variable."""
    if (backend := env.get("KERAS_BACKEND") or _BACKEND) != _BACKEND:
        raise ConfigError(f"KERAS_BACKEND is {backend}", f"remove it: the trainer computes with {_BACKEND}")
    cluster, role, index = _tf_config(env.get("TF_CONFIG", ""))
    role = env.get(Variable.REPLICA_TYPE) or role
    by_cluster = strategy_of(has_servers="ps" in cluster) if cluster else Strategy.ONE_DEVICE
    strategy = env.get(Variable.STRATEGY) or by_cluster
    if role == "evaluator":
        # An evaluator is not in the training cluster: it has only its own devices.
        alone = strategy in STRATEGIES and not traits(strategy).clustered
        cluster, strategy = {}, strategy if alone else Strategy.ONE_DEVICE
    replicas = _integer(env, Variable.REPLICAS, None, 1)
    if strategy != Strategy.CUSTOM or replicas is None:  # only mode predict runs under Custom, and its replicas are set
        _check_strategy(strategy, clustered=bool(cluster))
    growth, limit = env.get(Variable.GPU_MEMORY_GROWTH, ""), _integer(env, Variable.GPU_MEMORY_LIMIT_MIB, None, 1)
    if growth.lower() == "true" and limit is not None:
        raise ConfigError(
            "TFGPU_GPU_MEMORY_GROWTH is true and TFGPU_GPU_MEMORY_LIMIT_MIB is set",
            "keep one of them: TensorFlow refuses a limit on memory that grows",
        )
    asynchronous = traits(strategy).asynchronous
    peers = () if asynchronous else tuple(a for task in ("chief", "worker") for a in cluster.get(task, []))
    port = PROGRESS_PORT if env.get(Variable.JOB_UID) else 0
    return Environment(
        strategy=strategy,
        job=env.get(Variable.JOB, "local"),
        namespace=env.get(Variable.NAMESPACE, ""),
        job_uid=env.get(Variable.JOB_UID, ""),
        role=role,
        index=_integer(env, Variable.REPLICA_INDEX, index, 0) or 0,
        attempt=_integer(env, Variable.ATTEMPT, 1, 1) or 1,
        replica_restart=_integer(env, Variable.REPLICA_RESTART, 0, 0) or 0,
        replicas=replicas or 1,
        shared_parts=env.get(Variable.SHARED_PARTS) == "1",
        gpus=_integer(env, Variable.GPUS, None, 0),
        processes_per_gpu=_integer(env, Variable.PROCESSES_PER_GPU, 1, 1) or 1,
        memory_growth=growth.lower() != "false" and limit is None,
        memory_limit_mib=limit,
        peers=peers,
        chiefs=len(cluster.get("chief", [])),
        workers=tuple(cluster.get("worker", [])) if asynchronous else (),
        servers=tuple(cluster.get("ps", [])) if asynchronous else (),
        chief_addresses=tuple(cluster.get("chief", [])) if asynchronous else (),
        least_workers=_integer(env, Variable.WORKERS_MIN, None, 1) if asynchronous and role == "chief" else None,
        code_directory=Path(env.get(LocalVariable.CODE_DIR, CODE_DIRECTORY)),
        files_directory=Path(env[LocalVariable.FILES_DIR]) if LocalVariable.FILES_DIR in env else None,
        progress_port=_integer(env, LocalVariable.PROGRESS_PORT, port, 0) or 0,
        progress_token=env.get(Variable.PROGRESS_TOKEN, ""),
        recovery=_recovery(env, peers=len(peers), serves=asynchronous and role != "chief", asynchronous=asynchronous),
        joins=env.get(Variable.RECOVERY_JOINS) == "1",
        round=_integer(env, ROUND, 0, 0) or 0,
        in_place_restarts=_integer(env, IN_PLACE_RESTARTS, 0, 0) or 0,
        without=tuple(int(index) for index in env.get(WITHOUT, "").split(",") if index),
        start_seconds=_integer(env, Variable.START_DEADLINE_SECONDS, None, 1),
        reached_step=_integer(env, Variable.REACHED_STEP, 0, 0) or 0,
    )


def _recovery(env: Mapping[str, str], *, peers: int, asynchronous: bool, serves: bool) -> Recovery | None:
    if env.get(Variable.RECOVERY, "Pods") == "Pods":
        return None
    if env[Variable.RECOVERY] != "InPlace":
        raise ConfigError(f"TFGPU_RECOVERY is {env['TFGPU_RECOVERY']!r}", "known: InPlace, Pods")
    budget = _integer(env, Variable.RECOVERY_BUDGET, 6, 0) or 0
    resizable = env.get(Variable.RECOVERY_RESIZE) == "1"
    if peers <= (0 if resizable else 1) and not asynchronous:
        return Recovery(budget=budget)
    host, _, port = env.get(Variable.RECOVERY_LEADER, "").rpartition(":")
    token = env.get(Variable.RECOVERY_TOKEN, "")
    if not (host and port.isdigit() and token):
        # Without a leader the pods can't agree, and each failure ends the pod; a chief needs no leader.
        return Recovery(budget=budget) if asynchronous and not serves else None
    least = _integer(env, Variable.RECOVERY_LEAST, None, 1)
    # Without them a round must know how many are enough.
    spares = (_integer(env, Variable.RECOVERY_SPARES, 0, 0) or 0) if resizable and least is not None else 0
    return Recovery(
        budget=budget, leader=(host, int(port)), token=token, resizable=resizable, least=least, spares=spares
    )


def processes(env: Mapping[str, str]) -> list[dict[str, str]]:
    """The environment of each training process of this pod; it is the pod's own if there is only one.

    With `TFGPU_PROCESSES_PER_GPU`, P = GPUs × processes: process k is task i·P + k, where i is the pod's own index, and
    sees one GPU. Raises ConfigError naming the variable.
    """
    each = _integer(env, Variable.PROCESSES_PER_GPU, None, 1)
    count = (_integer(env, Variable.GPUS, 1, 0) or 0) * each if each else 1
    if each and not count:
        raise ConfigError(
            f"{Variable.PROCESSES_PER_GPU} is {each}, and there is no GPU",
            "remove spec.gpu.processesPerGpu to run here",
        )
    if count <= 1:
        return [dict(env)]
    read(env)  # checks TF_CONFIG
    visible = env["CUDA_VISIBLE_DEVICES"].split(",") if "CUDA_VISIBLE_DEVICES" in env else None
    first = (_integer(env, Variable.REPLICA_INDEX, 0, 0) or 0) * count
    replicas = _integer(env, Variable.REPLICAS, None, 1)
    found = []
    for k in range(count):
        gpu = k // (each or 1)
        own = {
            Variable.GPUS: "1",
            Variable.REPLICA_INDEX: str(first + k),
            "CUDA_VISIBLE_DEVICES": str(gpu) if visible is None else ",".join(visible[gpu : gpu + 1]),
        }
        if env.get("TF_CONFIG"):
            config = json.loads(env["TF_CONFIG"])
            own["TF_CONFIG"] = json.dumps({**config, "task": {**config["task"], "index": first + k}})
        if replicas is not None:
            own[Variable.REPLICAS] = str(replicas * count)
        if k:
            own[LocalVariable.PROGRESS_PORT] = "0"
        found.append({**env, **own})
    return found


def _check_strategy(strategy: str, *, clustered: bool) -> None:
    if strategy == Strategy.CUSTOM:
        raise ConfigError(
            "TFGPU_STRATEGY=Custom is not run by this version of the trainer",
            "remove spec.trainer and run your own script, or use MultiWorkerMirrored",
        )
    if strategy not in STRATEGIES:
        raise ConfigError(f"TFGPU_STRATEGY is {strategy!r}", did_you_mean(strategy, [*map(str, STRATEGIES)]))
    if traits(strategy).clustered and not clustered:
        raise ConfigError(f"TFGPU_STRATEGY={strategy} without TF_CONFIG", "set TF_CONFIG, or use Mirrored or OneDevice")


def _tf_config(text: str) -> tuple[dict[str, list[str]], str, int]:
    if not text:
        return {}, "worker", 0
    try:
        config = json.loads(text)
        tasks = config.get("cluster", {})
        cluster = {role: _addresses(of_role) for role, of_role in tasks.items()}
        task = config.get("task", {})
        role, index = str(task.get("type", "worker")), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG cannot be read: {error}") from error
    _check_addresses([address for addresses in cluster.values() for address in addresses])
    mine = tasks.get(role, ())
    if cluster and not (str(index) in mine if isinstance(mine, Mapping) else index < len(mine)):
        raise ConfigError(
            f"TF_CONFIG is of {role}-{index}, and its cluster names {len(mine)} of role {role}",
            "name every task in every TF_CONFIG, in the same order",
        )
    return cluster, role, index


def _check_addresses(addresses: Sequence[str]) -> None:
    twice = next((address for address in addresses if addresses.count(address) > 1), None)
    if twice is not None:
        raise ConfigError(f"TF_CONFIG names {twice} for two tasks", "give each task a port of its own")


def _addresses(tasks: Any) -> list[str]:
    """The addresses in a list, or in the mapping by index that a worker under ParameterServer has."""
    return list(tasks.values() if isinstance(tasks, Mapping) else tasks)


def _integer(env: Mapping[str, str], name: str, default: int | None, least: int) -> int | None:
    text = env.get(name, "")
    if not text:
        return default
    if not text.isdigit() or int(text) < least:
        raise ConfigError(f"{name} is {text!r}", f"it must be a whole number of at least {least}")
    return int(text)
