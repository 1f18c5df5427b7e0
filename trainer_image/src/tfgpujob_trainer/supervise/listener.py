"""The port at which the leader's pod accepts the job's other pods: a client must send the token first, which only they
have.
"""

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
"""Connections besides one for each member that have not sent the token yet: unknown clients can't start more
threads."""
_HELLO_SECONDS = 5.0
_AGAIN_SECONDS = 0.5


class Listener(ABC):
    """A port, with a thread for each connected member. Its methods are called without the lock, but for `left`."""

    port: int

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[str, socket.socket] = {}
        """By member, the newest."""

    def listen(self, token: str, *, port: int, host: str, members: int) -> None:
        """Start to listen; raises OSError if the port is in use."""
        self._token = token
        self._server = socket.create_server((host, port))
        self._guests = threading.BoundedSemaphore(members + GUESTS)
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="rounds", daemon=True).start()

    @abstractmethod
    def knows(self, member: str, hello: Mapping[str, Any]) -> bool:
        """True if a client with this name and the right token is accepted."""

    @abstractmethod
    def joined(self, member: str, hello: Mapping[str, Any], connection: socket.socket) -> bool:
        """A member has connected; returns whether its messages are read."""

    @abstractmethod
    def heard(self, member: str, told: Mapping[str, Any], connection: socket.socket, lines: IO[bytes]) -> None:
        """A message of a member, which may be followed by bytes."""

    @abstractmethod
    def left(self, member: str, *, silent: bool) -> None:
        """A member's newest connection has ended; `silent`: without having been closed. Called with the lock held."""

    def _accept(self) -> None:
        refused = False
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                # For instance, no file descriptor is left. The client retries.
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
            except RuntimeError:  # no thread is left: the client retries
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
                    if self.joined(member, hello, connection):
                        self._hear(member, connection, lines)

    def _hear(self, member: str, connection: socket.socket, lines: IO[bytes]) -> None:
        """Read a member's messages until it leaves."""
        silent = False
        try:
            while told := messages.received(lines):
                self.heard(member, told, connection, lines)
        except OSError:
            silent = True
        finally:
            with self._lock:
                if self._connections.get(member) is connection:
                    del self._connections[member]
                    self.left(member, silent=silent)

    def _welcome(self, hello: Mapping[str, Any]) -> str | None:
        """The name of a member with the right token; None for any other client."""
        if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
            return None
        member = str(hello.get("member", ""))
        return member if self.knows(member, hello) else None


def _hello(connection: socket.socket) -> dict[str, Any]:
    """The first line, within _HELLO_SECONDS in total; a member sends no more before it is welcomed."""
    until, said = time.monotonic() + _HELLO_SECONDS, b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"\n") and len(said) < messages.LINE_BYTES and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(messages.LINE_BYTES)
            if not piece:
                break
            said += piece
    return messages.received(io.BytesIO(said))
