"""What is written of jobs, when, and what a database that fails costs."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.harness import vtime
from tests.harness.live import LiveCluster, live_cluster
from tests.harness.process import CONFIG
from tests.machine import PATIENCE, Deadline
from tests.small_disk import fill, small_disk
from tests.unit.core.gangs import running
from tests.unit.shell.answering_pod import http, pod
from tests.unit.shell.make import job
from tests.unit.shell.operating import make_good, operating, runs, until
from tests.unit.ui.planted import NOW

from tfgpujob.core.observed.snapshot import Kind, Object
from tfgpujob.history.database import Database
from tfgpujob.history.records import Last, Record
from tfgpujob.shell import history
from tfgpujob.shell.history import INTERVAL_SECONDS, TICK_SECONDS, Curves, Historian, Writer
from tfgpujob.shell.main import operate
from tfgpujob.shell.pod_poller import IN_ONE_PIECE
from tfgpujob.shell.settings import Settings, SettingsError
from tfgpujob.shell.store import Store
from tfgpujob_contract.pod import MAX_SERIES

CURVES = b'{"train": {"names": ["loss"], "points": [[1, 2.5]]}, "validation": {"names": [], "points": []}}'
FINISHED = {"phase": "Failed", "conditions": [{"type": "Finished", "status": "True"}]}


class Handed:
    """A writer that remembers what it was handed, and when."""

    def __init__(self, *, room: bool = True) -> None:
        self.jobs: list[tuple[float, str]] = []
        self.curves: list[float] = []
        self.room = room

    def offer(self, item: Last | Curves) -> bool:
        now = asyncio.get_running_loop().time()
        if isinstance(item, Curves):
            self.curves.append(now)
        elif self.room:
            self.jobs.append((now, item.job["metadata"]["resourceVersion"]))
        return self.room


class Told:
    """A leader's historian on a store, in virtual time."""

    def __init__(self) -> None:
        self.store, self.handed = Store(), Handed()
        self.version = 100
        self.historian = Historian(self.store, self.answer, self.handed, lambda: NOW)  # type: ignore[arg-type]
        self.store.deleted = self.historian.deleted

    async def answer(self, _ip: str, _token: str) -> bytes | None:
        return CURVES

    def put(self, found: Object) -> None:
        self.version += 1
        self.store.put(Kind.JOB, {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}})

    def play(self, seconds: float, *steps: tuple[float, Callable[[], object]]) -> None:
        async def for_a_while() -> None:
            for at, step in steps:
                asyncio.get_running_loop().call_later(at, step)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.historian.run()

        vtime.run(for_a_while())


def test_a_job_is_written_when_it_is_first_seen_when_it_ends_and_when_it_is_deleted() -> None:
    told = Told()
    told.put(job())
    ends = 2 * TICK_SECONDS + 1, lambda: told.put(job(uid="job-uid") | {"status": FINISHED})
    goes = 9 * TICK_SECONDS + 1, lambda: told.store.remove(Kind.JOB, "ns", "train", "job-uid")
    told.play(900, ends, goes)
    assert told.handed.jobs == [(0, "101"), (3 * TICK_SECONDS, "102"), (9 * TICK_SECONDS + 1, "102")]


def test_a_look_at_many_jobs_lets_other_work_have_its_turn() -> None:
    """10,000 suspended jobs held the event loop for 140 ms."""
    told = Told()
    for number in range(100):
        told.put(job(f"job-{number}", uid=f"uid-{number}"))
    seen: list[int] = []

    async def beside() -> None:
        looking = asyncio.create_task(told.historian.look())
        while not looking.done():
            seen.append(len(told.handed.jobs))
            await asyncio.sleep(0)
        seen.append(len(told.handed.jobs))

    vtime.run(beside())
    assert seen[-1] == 100
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= IN_ONE_PIECE


def test_nothing_is_written_while_nothing_changes() -> None:
    told = Told()
    told.put(job())
    told.put(job("other", uid="other-uid") | {"status": FINISHED})
    told.play(24 * 3600)
    assert len(told.handed.jobs) == 2


