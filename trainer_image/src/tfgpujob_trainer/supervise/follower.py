"""A member of a gang in another pod than the leader's: it does as it is told, over one connection.

One that is lost is not made again: whoever can't be heard may still run. Where the others train on without it, it ends
its processes when the leader falls silent (supervise/rounds.py: SILENT_SECONDS). But a worker or server under
ParameterServer looks for the next leader, since the chief's pod may start again without it.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import IO

from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import messages, transfer
from tfgpujob_trainer.supervise.commands import Command, End, GiveUp, Leave, MemberState, Naming, Send, Start

_CONNECT_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_JOIN_SECONDS = 120.0
"""How long one that joins looks for the leader, which runs already. Others may be waiting for it."""


class Follower:
    """`naming` as the leader has it; who `joins` has still to become a member, and comes only once it is `ready`.

    `dispensable`: the others may train on without it. `patient`: nobody waits for it in particular, and where it starts
    together with the leader, that may have an image to pull. `outlives`: a leader, as whoever serves does; `budget`:
    what its pod was told to be left of it.
    """

    speaks = True

    def __init__(
        self,
        member: str,
        leader: tuple[str, int],
        token: str,
        memory: MemoryFile | None = None,
        naming: Naming | None = None,
        *,
        joins: bool = False,
        ready: Callable[[], None] = lambda: None,
        dispensable: bool = False,
        patient: bool = False,
        outlives: bool = False,
        budget: int | None = None,
    ) -> None:
        self._member, self._leader, self._memory = member, leader, memory
        self._dispensable, self._outlives = dispensable, outlives
        self._join_seconds = _JOIN_SECONDS if joins and not patient else math.inf
        self._hello = {
            "member": member,
            "token": token,
            **({"joins": True} if joins else {}),
            **({} if budget is None else {"budget": budget}),
        }
        self._waits = False
        """Its processes have ended, and it has not heard yet what follows."""
        self._round = 0
        """That of its processes, or of those that it was told to start."""
        self._lock, self._speaking = threading.Lock(), threading.Lock()
        self._told, self._ready = MemberState(member, naming, joins=joins), ready
        self._connection: socket.socket | None = None
        threading.Thread(target=self._listen, name="rounds", daemon=True).start()

    def ended(self, round_: int, end: End) -> None:
        """Tell the leader."""
        with self._lock:
            self._waits = True
            if self._connection is None:
                self._told.take(GiveUp("the leader was not reached yet"))
                return
            connection = self._connection
        with self._speaking, contextlib.suppress(OSError):  # its reader sees it too
            connection.sendall(messages.of_end(round_, end))

    def command(self, round_: int) -> Command | None:
        """What the leader has told that counts for processes of this round."""
        with self._lock:
            self._round = max(self._round, round_)
            return self._told.in_round(round_)

    def resize(self, workers: int) -> None:
        """Only the leader is asked."""

    def gang(self) -> None:
        """Only the leader tells."""

    def restarts(self) -> None:
        """Only the leader counts."""

    def _listen(self) -> None:
        self._ready()
        self._follow()
        while self._outlives and not self._has_given_up():
            self._follow()

    def _has_given_up(self) -> bool:
        with self._lock:
            return isinstance(self._told.in_round(-1), GiveUp)

    def _follow(self) -> None:
        """One leader, until it has left."""
        welcomed = self._welcomed()
        if welcomed is None:
            with self._lock:
                self._told.take(GiveUp("the leader was not reached"))
            return
        silent = False
        try:
            with welcomed as connection, connection.makefile("rb") as lines:
                self._hear(connection, lines)
        except OSError:
            silent = True
        finally:
            # Whatever has ended it: its processes must not wait for an answer that nobody listens for.
            with self._lock:
                self._connection = None
                if (self._waits or not self._outlives) and not isinstance(self._told.last, GiveUp | Leave):
                    self._told.take(GiveUp("the leader has left", at_once=silent and self._dispensable))

    def _hear(self, connection: socket.socket, lines: IO[bytes]) -> None:
        while told := messages.received(lines):
            command = messages.command(told)
            with self._lock:
                self._told.take(command)
                self._waits = False
                if isinstance(command, Start):  # a next leader may ask before the processes of that round are begun
                    self._round = command.round
            if isinstance(command, Send) and command.member == self._member:
                with self._speaking, contextlib.suppress(OSError):
                    transfer.send({"round": command.round}, command.step, self._memory, connection.sendall)

    def _welcomed(self) -> socket.socket | None:
        """A connection to the leader, whose pod may have still to start, or to get rid of strangers."""
        until = time.monotonic() + self._join_seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(self._leader, timeout=_CONNECT_SECONDS)
                # Only a leader that this one outlives may not know the round.
                connection.sendall(messages.line(self._hello | ({"round": self._round} if self._outlives else {})))
                if connection.recv(len(messages.WELCOME), socket.MSG_WAITALL) == messages.WELCOME:
                    messages.keep_alive(connection)
                    with self._lock:
                        self._connection = connection
                    return connection
                connection.close()
            time.sleep(_AGAIN_SECONDS)
        return None
