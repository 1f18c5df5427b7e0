"""What nvidia-smi says, and NVIDIA's Multi-Process Service. A machine without them has no cards and uses no memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_MPS = "nvidia-cuda-mps-control"
_SECONDS = 20


def query(*fields: str) -> list[list[str]]:
    """These fields of each GPU, as nvidia-smi has them; nothing without it."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except OSError:
        return []
    return [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []


def mib(field: str) -> int:
    """`memory.used` or `memory.total` of the first GPU. In a container nvidia-smi doesn't show memory by process."""
    return next((int(value) for value, *_ in query(field)), 0)


@contextmanager
def mps(folder: Path) -> Iterator[Mapping[str, str] | None]:
    """The environment of clients of an MPS daemon that runs meanwhile; None where there is no such program."""
    control = shutil.which(_MPS, path=f"{os.environ['PATH']}:/usr/local/nvidia/bin")
    if control is None:
        yield None
        return
    clients = {f"CUDA_MPS_{name}_DIRECTORY": str(folder / name.lower()) for name in ("PIPE", "LOG")}
    for path in clients.values():
        Path(path).mkdir(parents=True)
    _control([control, "-d"], clients)
    try:
        yield clients
    finally:
        _control([control], clients, "quit\n")


def _control(command: Sequence[str], clients: Mapping[str, str], typed: str = "") -> None:
    environment = {**os.environ, **clients}
    subprocess.run(command, env=environment, input=typed, text=True, timeout=_SECONDS, check=True)
