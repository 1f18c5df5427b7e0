"""Reading continues at once after a dataset's last element: releasing tf.data's pipeline may take up to a minute."""

from __future__ import annotations

import threading

import pytest
from tests.machine import PATIENCE

from tfgpujob_trainer.data.sources.stream import elements


class SlowToEnd:
    """A dataset whose pipeline does not end before it is allowed to, as tf.data's may not."""

    def __init__(self):
        self.may_end, self.ended = threading.Event(), threading.Event()

    def as_numpy_iterator(self):
        dataset = self

        class Iterator:
            def __init__(self):
                self.numbers = iter(range(3))

            def __iter__(self):
                return self

            def __next__(self):
                return next(self.numbers)

            def __del__(self):
                if dataset.may_end.wait(PATIENCE):
                    dataset.ended.set()

        return Iterator()


@pytest.mark.parametrize("count", [2, 3, 4], ids=["left before its end", "all read", "end seen"])
def test_nobody_waits_for_the_end_of_a_pipeline(count):
    dataset = SlowToEnd()
    reading = elements(dataset)
    assert [next(reading, None) for _ in range(count)] == [0, 1, 2, None][:count]
    del reading
    assert not dataset.ended.is_set()
    dataset.may_end.set()
    assert dataset.ended.wait(PATIENCE)


def test_no_room_for_a_thread_is_no_error_of_the_data(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    dataset = SlowToEnd()
    dataset.may_end.set()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(elements(dataset)) == [0, 1, 2]
    assert dataset.ended.is_set()
