"""Messages between the supervisor of a gang's leader and its training process: the process serves GET /progress and PUT
/workers, the supervisor decides. A pair of sockets with one JSON object in each packet; neither side ever blocks on it.
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
    """One end."""

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
        """The end that the supervisor passed on."""
        descriptor = os.environ.get(FD_VARIABLE)
        return cls(socket.socket(fileno=int(descriptor))) if descriptor else None

    @property
    def descriptor(self) -> int:
        """The descriptor to pass on."""
        return self._socket.fileno()

    def send(self, told: Mapping[str, Any]) -> bool:
        """True if it could be sent: False while the other end has unread packets, or is closed."""
        try:
            self._socket.send(json.dumps(told).encode())
        except OSError:
            return False
        return True

    def newest(self) -> dict[str, Any] | None:
        """The last message since the last call, if any."""
        last = b""
        with contextlib.suppress(OSError):
            while packet := self._socket.recv(_PACKET_BYTES):
                last = packet
        found: dict[str, Any] | None = json.loads(last) if last else None
        return found

    def close(self) -> None:
        """Close it; the other end detects that."""
        self._socket.close()
