"""Where a job's pods connect to the one that leads them: nothing is heard before the token, which only they have."""

from __future__ import annotations

import contextlib
import hmac
import io
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import IO, Any

from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise import messages

GUESTS = 8
"""Connections beyond one a member that have not shown the token yet, so that strangers can't make it start threads."""
_HELLO_SECONDS = 5.0
_AGAIN_SECONDS = 0.5


class Listener(ABC):
    """A port, with a thread for each member that has come."""

    port: int

    def listen(self, token: str, *, port: int, host: str, members: int) -> None:
        """Hear whoever comes from now on; raises OSError if the port can't be had."""
        self._token = token
        self._server = socket.create_server((host, port))
        self._guests = threading.BoundedSemaphore(members + GUESTS)
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="rounds", daemon=True).start()

    @abstractmethod
    def knows(self, member: str, hello: Mapping[str, Any]) -> bool:
        """Whether somebody of that name, who shows the token, is heard."""

    @abstractmethod
    def speak(self, member: str, hello: Mapping[str, Any], connection: socket.socket, lines: IO[bytes]) -> None:
        """Hear a member until it leaves."""

    def _accept(self) -> None:
        refused = False
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                # No descriptor is left, say. Whoever wants to come waits, and asks again.
                if not refused:
                    say(f"cannot hear other pods now, and try again: {error.strerror}")
                refused = True
                time.sleep(_AGAIN_SECONDS)
                continue
            refused = False
            if not self._guests.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="member", daemon=True).start()
            except RuntimeError:  # no thread is left: it asks again
                self._guests.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                hello = _hello(connection)
                member = self._welcome(hello)
            finally:
                self._guests.release()
            if member is not None:
                with connection.makefile("rb") as lines:
                    messages.keep_alive(connection)
                    connection.sendall(messages.WELCOME)
                    self.speak(member, hello, connection, lines)

    def _welcome(self, hello: Mapping[str, Any]) -> str | None:
        """The name of a member that shows the token; None for everybody else."""
        if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
            return None
        member = str(hello.get("member", ""))
        return member if self.knows(member, hello) else None


def _hello(connection: socket.socket) -> dict[str, Any]:
    """The first line, in _HELLO_SECONDS in all, however slowly it comes; a member says no more before its welcome."""
    until, said = time.monotonic() + _HELLO_SECONDS, b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"\n") and len(said) < messages.LINE_BYTES and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(messages.LINE_BYTES)
            if not piece:
                break
            said += piece
    return messages.read(io.BytesIO(said))
