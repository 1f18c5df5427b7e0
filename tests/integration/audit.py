"""The operator's requests to the API server, from the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.eventually import WAIT_SECONDS, eventually

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """One finished request."""

    verb: str
    group: str
    resource: str
    """With its subresource: `tfgpujobs/status`."""
    namespace: str
    name: str
    code: int
    denied: bool
    """Refused by authorization, not by the server's other rules."""

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES

    @property
    def is_renewal(self) -> bool:
        """The heartbeat of a leader."""
        return self.resource == "leases" and self.verb == "update" and self.code < 300


class AuditLog:
    """The requests of one user, from the audit log's file (metadata level, stage ResponseComplete)."""

    def __init__(self, file: Path, user: str) -> None:
        self._file = file
        self._user = user

    def position(self) -> int:
        """Now, for `since`."""
        return self._file.stat().st_size

    def since(self, position: int, *namespaces: str) -> list[Request]:
        """What was finished since; with namespaces, only what was about objects there, or outside of any for ""."""
        return [r for r in self._read(position) if not namespaces or r.namespace in namespaces]

    def renewals(
        self, position: int, count: int, *, seconds: float = WAIT_SECONDS, report: Callable[[], str] = str
    ) -> None:
        """Waits until the leader has renewed its Lease `count` times (one every 2 s): time passes, and it lives."""

        def enough() -> bool:
            return sum(request.is_renewal for request in self.since(position)) >= count

        eventually(enough, f"{count} renewals of the Lease", seconds=seconds, every=0.3, report=report)

    def _read(self, position: int) -> Iterator[Request]:
        with self._file.open("rb") as lines:
            lines.seek(position)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                event = json.loads(line)
                if event["user"].get("username") == self._user and "objectRef" in event:
                    yield _request(event)


def _request(event: dict[str, object]) -> Request:
    about: dict[str, str] = event["objectRef"]  # type: ignore[assignment]
    answer: dict[str, int] = event.get("responseStatus") or {}  # type: ignore[assignment]
    notes: dict[str, str] = event.get("annotations") or {}  # type: ignore[assignment]
    subresource = about.get("subresource")
    return Request(
        verb=str(event["verb"]),
        group=about.get("apiGroup", ""),
        resource=about.get("resource", "") + (f"/{subresource}" if subresource else ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=int(answer.get("code", 0)),
        denied=notes.get("authorization.k8s.io/decision") == "forbid",
    )
