"""What may go wrong between us and an API server."""

from __future__ import annotations

from typing import Final

NOT_STARTED: Final = 400
"""How a kubelet answers for the log of a container that has not begun."""
FORBIDDEN: Final = 403
MISSING: Final = 404
CONFLICT: Final = 409
TOO_LONG: Final = "TooLong"
"""The reason when an answer is longer than what we read of it."""
EXPIRED: Final = 410
"""The resourceVersion, or the page of a list, is older than what the server remembers: list again."""


class ApiError(Exception):
    """The API server refused, or could not be reached.

    `code` is the HTTP status, or 0 when no answer came: then the write may or may not have been applied.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NoClusterError(Exception):
    """Nothing leads to a cluster, or there is no login. The message names the fix."""


class InvalidNameError(ValueError):
    """What is no name of an object, a job's or a namespace's; nothing was sent."""


def is_transient(error: ApiError) -> bool:
    """Whether the same request may be answered a little later: no answer came, or the server is busy or going down."""
    return error.code in {0, 429} or error.code >= 500
