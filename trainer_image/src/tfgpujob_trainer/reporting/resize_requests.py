"""What the supervisor of a gang's leader and its training process tell each other: GET /progress and PUT /workers are
answered by the one, and decided by the other. A pair of sockets, one JSON object a packet; nobody ever waits in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

FD_VARIABLE = "TFGPU_TRAINER_RESIZE_FD"
_PACKET_BYTES = 4096


class ResizeRequests:
    """One end of it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[ResizeRequests, ResizeRequests]:
        """The two ends; raises OSError."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def from_environment(cls) -> ResizeRequests | None:
        """The end that the supervisor handed over."""
        descriptor = os.environ.get(FD_VARIABLE)
        return cls(socket.socket(fileno=int(descriptor))) if descriptor else None

    @property
    def descriptor(self) -> int:
        """To hand over."""
        return self._socket.fileno()

    def send(self, told: Mapping[str, Any]) -> bool:
        """Whether it could be sent: not while the other end has not read, and not once it is gone."""
        try:
            self._socket.send(json.dumps(told).encode())
        except OSError:
            return False
        return True

    def newest(self) -> dict[str, Any] | None:
        """What was said last, if anything was since the last look."""
        last = b""
        with contextlib.suppress(OSError):
            while packet := self._socket.recv(_PACKET_BYTES):
                last = packet
        found: dict[str, Any] | None = json.loads(last) if last else None
        return found

    def close(self) -> None:
        """The other end will notice."""
        self._socket.close()
