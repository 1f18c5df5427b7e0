"""Ports of this machine for the tasks of a job, reserved while the job runs."""

from __future__ import annotations

import re
import socket
from typing import Final

_ADDRESS: Final = re.compile(r"(?<![-a-z0-9.])[a-z0-9][-a-z0-9.]*\.svc:\d+")
"""host:port of a task, in the form of `core.tf_config.Address`."""


class Ports:
    """Maps each address in the cluster to one on this machine, which stays the same while the job runs.

    A socket that is bound but does not listen reserves the port. Linux then assigns it neither to a bind to port 0 nor
    to an outgoing connection, but lets TensorFlow's server bind to it by number.
    """

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def local(self, address: str) -> str:
        """127.0.0.1:port for host:port of the cluster. Raises OSError when no port is free."""
        if address not in self._held:
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self._held[address] = held
        return f"127.0.0.1:{self._held[address].getsockname()[1]}"

    def translated(self, text: str) -> str:
        """The text with every address of a task replaced."""
        return _ADDRESS.sub(lambda found: self.local(found.group()), text)

    def close(self) -> None:
        """Release the ports."""
        for held in self._held.values():
            held.close()
