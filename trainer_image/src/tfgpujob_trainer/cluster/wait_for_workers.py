"""Logs which workers are missing. The supervisor does it: TensorFlow waits silently, and is not imported here."""

from __future__ import annotations

import socket
import threading
import time

from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.reporting.log import say

_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 30.0
"""Workers that start together take this long to import TensorFlow, which needs no message."""
_CONNECT_SECONDS = 1.0


def wait_for_workers(env: Environment) -> None:
    """Check in a thread which other workers listen, until each has once; log the missing ones whenever they change, but
    not in the first half minute.

    The watchdog decides how long to wait.
    """
    missing = {name: at for name, at in zip(env.worker_names, env.peers, strict=False) if name != env.name}
    others = len(missing)

    def look() -> None:
        nonlocal missing
        said, since = 0, time.monotonic()
        while missing:
            threading.Event().wait(_LOOK_SECONDS)
            missing = {name: address for name, address in missing.items() if not _answers(address)}
            if missing and len(missing) != said and time.monotonic() - since >= _PATIENCE_SECONDS:
                names = ", ".join(f"{name} ({address})" for name, address in list(missing.items())[:5])
                say(f"waiting for {len(missing)} of {others} other workers, which do not answer: {names}")
                said = len(missing)

    threading.Thread(target=look, name="wait-for-workers", daemon=True).start()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False
