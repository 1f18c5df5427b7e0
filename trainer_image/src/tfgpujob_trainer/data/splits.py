"""Reads what the user's `data(split)` returns, and checks that all splits and all workers are consistent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfgpujob_contract import phases
from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.cluster.peers import Peers
from tfgpujob_trainer.contract.config import batch_size
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.data.schedule import Schedule
from tfgpujob_trainer.data.sources import Source, source
from tfgpujob_trainer.data.sources.read import TRAIN
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say


class ModuleRows:
    """The rows of each split of a module's data(split)."""

    def __init__(self, settings: TrainerConfig, module: Entrypoint, heartbeat: Heartbeat) -> None:
        self._settings, self._module, self._heartbeat = settings, module, heartbeat
        self._train: Source | None = None

    def __call__(self, split: str) -> Source | None:
        """The rows of `train`, or of a split to evaluate on: None, with a log line, if data() has no such split.

        Raises ConfigError if the arrays of a split are not like those of the training data.
        """
        if split == TRAIN:
            self._train = self.read(split, self._module.data(split))
            return self._train
        try:
            value = self._module.data(split)
        except Exception as error:  # noqa: BLE001 (a module need not know every split)
            say(f"no {split} split: data({split!r}) raised {type(error).__name__}: {error}")
            return None
        found = None if value is None else self.read(split, value)
        if found is not None and self._train is not None and found.signature() != self._train.signature():
            raise ConfigError(
                f"data({split!r}) has rows of {', '.join(found.signature())}, "
                f"data('train') of {', '.join(self._train.signature())}",
                "return the same types and shapes for every split",
            )
        return found

    def read(self, split: str, value: Any) -> Source:
        """The source of rows behind what data(split) returned."""
        found = source(
            value,
            split,
            self._settings.data,
            global_batch_size=batch_size(self._settings),
            reopen=lambda: self._module.data(split),
            beat=lambda: self._heartbeat.beat(phases.CACHING),
        )
        self._heartbeat.beat(phases.STARTING)
        return found


def make_schedule(
    settings: TrainerConfig, data: Source, replicas: int, accumulate: int, *, field: str = "trainer.globalBatchSize"
) -> Schedule:
    """Which rows make up each global batch; raises ConfigError if they cannot be split over the replicas.

    `field` is what gives the size of a batch.
    """
    size = batch_size(settings)
    for name, rows in (("the number of rows to train on", data.rows), (field, size)):
        if rows < replicas:
            raise ConfigError(f"{name} is {rows} for {replicas} replicas", "each replica needs at least one row a step")
    if size < replicas * accumulate:
        raise ConfigError(
            f"{field} is {size} for {replicas} replicas × {accumulate} micro-batches",
            f"each micro-batch needs at least one row: raise {field} or lower accumulate",
        )
    return Schedule(
        rows=data.rows,
        global_batch_size=size,
        replicas=replicas,
        seed=settings.seed,
        remainder=settings.remainder or "step",
        accumulate=accumulate,
        permute=data.permute,
        epochs=settings.epochs,
    )


def agree_on_data(splits: Mapping[str, Source | None], peers: Peers) -> None:
    """Raise ConfigError on every worker unless all read the same rows of each split, in number and at their head.

    `splits` are by their names in errors.
    """
    if peers.workers == 1:
        return
    mine = {name: [0, ""] if data is None else [data.rows, data.fingerprint()] for name, data in splits.items()}
    found = peers.differing(json.dumps(mine))
    if not found:
        return
    peers.barrier_before_exit()
    workers = [json.loads(text) for text in found]
    name = next(name for name in mine if any(one[name] != workers[0][name] for one in workers))
    here, chief = mine[name], workers[0][name]
    if here == chief:
        what = f"another worker's {name} differs from this one's; see that worker's log"
    elif here[0] != chief[0]:
        what = f"{name} has {here[0]} rows here and {chief[0]} on the first worker"
    else:
        what = f"{name} gives other rows here than on the first worker"
    raise ConfigError(what, "let it give the same rows everywhere: sort files, seed every random generator")
