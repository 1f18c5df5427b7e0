"""A member of a gang in another pod than the leader's. It obeys the leader's commands, received over one connection.

A member that can't be heard may still run, so it never takes part again as it was. If its connection is lost, it ends
its processes, and looks for the leader's pod, or the one that replaces that. It joins there like a new pod, and brings
its in-memory checkpoint (supervise/rounds.py). In a gang whose pods can't be replaced it gives up. Under
ParameterServer a worker or server keeps its processes meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import messages, transfer
from tfgpujob_trainer.supervise.commands import (
    Brought,
    Command,
    End,
    GiveUp,
    Leave,
    MemberState,
    Naming,
    Send,
    Start,
    Stop,
)
from tfgpujob_trainer.supervise.member import Member

_CONNECT_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_LEADER_SECONDS = 1800.0
"""How long it looks for a leader that ran before, or for the pod that replaces it, which may have to find a node, and
waits for an answer: as long as the default of startDeadlineSeconds, after which the operator restarts all."""
_ALONE_SECONDS = 15.0
"""How long its processes may take to end by themselves after the leader's have: they may be done, too. The next leader
begins without this member after SILENT_SECONDS at the earliest (supervise/rounds.py)."""


class Follower(Member):
    """`naming` is the leader's. A member that `joins` is not in the gang yet, and connects once it is `ready`.

    `restart` is how often its pod was replaced; with it the member looks for the next leader when it has lost one.
    `outlives` the leader, as a worker or server under ParameterServer does; `budget`: the restarts that were left when
    its pod was created.
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
        restart: int | None = None,
        outlives: bool = False,
        budget: int | None = None,
    ) -> None:
        self._member, self._leader, self._memory, self._naming = member, leader, memory, naming
        self._returns, self._outlives = restart is not None, outlives
        self._look_seconds = _LEADER_SECONDS if joins else math.inf
        hello = {"member": member, "token": token, "joins": joins or None, "restart": restart, "budget": budget}
        self._hello: dict[str, Any] = {name: value for name, value in hello.items() if value is not None}
        self._round = -1 if joins else 0
        """The round of its processes, or of the start that it has to obey; -1: none."""
        self._ended: tuple[int, End] = (-1, End(ExitCode.DONE, progressed=False))
        """The last round whose processes have ended, and how."""
        self._answered_by = math.inf
        self._since: int | None = None
        """The step that its round has started from, if that was in memory."""
        self._ends_too = False
        """Whether the leader has said that its processes have ended by themselves, as all do together."""
        self._followed = False
        """Whether it has had a leader."""
        self._lock, self._speaking = threading.Condition(), threading.Lock()
        self._told, self._ready = MemberState(member, naming, joins=joins), ready
        self._connection: socket.socket | None = None
        threading.Thread(target=self._listen, name="rounds", daemon=True).start()

    def ended(self, round_: int, end: End) -> None:
        """Report the end to the leader."""
        with self._lock:
            self._ended, self._answered_by = (round_, end), time.monotonic() + _LEADER_SECONDS
            self._lock.notify_all()
            connection = self._connection
            if connection is None and not (self._returns and self._followed):
                self._told.take(GiveUp("the leader was not reached yet"))
        if connection is not None:
            with self._speaking:
                messages.tell(connection, messages.of_end(round_, end))

    def command(self, round_: int) -> Command | None:
        """The leader's command that applies to processes of this round."""
        with self._lock:
            self._round = max(self._round, round_)
            if self._is_idle() and time.monotonic() > self._answered_by:
                # Its pod may be frozen: then its connections stay, and nothing else would end the wait.
                self._told.take(GiveUp("the leader has not answered"))
            return self._told.in_round(round_)

    def _listen(self) -> None:
        self._ready()
        self._follow()
        while (self._outlives or self._returns) and not self._has_given_up():
            self._follow()

    def _has_given_up(self) -> bool:
        with self._lock:
            return isinstance(self._told.last, GiveUp | Leave)

    def _follow(self) -> None:
        """Follow one leader until its connection ends."""
        welcomed = self._welcomed()
        if welcomed is None:
            with self._lock:
                self._told.take(GiveUp("the leader was not reached"))
            return
        try:
            with contextlib.suppress(OSError), welcomed as connection, connection.makefile("rb") as lines:
                self._hear(connection, lines)
        finally:
            # Whatever ended it: its processes must not wait for an answer from a closed connection.
            with self._lock:
                self._connection = None
                if not isinstance(self._told.last, GiveUp | Leave):
                    self._left_alone()

    def _left_alone(self) -> None:
        """The leader is gone, or can't be heard. Called with the lock held."""
        if not self._returns:
            if self._is_idle() or not self._outlives:
                self._told.take(GiveUp("the leader has left"))
            return
        if self._ends_too:
            self._lock.wait_for(self._is_idle, _ALONE_SECONDS)
        if not self._is_idle():
            self._told.take(Stop(self._round))
            self._lock.wait_for(self._is_idle)
        round_, end = self._ended
        if round_ >= 0 and not (end.worth_a_retry or end.code == ExitCode.STOPPED):
            self._told.take(GiveUp(f"its processes ended with code {end.code}, and the leader has left"))
            return
        brought = Brought(round_, end.in_memory, self._since)
        self._hello |= {"joins": True, "brought": dataclasses.asdict(brought)}
        self._look_seconds = _LEADER_SECONDS
        self._told = MemberState(self._member, self._naming, joins=True)

    def _is_idle(self) -> bool:
        return self._ended[0] == self._round

    def _hear(self, connection: socket.socket, lines: IO[bytes]) -> None:
        while told := messages.received(lines):
            if told == messages.ENDED:
                self._ends_too = True
                continue
            command = messages.command(told)
            with self._lock:
                self._told.take(command)
                if isinstance(command, Start) and self._told.last is command:
                    # The next leader may connect before the processes of that round start.
                    self._round, self._since = command.round, command.step
                    self._hello["leader"] = max(command.leader, self._hello.get("leader", 0))
            if isinstance(command, Send) and command.member == self._member:
                with self._speaking, contextlib.suppress(OSError):
                    transfer.send({"round": command.round}, command.step, self._memory, connection.sendall)

    def _welcomed(self) -> socket.socket | None:
        """A connection to the leader, whose pod may have to start first, or to drop unknown clients."""
        until = time.monotonic() + self._look_seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(self._leader, timeout=_CONNECT_SECONDS)
                # Only a leader that this member outlives may not know the round.
                connection.sendall(messages.line(self._hello | ({"round": self._round} if self._outlives else {})))
                if connection.recv(len(messages.WELCOME), socket.MSG_WAITALL) == messages.WELCOME:
                    messages.keep_alive(connection)
                    with self._lock:
                        self._connection, self._followed, self._ends_too = connection, True, False
                    return connection
                connection.close()
            time.sleep(_AGAIN_SECONDS)
        return None
