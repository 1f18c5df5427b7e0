"""The member of a gang that decides by the rules of supervise/rounds.py: its communication with the other members.

A member whose connection is lost is not accepted again in this round: it may still run, and then no other round may
start.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

from tfgpujob_contract.exit_codes import ExitCode
from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_trainer.checkpoints.memory_file import MemoryFile
from tfgpujob_trainer.supervise import messages, transfer
from tfgpujob_trainer.supervise.commands import Brought, Command, End, MemberState, Naming, Send, Start, Stop
from tfgpujob_trainer.supervise.listener import Listener
from tfgpujob_trainer.supervise.member import Member
from tfgpujob_trainer.supervise.rounds import Rounds


class Leader(Listener, Member):
    """Listens only if there are, or may be, other members."""

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
        term: int | None = None,
        outside: bool = False,
    ) -> None:
        """`members` begins with the leader's name. With `naming` the number of workers may change: at least `least`
        continue when others have left, and there are `spares` besides the members. With a `term` its pod has replaced
        the leader's that often; then the spares are among the members.

        Raises OSError if the port is in use.
        """
        super().__init__()
        more = spares if term is None else 0
        workers = 0 if naming is None else len(members) - len(naming.chiefs) + more
        self._rounds = Rounds(members, budget, naming, workers, least, spares, term or 0, outside=outside)
        self._own = members[0]
        self._memory, self._naming = memory, naming
        self._told = MemberState(self._own, naming)
        self._restarts: dict[str, int] = {}
        """How often the pod of a member that has connected was replaced."""
        begin = self._rounds.take_over if term is not None else partial(self._rounds.joined, self._own)
        self._take(begin(time.monotonic()))
        if len(members) > 1 or naming is not None:
            self.listen(token, port=port, host=host, members=len(members))

    def ended(self, round_: int, end: End) -> None:
        """The leader's own processes have ended."""
        self._ended(self._own, round_, end)
        if end.code in (ExitCode.DONE, ExitCode.STOPPED):
            with self._lock:
                self._send(messages.line(messages.ENDED))

    def command(self, round_: int) -> Command | None:
        """The command that applies to the leader's own processes of this round."""
        with self._lock:
            self._take(self._rounds.waited(time.monotonic()))
            return self._told.in_round(round_)

    def resize(self, workers: int) -> None:
        """Another number of workers is requested."""
        with self._lock:
            self._take(self._rounds.resize(workers))

    def gang(self) -> dict[str, Any] | None:
        """What GET /progress reports of a gang that can be resized; only `reason` if it no longer can."""
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

    def _ended(self, member: str, round_: int, end: End) -> None:
        with self._lock:
            self._take(self._rounds.ended(member, round_, end, time.monotonic()))

    def _take(self, command: Command | None) -> None:
        """Send a new command to all members. Called with the lock held."""
        if command is None or command == self._told.last:
            return
        self._told.take(command)
        self._send(messages.of_command(command))

    def _send(self, line: bytes) -> None:
        for connection in self._connections.values():
            messages.tell(connection, line)

    def knows(self, member: str, hello: Mapping[str, Any]) -> bool:
        """True unless it would join a gang of fixed size, has obeyed a later leader, or was replaced itself."""
        if self._naming is None:
            return not hello.get("joins")
        restart, leader = int(hello.get("restart", 0)), int(hello.get("leader", 0))
        with self._lock:
            replaced = restart < self._restarts.get(member, 0)
            if member not in self._naming.of(MAX_REPLICAS) or leader > self._rounds.term or replaced:
                return False
            self._restarts[member] = restart
        return True

    def joined(self, member: str, hello: Mapping[str, Any], connection: socket.socket) -> bool:
        """Take it in, and send it the last command if that is for it."""
        joins = bool(hello.get("joins"))
        with self._lock:
            late = not joins and self._rounds.is_late(member)
        if late:
            # It ends its processes, and joins.
            messages.tell(connection, messages.of_command(Stop(0)))
            return False
        with self._lock:
            # Commands to another pod of this name don't concern this one, whose round comes later.
            self._connections.pop(member, None)
            last = self._told.last
            brought = Brought(**hello.get("brought", {}))
            self._take(self._rounds.joined(member, time.monotonic(), joins=joins, brought=brought))
            # The last command is new to it, but a member that joins is not in the round that has started.
            news = self._told.last is not last or not (joins and isinstance(last, Start))
            if self._told.last is not None and news:
                messages.tell(connection, messages.of_command(self._told.last))
            # The loss of the pod that it replaces may not be known yet.
            self._connections[member] = connection
        return True

    def heard(self, member: str, told: Mapping[str, Any], _: socket.socket, lines: IO[bytes]) -> None:
        """Its processes have ended, or it sends its in-memory checkpoint."""
        if "bytes" in told:
            self._receive(Send(int(told["round"]), member, int(told["step"])), int(told["bytes"]), lines)
        else:
            self._ended(member, int(told["round"]), End(**told["end"]))

    def left(self, member: str, *, silent: bool) -> None:
        """Its pod is gone, or can't be heard."""
        self._take(self._rounds.left(member, time.monotonic(), silent=silent))

    def _receive(self, sending: Send, size: int, lines: IO[bytes]) -> None:
        """Read a checkpoint; the leader keeps it if it is complete and the rules still need it."""
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
