"""The member of a gang that decides: its rules are supervise/rounds.py, and here is how it hears and tells the others.

A member whose connection is lost is not heard again: it may still run, and then no other round may start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.contract.resize import MAX_WORKERS
from tfgpujob_trainer.supervise import messages, transfer
from tfgpujob_trainer.supervise.commands import Command, End, MemberState, Naming, Send, Start
from tfgpujob_trainer.supervise.listener import Listener
from tfgpujob_trainer.supervise.rounds import Rounds


class Leader(Listener):
    """Listens only where there are others, or may be."""

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
        naming: Naming | None = None,
        least: int | None = None,
        spares: int = 0,
        outside: bool = False,
    ) -> None:
        """`members` begins with its own name; with `naming` there may be other numbers of workers, of which `least`
        train on when others have left, and besides the members so many `spares`.

        Raises OSError if the port can't be had.
        """
        workers = 0 if naming is None else len(members) - len(naming.chiefs) + spares
        self._rounds = Rounds(members, budget, naming, workers, least, spares, outside=outside)
        self._own = members[0]
        self._memory, self._naming = memory, naming
        self._lock = threading.Lock()
        self._told = MemberState(self._own, naming)
        self._connections: dict[str, socket.socket] = {}
        """To each other member, the newest."""
        self._take(self._rounds.joined(self._own, time.monotonic()))
        if len(members) > 1 or naming is not None:
            self.listen(token, port=port, host=host, members=len(members))

    def ended(self, round_: int, end: End) -> None:
        """Its own processes have ended."""
        self._ended(self._own, round_, end)

    def command(self, round_: int) -> Command | None:
        """What counts for its own processes of this round."""
        with self._lock:
            self._take(self._rounds.waited(time.monotonic()))
            return self._told.in_round(round_)

    def resize(self, workers: int) -> None:
        """So many workers are asked for."""
        with self._lock:
            self._take(self._rounds.resize(workers))

    def gang(self) -> dict[str, Any] | None:
        """What GET /progress says of a gang that can be resized; `reason` alone if it no longer can."""
        if self._naming is None:
            return None
        with self._lock:
            rounds = self._rounds
            if rounds.given_up is not None:
                return {"reason": f"the gang has given up: {rounds.given_up.reason}"}
            return {
                "round": rounds.round,
                "workers": rounds.workers,
                "wanted": rounds.wanted,
                "here": rounds.here,
                "without": list(rounds.without),
            }

    def restarts(self) -> None:
        """As many as rounds were begun after a failure, which each pod knows."""

    def _ended(self, member: str, round_: int, end: End) -> None:
        with self._lock:
            self._take(self._rounds.ended(member, round_, end, time.monotonic()))

    def _take(self, command: Command | None) -> None:
        """Tell all members, if it is news. Called under the lock."""
        if command is None or command == self._told.last:
            return
        self._told.take(command)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # its reader sees it too
                connection.sendall(messages.of_command(command))

    def knows(self, member: str, hello: Mapping[str, Any]) -> bool:
        """Who is to join a gang that can't be resized changes nothing in it."""
        if self._naming is None:
            return not hello.get("joins")
        return member in self._naming.of(MAX_WORKERS)

    def speak(self, member: str, hello: Mapping[str, Any], connection: socket.socket, lines: IO[bytes]) -> None:
        """Hear a member until it leaves."""
        joins = bool(hello.get("joins"))
        with self._lock:
            # What another pod of its name is told from here on is nothing to this one, and its own round is to come.
            self._connections.pop(member, None)
            last = self._told.last
            self._take(self._rounds.joined(member, time.monotonic(), joins=joins))
            # A command that was given before it came is news to it, but the start of a round is not for who joins.
            news = self._told.last is not last or not (joins and isinstance(last, Start))
            if self._told.last is not None and news:
                with contextlib.suppress(OSError):  # its reader sees it too
                    connection.sendall(messages.of_command(self._told.last))
            # That of a pod which is replaced may not be known to be lost yet.
            self._connections[member] = connection
        try:
            while told := messages.read(lines):
                if "bytes" in told:
                    self._receive(Send(int(told["round"]), member, int(told["step"])), int(told["bytes"]), lines)
                else:
                    self._ended(member, int(told["round"]), messages.end(told))
        finally:
            with self._lock:
                if self._connections.get(member) is connection:
                    del self._connections[member]
                    self._take(self._rounds.left(member, time.monotonic()))

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
