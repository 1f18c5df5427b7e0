"""The database of the history: SQLite in a volume, or PostgreSQL. The only file that imports SQLAlchemy.

Each call has a connection of its own, and a write creates missing tables: a database may be lost, moved or restarted.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    true,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tfgpujob.history.records import Kept, Record, thaw, thaw_curves

MOST: Final = 500
"""Jobs that one call returns, the newest first."""
_MOST_NAMES: Final = 10_000
_BUSY_SECONDS: Final = 5
_OVERHEAD: Final = 512
"""Bytes of a row besides its content, with its part of the indexes."""

_METADATA = MetaData()
_JOBS = Table(
    "tfgpu_jobs",
    _METADATA,
    Column("uid", String(253), primary_key=True),
    Column("namespace", String(253), nullable=False, index=True),
    Column("name", String(253), nullable=False, index=True),
    Column("created", String(253), nullable=False, index=True),
    Column("seen", BigInteger, nullable=False, index=True),
    Column("content", LargeBinary, nullable=False),
)
_CURVES = Table(
    "tfgpu_curves",
    _METADATA,
    Column("uid", String(253), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)


class HistoryError(Exception):
    """The database is away, locked or broken."""


class Database:
    """Writes raise SQLAlchemyError, reads HistoryError."""

    def __init__(self, url: str) -> None:
        """`url`: SQLAlchemy's, such as sqlite:////var/lib/tfgpu/history.db. Raises ValueError."""
        lite = url.startswith("sqlite:")
        limits = {"timeout": _BUSY_SECONDS} if lite else {"connect_timeout": _BUSY_SECONDS}
        try:
            self._engine = create_engine(url, poolclass=NullPool, connect_args=limits)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ValueError("it is no URL of SQLite or PostgreSQL as SQLAlchemy takes it") from error
        if lite:
            event.listen(self._engine, "connect", _write_ahead)

    def write(self, records: Iterable[Record], curves: Mapping[str, bytes]) -> None:
        """Replace what is known of these jobs, in one transaction. `curves` by the uid of their job."""
        rows = [{column.name: getattr(record, column.name) for column in _JOBS.c} for record in records]
        with self._engine.begin() as connection:
            _METADATA.create_all(connection)
            _replace(connection, _JOBS, rows)
            _replace(connection, _CURVES, [{"uid": uid, "content": content} for uid, content in curves.items()])

    def expire(self, before: int, most_bytes: int) -> int:
        """Delete jobs that were last seen before this time, and until all fit, the oldest of the namespaces with most
        bytes: a flood of jobs in one namespace takes no other's. Returns how many.
        """
        with self._engine.begin() as connection:
            old = {row.uid for row in connection.execute(select(_JOBS.c.uid).where(_JOBS.c.seen < before))}
            size = func.length(_JOBS.c.content) + func.coalesce(func.length(_CURVES.c.content), 0) + _OVERHEAD
            joined = _JOBS.outerjoin(_CURVES, _JOBS.c.uid == _CURVES.c.uid)
            fresh, namespace = _JOBS.c.seen >= before, _JOBS.c.namespace
            sums = select(func.sum(size).label("size")).select_from(joined).where(fresh).group_by(namespace)
            share = _share([int(row.size) for row in connection.execute(sums)], most_bytes)
            kept = Counter[str]()
            sizes = select(_JOBS.c.uid, namespace, size.label("size")).select_from(joined).where(fresh)
            for row in connection.execute(sizes.order_by(_JOBS.c.seen.desc())):
                kept[row.namespace] += row.size
                if kept[row.namespace] > share:
                    old.add(row.uid)
            for table in (_JOBS, _CURVES):
                _remove(connection, table, sorted(old))
        return len(old)

    def namespaces(self) -> Sequence[str]:
        """Those of which any job is known."""
        return [row.namespace for row in self._read(select(_JOBS.c.namespace).distinct().limit(_MOST_NAMES))]

    def jobs(self, namespaces: Collection[str] | None, without: Collection[str], name: str = "") -> Mapping[str, Kept]:
        """The newest jobs of these namespaces (None: of all) by their uid, except `without`. `name`: only jobs of that
        name.
        """
        of_any = true() if namespaces is None else _JOBS.c.namespace.in_(sorted(namespaces))
        wanted = of_any & (_JOBS.c.name == name if name else true())
        order = _JOBS.c.created.desc(), _JOBS.c.uid
        known = self._read(select(_JOBS.c.uid).where(wanted).order_by(*order).limit(MOST + len(without)))
        uids = [row.uid for row in known if row.uid not in without][:MOST]
        rows = self._read(
            select(_JOBS.c.uid, _JOBS.c.content, _JOBS.c.seen).where(_JOBS.c.uid.in_(uids)).order_by(*order)
        )
        return {row.uid: found for row in rows if (found := _thawed(row)) is not None}

    def curves(self, uid: str) -> Mapping[str, Any]:
        """The curves of a job; empty if none are known."""
        rows = self._read(select(_CURVES.c.content).where(_CURVES.c.uid == uid))
        return thaw_curves(rows[0].content) if rows else {}

    def _read(self, query: Any) -> Sequence[Any]:
        try:
            with self._engine.connect() as connection:
                # Only the writer creates tables, this one last.
                return connection.execute(query).all() if inspect(connection).has_table(_JOBS.name) else []
        except SQLAlchemyError as error:
            raise HistoryError(str(error)) from error


def _share(sizes: Sequence[int], most: int) -> int:
    """What each may have so that all together have at most `most`; some have less."""
    for number, size in enumerate(sorted(sizes)):
        others = len(sizes) - number
        if size * others > most:
            return most // others
        most -= size
    return max(sizes, default=0)


def _thawed(row: Any) -> Kept | None:
    try:
        return thaw(row.content, row.seen)
    except ValueError:  # not written by this version
        return None


def _replace(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        _remove(connection, table, [row["uid"] for row in rows])
        connection.execute(insert(table), rows)


def _remove(connection: Connection, table: Table, uids: Sequence[str]) -> None:
    for begin in range(0, len(uids), MOST):
        connection.execute(delete(table).where(table.c.uid.in_(uids[begin : begin + MOST])))


def _write_ahead(connection: Any, _: object) -> None:
    """Readers don't wait for the writer, and a killed process leaves a whole file."""
    cursor = connection.cursor()
    with suppress(sqlite3.OperationalError):  # another process has just opened the file, and sets it
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
