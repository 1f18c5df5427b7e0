"""A member of a gang in another pod than the leader's. It obeys the leader's commands, received over one connection.

A lost connection is not opened again, because a member that can't be heard may still run. If the others can train
without it, it ends its processes when the leader is silent (supervise/rounds.py: SILENT_SECONDS). Under ParameterServer
a worker or server looks for the next leader instead, because the chief's pod may restart alone.
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
"""How long a joining member looks for the leader, which already runs. Other members may wait for it."""


class Follower:
    """`naming` is the leader's. A member that `joins` is not in the gang yet, and connects once it is `ready`.

    `dispensable`: the others may train without it. `patient`: no member waits for this one in particular, and if it
    starts together with the leader, the leader may have an image to pull. `outlives` the leader, as a worker or server
    under ParameterServer does; `budget`: the restarts that were left when its pod was created.
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
        """Its processes have ended, and the leader's next command has not arrived."""
        self._round = 0
        """The round of its processes, or of the start that it has to obey."""
        self._lock, self._speaking = threading.Lock(), threading.Lock()
        self._told, self._ready = MemberState(member, naming, joins=joins), ready
        self._connection: socket.socket | None = None
        threading.Thread(target=self._listen, name="rounds", daemon=True).start()

    def ended(self, round_: int, end: End) -> None:
        """Report the end to the leader."""
        with self._lock:
            self._waits = True
            if self._connection is None:
                self._told.take(GiveUp("the leader was not reached yet"))
                return
            connection = self._connection
        with self._speaking, contextlib.suppress(OSError):  # its reader sees it too
            connection.sendall(messages.of_end(round_, end))

    def command(self, round_: int) -> Command | None:
        """The leader's command that applies to processes of this round."""
        with self._lock:
            self._round = max(self._round, round_)
            return self._told.in_round(round_)

    def resize(self, workers: int) -> None:
        """Only the leader can be asked to resize."""

    def gang(self) -> None:
        """Only the leader reports it."""

    def restarts(self) -> None:
        """Only the leader counts them."""

    def _listen(self) -> None:
        self._ready()
        self._follow()
        while self._outlives and not self._has_given_up():
            self._follow()

    def _has_given_up(self) -> bool:
        with self._lock:
            return isinstance(self._told.in_round(-1), GiveUp)

    def _follow(self) -> None:
        """Follow one leader until its connection ends."""
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
            # Whatever ended it: its processes must not wait for an answer from a closed connection.
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
                if isinstance(command, Start):  # the next leader may connect before the processes of that round start
                    self._round = command.round
            if isinstance(command, Send) and command.member == self._member:
                with self._speaking, contextlib.suppress(OSError):
                    transfer.send({"round": command.round}, command.step, self._memory, connection.sendall)

    def _welcomed(self) -> socket.socket | None:
        """A connection to the leader, whose pod may have to start first, or to drop unknown clients."""
        until = time.monotonic() + self._join_seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(self._leader, timeout=_CONNECT_SECONDS)
                # Only a leader that this member outlives may not know the round.
                connection.sendall(messages.line(self._hello | ({"round": self._round} if self._outlives else {})))
                if connection.recv(len(messages.WELCOME), socket.MSG_WAITALL) == messages.WELCOME:
                    messages.keep_alive(connection)
                    with self._lock:
                        self._connection = connection
                    return connection
                connection.close()
            time.sleep(_AGAIN_SECONDS)
        return None
