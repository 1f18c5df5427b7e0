"""How the members of a gang speak of its rounds: one connection from each member's pod to the leader's, JSON lines.

The leader is the first of `Environment.peers`; its rules are supervise/rounds.py. A member that is told to send its
in-memory checkpoint says what it sends, how long it is and, behind it, its SHA-256. Nothing else is taken from the
network, and nothing at all before the token of the job, which only its pods have. A connection that is lost is not
made again: whoever can't be heard may still run, and then no other round may start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, Protocol

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.reporting.log import say
from tfgpujob_trainer.supervise import transfer
from tfgpujob_trainer.supervise.rounds import Command, End, GiveUp, Rounds, Send, Start, Stop

LINE_BYTES = 4096
"""Of a line that is read. A token has 64 characters."""
_WELCOME = b"welcome\n"
_GUESTS = 8
"""Connections beyond one a member, so that strangers can't make the supervisor start threads."""
_CONNECT_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_HELLO_SECONDS = 5.0
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A node that is lost says no goodbye: seconds until the first question, between two, and how many go unanswered."""


class Member(Protocol):
    """What the launcher of one pod asks."""

    speaks: bool
    """Whether there are rounds at all."""

    def ended(self, round_: int, end: End) -> None:
        """Say that the processes of this pod have ended."""

    def command(self) -> Command | None:
        """The last command to all members."""


class Alone:
    """Without rounds: each end is the pod's."""

    speaks = False

    def ended(self, round_: int, end: End) -> None:
        """Nobody has to know."""

    def command(self) -> Command | None:
        """Never another round."""
        return GiveUp("off")


