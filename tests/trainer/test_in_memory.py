"""In-memory checkpoints: complete whenever their writer is killed, cheap, and bit-equal to the state that training
continues from.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from typing import Any

import keras
import pytest
from tests.trainer.cases import CE, labels, rows
from tests.trainer.harness import until
from tests.trainer.inprocess import train_here

from tfgpujob_trainer.checkpoints import in_memory
from tfgpujob_trainer.checkpoints.memory_file import FD_VARIABLE, MemoryFile
from tfgpujob_trainer.checkpoints.pace import SHARE, Pace
from tfgpujob_trainer.machine import usage
from tfgpujob_trainer.model.variables import values_digest

WRITER = """
import sys
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
file, step = MemoryFile(int(sys.argv[1])), 0
while True:
    step += 1
    file.write(step, [step.to_bytes(8)] * 4096)
"""


@pytest.fixture
def memory():
    file = MemoryFile.create()
    yield file
    file.close()


def content(memory: MemoryFile) -> bytes:
    copy = memory.newest()
    assert copy is not None
    return b"".join(memory.chunks(copy))


def test_of_two_copies_the_newer_counts_and_the_older_is_written(memory):
    assert memory.newest() is None
    for step in (1, 2, 3):
        memory.write(step, [b"step", str(step).encode()])
    assert content(memory) == b"step3"
    memory.keep(2)
    assert content(memory) == b"step2"
    memory.keep(None)
    assert memory.newest() is None


def test_one_is_whole_whenever_the_writer_is_killed(memory):
    chance, last = random.Random(1), 0
    for _ in range(5):
        memory.keep(None)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(memory.descriptor)], pass_fds=[memory.descriptor])
        wanted = chance.randrange(2, 200)
        until(lambda: (copy := memory.newest()) is not None and copy.step >= wanted)  # noqa: B023 (called at once)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        copy = memory.newest()
        assert copy is not None
        assert content(memory) == copy.step.to_bytes(8) * 4096
        last = max(last, copy.step)
    assert last > 2


@pytest.mark.parametrize(("cost", "step", "copies"), [(0.001, 0.2, 500), (0.005, 0.2, 166), (0.001, 0.002, 11)])
def test_a_copy_costs_a_hundredth_of_the_time(cost, step, copies):
    pace, now, made = Pace(), 0.0, 0
    for _ in range(500):
        due = pace.begin_step(now)
        now += step
        if due:
            # Once the machine is busy elsewhere; that does not rule out the next ones.
            pace.copied(now, now + (cost if made != 5 else 100 * cost))
            now, made = now + cost, made + 1
    assert made in range(copies - 2, copies + 3)
    assert made * cost <= SHARE * now + 2 * cost


def test_copies_of_steps_that_are_shorter_than_expected_are_made_up_for():
    pace, now, spent, made = Pace(), 0.0, 0.0, 0
    for number in range(3000):
        due = pace.begin_step(now)
        now += 0.2 if number % 3 < 2 else 0.001
        if due:
            pace.copied(now, now + 0.002)
            now, spent, made = now + 0.002, spent + 0.002, made + 1
    assert made > 1900
    assert spent <= SHARE * now + 0.004


def test_workers_in_step_copy_together_and_so_the_gang_too_waits_a_hundredth_of_the_time():
    costs = (0.001, 0.003, 0.002)
    workers, now, waited, made = [Pace() for _ in costs], 0.0, 0.0, 0
    for _ in range(3000):
        due = [worker.begin_step(now) for worker in workers]
        now += 0.01
        if all(due):
            for worker, cost in zip(workers, costs, strict=True):
                worker.copied(now, now + cost)
            now, waited, made = now + max(costs), waited + max(costs), made + 1
    assert made > 90
    assert waited <= SHARE * now + 2 * max(costs)


@pytest.mark.parametrize(
    ("limit", "used", "cached"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_is_free_is_what_the_container_and_the_machine_leave(tmp_path, monkeypatch, limit, used, cached):
    container = tmp_path / "pod/container"
    container.mkdir(parents=True)
    for directory, most in ((container, "200"), (container.parent, "max")):
        (directory / limit).write_text(most)
        (directory / used).write_text("100")
        (directory / "memory.stat").write_text(f"anon 60\n{cached} 30\n")
    monkeypatch.setattr(usage, "cgroup", lambda _: [container, container.parent])
    assert usage.memory_room() == 200 - 100 + 30
    monkeypatch.setattr(usage, "cgroup", lambda _: [])
    on_machine = usage.memory_room()
    assert on_machine is not None
    assert on_machine > 1 << 20


class CrashError(Exception):
    """In place of SIGKILL: the memory is as the trainer has left it."""


class Crashes(keras.callbacks.Callback):
    def __init__(self, hook: str, number: int) -> None:
        super().__init__()
        self._left = number
        setattr(self, hook, self.count)

    def count(self, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            raise CrashError


def make_model() -> keras.Model:
    net = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(4, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )
    net.compile(keras.optimizers.AdamW(0.01), CE(from_logits=True), metrics=["accuracy"])
    return net


def train(output, *, crashes: keras.callbacks.Callback | None = None):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    callbacks = None if crashes is None else lambda: [crashes]
    return train_here(
        make_model,
        (rows(6), labels()),
        validation=(rows(6)[:30], labels()[:30]),
        callbacks=callbacks,
        output=output,
        devices=1,
        batch=20,
        epochs=3,
        seed=1,
        evaluate={"everySteps": 5},
    )


@pytest.fixture
def each_step(monkeypatch, memory):
    """A copy at the end of each step, whatever it costs."""
    monkeypatch.setattr(Pace, "begin_step", lambda *_: True)
    monkeypatch.setenv(FD_VARIABLE, str(memory.descriptor))


def test_what_is_kept_in_memory_goes_on_to_the_bit_and_what_finds_no_room_is_done_without(
    tmp_path, monkeypatch, capsys, memory, each_step
):
    with monkeypatch.context() as crowded:
        crowded.setattr(in_memory, "memory_room", lambda: 100)
        undisturbed = train(tmp_path / "undisturbed")
    assert capsys.readouterr().out.count("no in-memory checkpoints") == 1
    assert memory.newest() is None
    # In an evaluation, after step 10; then at the end of an epoch, after step 12.
    for hook, number in (("on_test_end", 2), ("on_epoch_end", 1)):
        with pytest.raises(CrashError):
            train(tmp_path / "disturbed", crashes=Crashes(hook, number))
    with monkeypatch.context() as busy:
        busy.setattr(Pace, "begin_step", lambda *_: False)
        run = train(tmp_path / "disturbed")
    copy = memory.newest()
    assert copy is not None
    assert copy.step == 11, "none is made that would cost too much"
    printed = capsys.readouterr().out
    assert re.findall(r"resuming after step (\d+)", printed) == ["10", "11"]
    assert printed.count("validation after step 10") == 2
    assert values_digest(run.built.model.weights) == values_digest(undisturbed.built.model.weights)
    assert run.last_epoch == undisturbed.last_epoch


def test_the_first_copy_of_another_fit_deletes_those_of_the_one_before(memory):
    def checkpoints(of: str) -> in_memory.InMemoryCheckpoints:
        return in_memory.InMemoryCheckpoints(memory, {"v": keras.Variable(1.0)}, of=of)

    for step in (8, 9):
        checkpoints(".").save(step, dict)
    second = checkpoints("fit-2")
    assert second.latest() is None
    second.save(1, dict)
    assert [copy.step for copy in memory._whole()] == [1]
    found = second.latest()
    assert found is not None and found.step == 1
    assert checkpoints(".").latest() is None