def test_a_running_job_is_written_more_often_while_it_is_young() -> None:
    told = Told()
    told.put(job())
    told.play(7200, *((at, lambda: told.put(job())) for at in range(10, 7200, 10)))
    times = [at for at, _ in told.handed.jobs]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] <= 2 * TICK_SECONDS
    assert max(gaps) <= INTERVAL_SECONDS + TICK_SECONDS
    assert min(gaps[-5:]) >= INTERVAL_SECONDS


def test_curves_are_taken_while_it_runs() -> None:
    told = Told()
    world = running(1)
    assert world.job is not None
    told.put(world.job)
    for (kind, _), obj in world.objects.items():
        told.store.put(Kind(kind), obj)
    told.play(7200)
    assert told.handed.curves[0] <= 3 * TICK_SECONDS
    assert 7200 / (INTERVAL_SECONDS + TICK_SECONDS) - 1 <= len(told.handed.curves) <= 7200 / INTERVAL_SECONDS + 15


def test_what_found_no_room_is_handed_over_again() -> None:
    told = Told()
    told.handed.room = False
    told.put(job())
    told.play(5 * TICK_SECONDS, (3 * TICK_SECONDS + 1, lambda: setattr(told.handed, "room", True)))
    assert told.handed.jobs == [(4 * TICK_SECONDS, "101")]


def test_a_copy_that_does_not_lead_writes_nothing() -> None:
    told = Told()
    told.put(job())
    told.store.remove(Kind.JOB, "ns", "train", "job-uid")
    assert told.handed.jobs == []


def test_objects_of_a_namespace_that_is_not_served_any_more_are_not_deleted_jobs() -> None:
    gone: list[Object] = []
    store = Store()
    store.deleted = lambda found, _pods: gone.append(found)
    store.put(Kind.JOB, job())
    store.drop("ns")
    assert gone == []


async def test_the_curves_of_a_pod_are_read_up_to_their_limit() -> None:
    async with pod(http(b"x" * MAX_SERIES)) as (ask, asked):
        assert len(await ask.series("127.0.0.1", "0af3") or b"") == MAX_SERIES
    assert asked[0].startswith(b"GET /progress?series=0 HTTP/1.1")
    async with pod(http(b"x" * (MAX_SERIES + 2048))) as (ask, _):
        assert await ask.series("127.0.0.1", "") is None


class Failing:
    """A database that fails until it is mended."""

    def __init__(self) -> None:
        self.broken, self.tried = True, 0
        self.rows: dict[str, Record] = {}

    def write(self, records: Sequence[Record], _curves: dict[str, bytes]) -> None:
        self.tried += 1
        if self.broken:
            raise OSError("database or disk is full")
        self.rows |= {record.uid: record for record in records}

    def expire(self, _before: int, _most_bytes: int) -> int:
        return 0


@contextmanager
def writing(database: Any) -> Iterator[Writer]:
    writer = Writer(database, days=100_000, most_bytes=1 << 30)
    writer.start()
    yield writer
    writer.stop(PATIENCE)


def wait(holds: Callable[[], Any]) -> None:
    deadline = Deadline(30)
    while not holds():
        assert not deadline.passed
        signal.sigtimedwait([], 0.01)


def last(name: str, **more: Any) -> Last:
    return Last(job(name, uid=name) | more, (), NOW)


def test_a_database_that_fails_costs_memory_up_to_a_limit_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history, "_RETRY_SECONDS", 0.01)
    database = Failing()
    with writing(database) as writer, caplog.at_level(logging.WARNING):
        offered = 0
        while writer.offer(last(str(offered))):
            offered += 1
        assert 500 < offered < 5000
        assert writer.lost == 1
        wait(lambda: writer.failing and database.tried > 5)
        database.broken = False
        wait(lambda: len(database.rows) == offered)
        wait(lambda: writer.written == offered)
        assert not writer.failing
        assert writer.offer(last("later")), "there is room again"
    assert "later" in database.rows, "what is queued at the end is still written"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_process_ends_while_its_database_fails() -> None:
    with writing(Failing()) as writer:
        writer.offer(last("a"))
        wait(lambda: writer.failing)
    assert writer.lost == 1


def test_a_job_that_is_no_record_costs_itself_alone() -> None:
    database = Failing()
    database.broken = False
    with writing(database) as writer:
        writer.offer(Last({"metadata": {"uid": "bad"}}, (), NOW))
        writer.offer(last("good"))
    assert ([*database.rows], writer.lost) == (["good"], 1)


