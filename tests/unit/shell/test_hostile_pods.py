"""Answers of pods to GET /progress and PUT /workers: none holds the event loop, none outlives the timeout."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop
from tests.machine import PATIENCE

from tfgpujob.core.observed.progress_report import parse
from tfgpujob.shell.progress_client import TIMEOUT_SECONDS, HttpProgressClient
from tfgpujob_contract.pod import MAX_PROGRESS

HELD_SECONDS = 0.05
REPORT = b'{"phase": "training", "step": 3, "steps": 10}'
OK = b"HTTP/1.1 200 OK\r\n"
Say = Callable[[socket.socket], None]


def flood(begin: bytes, again: bytes, pause: float = 0.0) -> Say:
    """Say something, and something else without an end."""

    def say(connection: socket.socket) -> None:
        connection.sendall(begin)
        many = again if pause else again * (1 + (1 << 16) // len(again))
        while True:
            connection.sendall(many)
            time.sleep(pause)

    return say


def once(answer: bytes) -> Say:
    def say(connection: socket.socket) -> None:
        connection.sendall(answer)
        with contextlib.suppress(OSError):
            connection.recv(1)

    return say


def reset(connection: socket.socket) -> None:
    connection.sendall(OK + b"Content-Length: 45\r\n\r\n{")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def little_at_a_time(text: bytes) -> Say:
    def say(connection: socket.socket) -> None:
        for number in range(1000):
            connection.sendall(text[number % len(text) :][:1])
            time.sleep(0.005)

    return say


@contextmanager
def pod(say: Say) -> Iterator[int]:
    """A server in threads of its own, so that the loop's thread does nothing but ask. Its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                connection.recv(1 << 16)
                say(connection)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def asked(port: int, times: int = 4, *, put: bool = False) -> tuple[list[object], float, float]:
    """The answers, the most CPU seconds of the loop's thread between two turns of it, and the seconds it all took."""

    async def main() -> tuple[list[object], float, float]:
        most, going = 0.0, True

        async def watch() -> None:
            nonlocal most
            while going:
                began = time.thread_time()
                await asyncio.sleep(0.002)
                most = max(most, time.thread_time() - began)

        ask, watching = HttpProgressClient(port), asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        most, began = 0.0, time.monotonic()
        asks: list[Awaitable[object]] = [
            ask.put_workers("127.0.0.1", "0af3", 2) if put else ask("127.0.0.1", "0af3") for _ in range(times)
        ]
        found = list(await asyncio.gather(*asks))
        took, going = time.monotonic() - began, False
        await watching
        return found, most, took

    return uvloop.run(main())


HOSTILE = {
    "endless 100 Continue": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "endless 103 with headers": flood(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "endless 101": flood(b"", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "100 Continue now and then": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.01),
    "endless headers": flood(OK, b"X-A: b\r\n"),
    "a header without an end": flood(OK + b"X-A: ", b"a"),
    "a status line without an end": flood(b"HTTP/1.1 200 ", b"O"),
    "a huge status line": once(b"HTTP/1.1 200 " + b"O" * (1 << 20) + b"\r\n\r\n" + REPORT),
    "endless body": flood(OK + b"\r\n", b" "),
    "endless chunks": flood(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a length of a terabyte": flood(OK + b"Content-Length: 1099511627776\r\n\r\n", b" "),
    "a length of many digits": once(OK + b"Content-Length: " + b"9" * 16000 + b"\r\n\r\n"),
    "a negative length": once(OK + b"Content-Length: -5\r\n\r\n" + REPORT),
    "a byte at a time": little_at_a_time(OK + b"Content-Length: 1000\r\n\r\n"),
    "no length": once(OK + b"\r\n" + REPORT),
    "nothing": once(b""),
    "only line ends": flood(b"", b"\r\n"),
    "another protocol": once(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "another version": once(b"HTTP/2.0 200 OK\r\n\r\n" + REPORT),
    "a status that is no number": once("HTTP/1.1 ²00 OK\r\n\r\n".encode("latin-1") + REPORT),
    "a status of four digits": once(b"HTTP/1.1 2000 OK\r\n\r\n" + REPORT),
    "reset": reset,
    "less than it says": lambda connection: connection.sendall(OK + b"Content-Length: 99\r\n\r\n{"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("say", "put"),
    [(say, False) for say in HOSTILE.values()] + [(HOSTILE["endless 100 Continue"], True)],
    ids=[*HOSTILE, "PUT"],
)
def test_no_answer_of_a_pod_holds_the_operator(say: Say, put: bool) -> None:
    """N3: one pod that answered 100 Continue without an end held it for 1.8 s at each poll."""
    with pod(say) as port:
        answers, held, took = asked(port, put=put)
    assert answers == [None] * 4
    assert held <= HELD_SECONDS, f"{held:.3f} s of CPU in one piece"
    assert took < TIMEOUT_SECONDS + PATIENCE, f"{took:.1f} s"


def body_of(said: bytes) -> bytes:
    return OK + f"Content-Length: {len(said)}\r\n\r\n".encode() + said


FULL = REPORT + b" " * (MAX_PROGRESS - len(REPORT))


@pytest.mark.parametrize(
    "answer",
    [
        body_of(REPORT),
        b"HTTP/1.0 200\r\nContent-Length: 45\r\n\r\n" + REPORT,
        body_of(REPORT) + b"and more than it says",
        body_of(FULL),
    ],
    ids=["length", "1.0", "more than it says", "the longest"],
)
def test_an_answer_is_read(answer: bytes) -> None:
    def say(connection: socket.socket) -> None:
        connection.sendall(answer)

    with pod(say) as port:
        ((body,), held, _) = asked(port, times=1)
    assert isinstance(body, bytes)
    report = parse(body)
    assert report is not None and report.step == 3
    assert held <= HELD_SECONDS


def test_a_server_may_keep_the_connection() -> None:
    with pod(once(body_of(REPORT))) as port:
        answers, _, _ = asked(port, times=1)
    assert answers == [REPORT]


@pytest.mark.parametrize("answer", [b"302 Found\r\nLocation: /progress", b"500 No", b"404 Not Found"])
def test_other_answers_are_those_that_they_are(answer: bytes) -> None:
    text = b"HTTP/1.1 " + answer + b"\r\nContent-Length: 2\r\n\r\n{}"
    with pod(once(text)) as port:
        assert asked(port, times=1)[0] == [None]
        assert asked(port, times=1, put=True)[0] == [(int(answer[:3]), b"{}")]


def test_an_address_with_a_zone_is_none() -> None:
    async def ask(ip: str) -> object:
        return await HttpProgressClient(1)(ip, "")

    assert asyncio.run(ask("fe80::1%\r\nX-More: y")) is None