class Leader:
    """The member that decides. Listens only where there are others."""

    speaks = True

    def __init__(
        self,
        members: Sequence[str],
        *,
        budget: int,
        token: str = "",
        port: int = 0,
        host: str = "",
        memory: MemoryFile | None = None,
    ) -> None:
        """`members` begins with its own name. Raises OSError if the port can't be had."""
        self._rounds, self._own, self._token = Rounds(members, budget), members[0], token
        self._memory = memory
        self._lock = threading.Lock()
        self._command: Command | None = None
        self._connections: list[socket.socket] = []
        self._take(self._rounds.joined(self._own))
        if len(members) > 1:
            self._server = socket.create_server((host, port))
            self._guests = threading.BoundedSemaphore(len(members) + _GUESTS)
            self.port: int = self._server.getsockname()[1]
            threading.Thread(target=self._accept, name="rounds", daemon=True).start()

    def ended(self, round_: int, end: End) -> None:
        """Its own processes have ended."""
        self._ended(self._own, round_, end)

    def command(self) -> Command | None:
        """The last command."""
        with self._lock:
            self._take(self._rounds.waited(time.monotonic()))
            return self._command

    def _ended(self, member: str, round_: int, end: End) -> None:
        with self._lock:
            self._take(self._rounds.ended(member, round_, end, time.monotonic()))

    def _take(self, command: Command | None) -> None:
        """Tell all members, if it is news. Called under the lock."""
        if command is None or command == self._command:
            return
        self._command = command
        for connection in self._connections:
            with contextlib.suppress(OSError):  # its reader sees it too
                connection.sendall(_line(_told(command)))

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            if not self._guests.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="member", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._speak(connection)
        finally:
            self._guests.release()

    def _speak(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            connection.settimeout(_HELLO_SECONDS)
            hello = _read(lines)
            if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
                return
            _keep_alive(connection)
            member = str(hello.get("member", ""))
            connection.sendall(_WELCOME)
            with self._lock:
                # A command that was given before it came is news to it.
                if self._command is not None:
                    connection.sendall(_line(_told(self._command)))
                self._connections.append(connection)
                self._take(self._rounds.joined(member))
            while told := _read(lines):
                if "bytes" in told:
                    self._receive(Send(int(told["round"]), member, int(told["step"])), int(told["bytes"]), lines)
                else:
                    self._ended(member, int(told["round"]), _end(told))
            with self._lock:
                self._connections.remove(connection)
                self._take(self._rounds.left(member))

    def _receive(self, sending: Send, size: int, lines: IO[bytes]) -> None:
        """Read a checkpoint; it is the leader's own once it is whole, and the rules still want it."""
        whole = False
        copy = transfer.receive(sending.step, size, lines, lambda: self._awaits(sending))
        with self._lock:
            if copy is not None and self._memory is not None:
                whole = self._rounds.awaits(sending, time.monotonic())
                if whole:
                    self._memory.replace(copy)
                else:
                    copy.close()
            self._take(self._rounds.sent(sending, time.monotonic(), whole=whole))

    def _awaits(self, sending: Send) -> bool:
        with self._lock:
            return self._memory is not None and self._rounds.awaits(sending, time.monotonic())


class Follower:
    """A member in another pod than the leader's."""

    speaks = True

    def __init__(self, member: str, leader: tuple[str, int], token: str, memory: MemoryFile | None = None) -> None:
        self._member, self._leader, self._token, self._memory = member, leader, token, memory
        self._lock, self._speaking = threading.Lock(), threading.Lock()
        self._command: Command | None = None
        self._connection: socket.socket | None = None
        threading.Thread(target=self._listen, name="rounds", daemon=True).start()

    def ended(self, round_: int, end: End) -> None:
        """Tell the leader."""
        with self._lock:
            if self._connection is None:
                self._command = GiveUp("the leader was not reached yet")
                return
            connection = self._connection
        with self._speaking, contextlib.suppress(OSError):  # its reader sees it too
            connection.sendall(_line({"round": round_, **dataclasses.asdict(end)}))

    def command(self) -> Command | None:
        """The last command of the leader's."""
        with self._lock:
            return self._command

    def _listen(self) -> None:
        with self._welcomed() as connection, connection.makefile("rb") as lines:
            while told := _read(lines):
                command = _command(told)
                with self._lock:
                    self._command = command
                if isinstance(command, Send) and command.member == self._member:
                    with self._speaking, contextlib.suppress(OSError):
                        transfer.send({"round": command.round}, command.step, self._memory, connection)
        with self._lock:
            if not isinstance(self._command, GiveUp):
                self._command = GiveUp("the leader has left")

    def _welcomed(self) -> socket.socket:
        """A connection to the leader, whose pod may have still to start, or to get rid of strangers."""
        while True:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(self._leader, timeout=_CONNECT_SECONDS)
                connection.sendall(_line({"member": self._member, "token": self._token}))
                if connection.recv(len(_WELCOME), socket.MSG_WAITALL) == _WELCOME:
                    _keep_alive(connection)
                    with self._lock:
                        self._connection = connection
                    return connection
                connection.close()
            time.sleep(_AGAIN_SECONDS)


def member(env: Environment, processes: int, memory: MemoryFile | None = None) -> Member:
    """The member that a pod with so many training processes is, by the environment of its first.

    `memory` is where that one keeps its in-memory checkpoints.
    """
    if env.recovery is None:
        return Alone()
    budget, token = env.recovery.budget, env.recovery.token
    if env.recovery.leader is None or len(env.peers) <= processes:
        return Leader([env.name], budget=budget, memory=memory)
    members, (_, port) = env.worker_names[::processes], env.recovery.leader
    if env.name != members[0]:
        return Follower(env.name, env.recovery.leader, token, memory)
    host = "" if env.in_pod else "127.0.0.1"
    try:
        return Leader(members, budget=budget, token=token, port=port, host=host, memory=memory)
    except OSError as error:
        say(f"no restarts in place: port {port}: {error.strerror}")
        return Alone()


def _keep_alive(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _read(lines: IO[bytes]) -> dict[str, Any]:
    """The next line; empty at the end, and where it is none of ours."""
    try:
        found = json.loads(lines.readline(LINE_BYTES) or b"{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _end(told: dict[str, Any]) -> End:
    step = told.get("in_memory")
    return End(int(told["code"]), bool(told["progressed"]), None if step is None else int(step))


def _told(command: Command) -> dict[str, Any]:
    return {_COMMANDS[type(command)]: dataclasses.asdict(command)}


def _command(told: dict[str, Any]) -> Command:
    name, fields = next(iter(told.items()))
    kind = next((kind for kind, known in _COMMANDS.items() if known == name), None)
    return GiveUp("the leader speaks of what is not known here") if kind is None else kind(**fields)


_COMMANDS: dict[type[Command], str] = {Stop: "stop", Send: "send", Start: "start", GiveUp: "giveUp"}