def test_a_locked_database_is_written_once_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfgpujob.history.database._BUSY_SECONDS", 0.05)
    monkeypatch.setattr(history, "_RETRY_SECONDS", 0.01)
    database = Database(f"sqlite:///{tmp_path}/history.db")
    database.write([], {})
    locking = sqlite3.connect(tmp_path / "history.db")
    locking.execute("BEGIN IMMEDIATE")
    with writing(database) as writer:
        writer.offer(last("a"))
        wait(lambda: writer.failing)
        locking.rollback()
        wait(lambda: writer.written == 1)
    assert [*database.jobs(None, ())] == ["a"]


@pytest.mark.slow
def test_a_full_disk_costs_history_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_RETRY_SECONDS", 0.01)
    with small_disk(tmp_path / "disk", "1m") as disk:
        database = Database(f"sqlite:///{disk}/history.db")
        database.write([], {})
        ballast = fill(disk)
        with writing(database) as writer:
            for number in range(50):
                writer.offer(last(str(number), spec={"x": "y" * 2000}))
            wait(lambda: writer.failing)
            ballast.unlink()
            wait(lambda: writer.written == 50)
        assert len(database.jobs(None, ())) == 50


KILLED = """
import json, sys
from datetime import UTC, datetime
from tfgpujob.history.database import Database
from tfgpujob.history.records import Last
from tfgpujob.shell.history import Writer

writer = Writer(Database(sys.argv[1]), days=1, most_bytes=1 << 30)
writer.start()
number = 0
while True:
    metadata = {"name": "a", "namespace": "b", "uid": str(number)}
    if writer.offer(Last({"metadata": metadata, "spec": {"text": "x" * 500}}, (), datetime.now(UTC))):
        number += 1
    print(writer.written, flush=True)
"""


@pytest.mark.slow
def test_what_was_written_is_there_after_kill_9(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    for wanted in (1, 300, 1000):
        command = [sys.executable, "-c", KILLED, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = next(int(line) for line in process.stdout if int(line) >= wanted)
            process.kill()
        with sqlite3.connect(tmp_path / "history.db") as connection:
            (count,) = connection.execute("SELECT count(*) FROM tfgpu_jobs").fetchone()
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert count >= told


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveCluster]:
    """Without an operator of its own, which would lead as well: both have one name."""
    with live_cluster(tmp_path, operator=False) as found:
        yield found


@pytest.mark.slow
async def test_an_operator_keeps_a_job_that_is_deleted(
    monkeypatch: pytest.MonkeyPatch, live: LiveCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    async with operating(monkeypatch, live, history_database=url) as operator:
        make_good(live, "kept")
        await until(lambda: runs(live, "kept"), "it runs")
        database = Database(url)
        live.do(lambda: live.server.delete("TFGPUJob", "default", "kept", by="user"))

        def phases() -> set[str]:
            """It was handed over when it was created, too."""
            return {kept.job["status"].get("phase", "") for kept in database.jobs({"default"}, (), "kept").values()}

        await until(lambda: phases() & {"Starting", "Running"}, "its last state is in the history")
        _, text = await operator.get("/metrics")
        assert "tfgpu_history_failing 0.0" in text
        assert re.search(r"^tfgpu_history_written_total [1-9]", text, re.MULTILINE)


@pytest.mark.slow
async def test_an_operator_without_its_database_works_and_says_so(
    monkeypatch: pytest.MonkeyPatch, live: LiveCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/none/history.db"
    async with operating(monkeypatch, live, history_database=url) as operator:
        make_good(live, "unkept")
        await until(lambda: runs(live, "unkept"), "it runs")
        deadline, text = Deadline(30), ""
        while "tfgpu_history_failing 1.0" not in text:
            assert not deadline.passed
            await asyncio.sleep(0.05)
            with suppress(aiohttp.ClientError):
                _, text = await operator.get("/metrics")
        assert (await operator.get("/healthz"))[0] == 200


async def test_a_url_that_is_none_is_refused_without_its_password() -> None:
    settings = Settings(config=CONFIG, namespace="n", identity="i", history_database="mongo://me:hunter2@x")
    with pytest.raises(SettingsError, match="HISTORY_DATABASE") as caught:
        await operate(settings)
    assert "hunter2" not in str(caught.value)
