"""How what the members of a gang say to each other goes over a connection: JSON lines, and nothing longer."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import IO, Any

from tfgpujob_trainer.contract.resize import MAX_WORKERS
from tfgpujob_trainer.supervise.commands import Command, Drain, End, GiveUp, Send, Start, Stop

LINE_BYTES = 4096
"""Of a line that is read. A token has 64 characters."""
WELCOME = b"welcome\n"
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A node that is lost says no goodbye: seconds until the first question, between two, and how many go unanswered."""
_UNANSWERED = (socket.TCP_USER_TIMEOUT, 20_000)
"""The same for what it was told and has not acknowledged, in milliseconds: nothing else is asked until then."""


def keep_alive(connection: socket.socket) -> None:
    """From now on only a peer that is gone ends it, however long nothing is said."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (*_KEEP_ALIVE, _UNANSWERED):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def read(lines: IO[bytes]) -> dict[str, Any]:
    """The next line; empty at the end, however that came, and where it is none of ours."""
    try:
        return received(lines)
    except OSError:
        return {}


def received(lines: IO[bytes]) -> dict[str, Any]:
    """The same; raises OSError if the other end fell silent, and did not end the connection itself."""
    try:
        found = json.loads(lines.readline(LINE_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def line(told: dict[str, Any]) -> bytes:
    """What is said, as a line."""
    return json.dumps(told).encode() + b"\n"


def of_end(round_: int, end: End) -> bytes:
    """How a member's processes have ended, as a line."""
    return line({"round": round_, **dataclasses.asdict(end)})


def end(told: dict[str, Any]) -> End:
    """How a member's processes have ended."""
    step = told.get("in_memory")
    saved = bool(told.get("saved", False))
    return End(int(told["code"]), bool(told["progressed"]), None if step is None else int(step), saved)


def of_command(command: Command) -> bytes:
    """What a leader tells, as a line."""
    return line({_COMMANDS[type(command)]: dataclasses.asdict(command)})


def command(told: dict[str, Any]) -> Command:
    """What a leader tells."""
    name, fields = next(iter(told.items()))
    kind = next((kind for kind, known in _COMMANDS.items() if known == name), None)
    if kind is None or (kind is Start and (fields.get("workers") or 0) > MAX_WORKERS):
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
