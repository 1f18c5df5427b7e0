"""The model and rows of a module for Keras' own fit(), in the order in which the trainer's own loop reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.tree import lists_to_tuples

from tfgpujob_contract.trainer_config import TrainerConfig
from tfgpujob_trainer.contract.entrypoint import Entrypoint
from tfgpujob_trainer.data.feed import Feed
from tfgpujob_trainer.data.schedule import Schedule, evaluation_schedule
from tfgpujob_trainer.data.sources import Source
from tfgpujob_trainer.data.splits import ModuleRows, make_schedule
from tfgpujob_trainer.reporting.heartbeat import Heartbeat
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.script.callbacks import listed
from tfgpujob_trainer.train.build import check_precision


def arguments(
    settings: TrainerConfig, module: Entrypoint, heartbeat: Heartbeat
) -> tuple[keras.Model, dict[str, Any], tf.data.Dataset | None]:
    """The model, the arguments of its fit(), and its `test` split. Each process reads all rows of each batch."""
    rows = ModuleRows(settings, module, heartbeat)
    data = rows("train")
    assert data is not None
    for note in data.notes:
        say(note)
    model = module.model()
    check_precision(settings, model)
    schedule = make_schedule(settings, data, 1, 1)
    train, every = _Batches(data, schedule, settings.data.parallel_reads), settings.evaluate.every_epochs
    validation, test = None if every is None else rows("validation"), rows("test")

    def evaluated(found: Source | None) -> tf.data.Dataset | None:
        return None if found is None else _Batches(found, evaluation_schedule(schedule, found)).dataset()

    given = {
        "x": train.dataset(),
        "epochs": settings.epochs,
        "validation_data": evaluated(validation),
        "validation_freq": every or 1,
        "class_weight": {int(name): weight for name, weight in (settings.class_weights or {}).items()} or None,
        "callbacks": [train, *listed(module.callbacks())],
    }
    return model, given, evaluated(test)


class _Batches(keras.callbacks.Callback):
    """The batches of one epoch after the other, from the one that fit() begins with; of an evaluation, always those of
    the first.
    """

    def __init__(self, data: Source, schedule: Schedule, parallel_reads: int = 2) -> None:
        super().__init__()
        self._data, self._schedule, self._reads = data, schedule, parallel_reads
        self._feed: Feed | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Read from here on."""
        self._feed = self._feed or self._read_from(epoch)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Read no more."""
        if self._feed is not None:
            self._feed.close()

    def dataset(self) -> tf.data.Dataset:
        """One epoch, with the next rows each time that it is read."""
        specs = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), self._data.example())
        found = tf.data.Dataset.from_generator(self._epoch, output_signature=lists_to_tuples(specs))
        return found.apply(tf.data.experimental.assert_cardinality(self._schedule.steps_per_epoch))

    def _read_from(self, epoch: int) -> Feed:
        return Feed(self._data, self._schedule, 0, 1, (epoch, 0), parallel_reads=self._reads)

    def _epoch(self) -> Iterator[Any]:
        feed = self._feed or self._read_from(0)
        for _ in range(self._schedule.steps_per_epoch):
            yield lists_to_tuples(feed.next().replicas[0])
        if feed is not self._feed:
            feed.close()
