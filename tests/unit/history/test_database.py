"""The database: SQLite, and a real PostgreSQL by the same code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from tests.unit.history.postgresql import postgresql
from tests.unit.ui.planted import NOW, job

from tfgpujob.history.database import MOST, Database
from tfgpujob.history.records import Last, Record, freeze, freeze_curves

CURVES = b'{"train": {"names": ["loss"], "points": [[1, 2.5]]}, "validation": {"names": [], "points": []}}'


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/history.db"
    else:
        with postgresql() as address:
            yield address


def record(name: str, namespace: str = "research", *, seen: int = 1000, uid: str = "") -> Record:
    frozen = freeze(Last(job(name, {"phase": "Running"}, namespace=namespace), (), NOW))
    return Record(
        uid=uid or f"{namespace}-{name}",
        namespace=namespace,
        name=name,
        created=f"2026-01-01T00:00:{seen % 60:02}Z",
        seen=seen,
        content=frozen.content,
    )


def names_of(database: Database) -> set[str]:
    return {one.job["metadata"]["name"] for one in database.jobs(None, ()).values()}


def test_what_is_written_is_read_again(url: str) -> None:
    database = Database(url)
    assert (database.jobs(None, ()), database.namespaces(), database.curves("x")) == ({}, [], {})
    first = [record("a", seen=1), record("a", seen=2, uid="second"), record("b", "other", seen=3)]
    database.write(first, {"second": freeze_curves(CURVES)})
    assert [*database.jobs(None, ())] == ["other-b", "second", "research-a"], "the newest first"
    assert [*database.jobs({"research"}, {"second"})] == ["research-a"]
    assert [*database.jobs(None, (), "b")] == ["other-b"]
    assert database.jobs(set(), ()) == {}
    assert {*database.namespaces()} == {"research", "other"}
    assert database.curves("second") == {"loss": [(1, 2.5)]}
    database.write([record("a", seen=9, uid="second")], {})
    assert database.jobs({"research"}, ())["second"].job["gone"] == "1970-01-01T00:00:09Z"
    assert database.curves("second"), "they stay until there are newer ones"


def test_names_are_no_sql(url: str) -> None:
    database = Database(url)
    database.write([record("a")], {})
    for text in ("'; DROP TABLE tfgpu_jobs; --", "a' OR '1'='1", "%", "\ud800".encode("utf-8", "replace").decode()):
        assert database.jobs({text}, (), text) == {}
        database.write([record(text, uid=text)], {text: b"x"})
        assert [*database.jobs(None, (), text)] == [text]
    assert "a" in names_of(database)


def test_the_oldest_are_forgotten(url: str) -> None:
    database = Database(url)
    jobs = [record(str(number), seen=number) for number in range(10)]
    database.write(jobs, {f"research-{number}": freeze_curves(CURVES) for number in range(10)})
    assert database.expire(3, 1 << 30) == 3
    assert names_of(database) == {*map(str, range(3, 10))}
    assert database.curves("research-2") == {}
    each = len(jobs[0].content) + len(freeze_curves(CURVES)) + 512
    assert database.expire(0, 4 * each + 100) == 3
    assert names_of(database) == {*map(str, range(6, 10))}


def test_a_flood_of_jobs_in_one_namespace_takes_no_other_s_history(url: str) -> None:
    """A record has up to 448 KiB: 1,200 jobs that fail at once left nothing of the others."""
    database = Database(url)
    few = [record(str(n), "few", seen=n) for n in range(2)]
    some = [record(str(n), "some", seen=n) for n in range(4)]
    flood = [record(str(n), "flood", seen=100 + n) for n in range(30)]
    database.write([*few, *some, *flood], {})
    each = max(len(one.content) for one in (*few, *some, *flood)) + 512
    assert database.expire(0, 9 * each) == 28
    left = sorted(uid for uid in database.jobs(None, ()))
    assert left == ["few-0", "few-1", "flood-27", "flood-28", "flood-29", "some-1", "some-2", "some-3"]
    assert database.expire(0, 9 * each) == 0


def test_more_than_a_page_shows_is_left_out_and_the_newest_stay(url: str) -> None:
    database = Database(url)
    same = record("a").content
    rows = [
        Record(uid=f"{n:05}", namespace="n", name="a", created=f"{n:05}", seen=n, content=same) for n in range(MOST + 9)
    ]
    database.write(rows, {})
    assert [*database.jobs(None, {"00508"})] == [f"{n:05}" for n in range(MOST + 7, 7, -1)]


def test_a_lost_file_is_created_again(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/history.db")
    database.write([record("a")], {})
    for file in tmp_path.iterdir():
        file.unlink()
    database.write([record("b")], {})
    assert names_of(database) == {"b"}


def test_what_another_version_wrote_is_left_out(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/history.db")
    database.write([record("a")], {})
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/history.db")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE tfgpu_jobs SET content = 'xyz'"))
    assert database.jobs(None, ()) == {}


@pytest.mark.parametrize("url", ["", "history.db", "nosql://x", "mysql://x"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="SQLite or PostgreSQL"):
        Database(url)
