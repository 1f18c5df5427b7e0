"""The wire format of the messages of a gang: JSON lines of limited length."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping
from typing import IO, Any

from tfgpujob_contract.pod import MAX_REPLICAS
from tfgpujob_trainer.supervise.commands import Brought, Command, Drain, End, GiveUp, Send, Start, Stop

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


def read(lines: IO[bytes]) -> dict[str, Any]:
    """The next line; empty at the end of the connection, for any reason, and for a line of another form."""
    try:
        return received(lines)
    except OSError:
        return {}


def received(lines: IO[bytes]) -> dict[str, Any]:
    """The same; raises OSError if the peer fell silent without closing the connection."""
    try:
        found = json.loads(lines.readline(LINE_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def line(told: dict[str, Any]) -> bytes:
    """The message as a line."""
    return json.dumps(told).encode() + b"\n"


def of_end(round_: int, end: End) -> bytes:
    """The end of a member's processes as a line."""
    return line({"round": round_, **dataclasses.asdict(end)})


def end(told: dict[str, Any]) -> End:
    """The end of a member's processes from a line."""
    step = told.get("in_memory")
    saved = bool(told.get("saved", False))
    return End(int(told["code"]), bool(told["progressed"]), None if step is None else int(step), saved)


def brought(hello: Mapping[str, Any]) -> Brought:
    """What the first line of a member says that it brings."""
    return Brought(**hello.get("brought", {}))


def of_command(command: Command) -> bytes:
    """A command as a line."""
    return line({_COMMANDS[type(command)]: dataclasses.asdict(command)})


def command(told: dict[str, Any]) -> Command:
    """A command from a line."""
    name, fields = next(iter(told.items()))
    kind = next((kind for kind, known in _COMMANDS.items() if known == name), None)
    if kind is None or (kind is Start and (fields.get("workers") or 0) > MAX_REPLICAS):
        return GiveUp("the leader speaks of what is not known here")
    if kind is Start:
        fields["without"] = tuple(fields.get("without", ()))
    return kind(**fields)


_COMMANDS: dict[type[Command], str] = {
    Drain: "drain",
    Stop: "stop",
    Send: "send",
    Start: "start",
    GiveUp: "giveUp",
}
