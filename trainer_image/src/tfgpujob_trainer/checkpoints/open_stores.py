"""Opens the directories that a run writes to."""

from __future__ import annotations

import errno
import time
from pathlib import Path

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.checkpoints.completed import CompletionMark
from tfgpujob_trainer.checkpoints.directory import Owner
from tfgpujob_trainer.checkpoints.object_store import object_store
from tfgpujob_trainer.checkpoints.store import Store, store_at
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.reporting.log import say


def open_stores(output: Path, settings: TrainerConfig, env: Environment, peers: Peers) -> tuple[Store, Store]:
    """The stores of the newest checkpoints and of the best; logs it when the workers do not share the directory."""
    owner = Owner(job_uid=env.job_uid, attempt=env.attempt, replica_restart=env.replica_restart, round=env.round)
    remote = object_store(settings.output.store)
    store = store_at(output, remote, owner, keep=settings.checkpoint.keep)
    beside = None if settings.output.store is None else f"{settings.output.store.rstrip('/')}/best"
    best = store_at(output / "best", object_store(beside), owner, keep=1)
    if peers.is_chief:
        try:
            store.take_ownership()
            if settings.best.monitor is not None:
                best.take_ownership()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # a larger volume is the fix, not another
                raise
            raise ConfigError(
                f"cannot write to trainer.output.directory: {error}", "mount a volume there that this user may write to"
            ) from error
    if settings.output.store is None and not is_shared(output, peers):
        say(
            f"{output} is not shared by the workers: only {'this' if peers.is_chief else 'the first'} worker's "
            "directory holds checkpoints and the model; set trainer.output.claim to a shared volume to keep them"
        )
    CompletionMark(output).remove()
    return store, best


def is_shared(output: Path, peers: Peers) -> bool:
    """True if every worker sees a file that the chief writes."""
    token = peers.broadcast_from_chief(f".shared-{time.time_ns()}".encode()).decode()
    probe = output / "checkpoints" / token
    if peers.is_chief:
        probe.touch()
    peers.count(True)
    seen = peers.count(probe.exists())
    if peers.is_chief:
        probe.unlink()
    return seen == peers.workers
