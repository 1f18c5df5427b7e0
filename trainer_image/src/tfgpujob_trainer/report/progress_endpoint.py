"""The HTTP endpoint GET /progress: the status of the run as JSON, from a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from tfgpujob_trainer import __version__
from tfgpujob_trainer.report.run_status import RunStatus

Say = Callable[[str], None]

_TIMEOUT_SECONDS = 1.0


class _Handler(BaseHTTPRequestHandler):
    run_status: ClassVar[RunStatus]
    server_version, sys_version = f"tfgpu-train/{__version__}", ""
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer /progress; there is nothing else."""
        if self.path != "/progress":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.run_status.to_json()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep requests out of the training log."""


class _Server(HTTPServer):
    """One request at a time, so that nobody can make the training process start threads."""

    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no event of the training."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take IPv4 too."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def serve(run_status: RunStatus, port: int, *, in_pod: bool, say: Say) -> int | None:
    """Answer GET /progress on `port` from now on; the port, or None, said aloud, if it cannot be had.

    A pod is asked from outside, by the operator and by `kubectl port-forward`, so it listens on all of its own
    addresses; elsewhere only this machine may ask. 0 takes any free port.
    """
    handler = type("Handler", (_Handler,), {"run_status": run_status})
    try:
        if in_pod and socket.has_dualstack_ipv6():
            server: _Server = _ServerV6(("::", port), handler)
        else:
            server = _Server(("0.0.0.0" if in_pod else "127.0.0.1", port), handler)  # noqa: S104 (see above)
    except OSError as error:
        say(f"no /progress: port {port}: {error.strerror}; set TFGPU_PROGRESS_PORT to a free one, or to 0")
        return None
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return int(server.server_address[1])
