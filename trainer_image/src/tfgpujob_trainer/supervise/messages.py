"""The wire format of the messages of a gang: JSON lines of limited length."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from typing import IO, Any

from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_trainer.supervise.commands import Command, Drain, End, GiveUp, Send, Start, Stop

LINE_BYTES = 4096
"""Longest line that is read. A token has 64 characters."""
WELCOME = b"welcome\n"
ENDED: dict[str, Any] = {"ended": {}}
"""The leader's processes have ended by themselves. One that is lost does not say so."""
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A lost node does not close its connections: seconds until the first probe, between two, and the number of unanswered
ones."""
_UNANSWERED = (socket.TCP_USER_TIMEOUT, 20_000)
"""The same for unacknowledged data, in milliseconds, during which no probes are sent."""


def keep_alive(connection: socket.socket) -> None:
    """Enable keep-alive: the connection ends only when the peer is gone, however long it is silent."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (*_KEEP_ALIVE, _UNANSWERED):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def received(lines: IO[bytes]) -> dict[str, Any]:
    """The next line; empty at the end of the connection, and for a line of another form. Raises OSError if the peer
    fell silent without closing the connection."""
    try:
        found = json.loads(lines.readline(LINE_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def line(told: dict[str, Any]) -> bytes:
    """The message as a line."""
    return json.dumps(told).encode() + b"\n"


def tell(connection: socket.socket, told: bytes) -> None:
    """Send a line; what breaks the connection is seen by its reader."""
    with contextlib.suppress(OSError):
        connection.sendall(told)


def of_end(round_: int, end: End) -> bytes:
    """The end of a member's processes as a line."""
    return line({"round": round_, "end": dataclasses.asdict(end)})


def of_command(command: Command) -> bytes:
    """A command as a line."""
    return line({type(command).__name__: dataclasses.asdict(command)})


def command(told: dict[str, Any]) -> Command:
    """A command from a line."""
    name, fields = next(iter(told.items()))
    kind = _COMMANDS.get(name)
    if kind is None or (kind is Start and (fields.get("workers") or 0) > MAX_REPLICAS):
        return GiveUp("the leader speaks of what is not known here")
    if kind is Start:
        fields["without"] = tuple(fields.get("without", ()))
    return kind(**fields)


_COMMANDS: dict[str, type[Command]] = {kind.__name__: kind for kind in (Drain, Stop, Send, Start, GiveUp)}
