"""A real PostgreSQL, Debian's, for a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from localcluster import apt


def _folder(log: Path) -> Path:
    """The folder of its programs, installed if they are missing. Raises ClusterError where apt can't."""
    if not (found := sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        apt.install(["postgresql"], log)
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty one, ended at the end."""
    with TemporaryDirectory(prefix="postgresql-") as name, socket.socket() as probe:
        folder, data = Path(name), Path(name) / "data"
        programs = _folder(folder / "apt.log")
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        server = ["-o", f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}", "-l", str(folder / "log")]
        _run([str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "tfgpu", "--no-sync"])
        _run([str(programs / "pg_ctl"), "-D", str(data), *server, "-w", "start"])
        try:
            yield f"postgresql+psycopg://tfgpu@127.0.0.1:{port}/postgres"
        finally:
            _run([str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"])


def _run(command: Sequence[str]) -> None:
    """It refuses to run as root."""
    user = "postgres" if os.geteuid() == 0 else None
    subprocess.run(command, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
