"""The chief's supervisor under ParameterServer, to which those of workers and servers connect.

It applies the rules of supervise/server_rounds.py, and sends each of the others its own commands.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tfgpujob_trainer.supervise import messages
from tfgpujob_trainer.supervise.commands import Command, End, MemberState
from tfgpujob_trainer.supervise.listener import Listener
from tfgpujob_trainer.supervise.member import Member
from tfgpujob_trainer.supervise.server_rounds import Commands, ServerRounds


class ServerLeader(Listener, Member):
    """It requests no in-memory checkpoints from others: only the chief has any."""

    speaks = True

    def __init__(
        self,
        chief: str,
        workers: Sequence[str],
        servers: Sequence[str],
        *,
        budget: int,
        token: str,
        port: int,
        host: str,
    ) -> None:
        """Others by their names; raises OSError if the port is in use."""
        super().__init__()
        self._rounds = ServerRounds(chief, frozenset(servers), budget)
        self._own, self._others = chief, frozenset((*workers, *servers))
        self._told = MemberState(chief)
        self.listen(token, port=port, host=host, members=len(self._others))

    def ended(self, round_: int, end: End) -> None:
        """The chief's process has ended."""
        with self._lock:
            self._tell(self._rounds.ended(self._own, round_, end, time.monotonic()))

    def command(self, round_: int) -> Command | None:
        """The command that applies to the chief's process of this round."""
        with self._lock:
            self._tell(self._rounds.waited(time.monotonic()))
            return self._told.in_round(round_)

    def restarts(self) -> int:
        """Restarts of all pods."""
        with self._lock:
            return self._rounds.restarts

    def knows(self, member: str, hello: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """True for the tasks in the chief's TF_CONFIG."""
        return member in self._others

    def joined(self, member: str, hello: Mapping[str, Any], connection: socket.socket) -> bool:
        """Read what it knows of its own."""
        left, round_ = (hello[name] if type(hello.get(name)) is int else None for name in ("budget", "round"))
        with self._lock:
            self._tell(self._rounds.joined(member, left, round_))
            self._connections[member] = connection
        return True

    def heard(self, member: str, told: Mapping[str, Any], connection: socket.socket, _: IO[bytes]) -> None:
        """Its process has ended."""
        with self._lock:
            if self._connections.get(member) is connection:
                self._tell(self._rounds.ended(member, int(told["round"]), End(**told["end"]), time.monotonic()))

    def left(self, member: str, *, silent: bool) -> None:  # noqa: ARG002
        """Its pod is gone, or can't be heard."""
        self._tell(self._rounds.gone(member))

    def _tell(self, told: Commands) -> None:
        """Called with the lock held."""
        for member, command in told.items():
            if member == self._own:
                self._told.take(command)
            elif member in self._connections:
                messages.tell(self._connections[member], messages.of_command(command))
