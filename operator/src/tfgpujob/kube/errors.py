"""Errors between us and an API server."""

from __future__ import annotations

from typing import Final

NOT_STARTED: Final = 400
"""The kubelet's answer for the log of a container that has not started."""
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
MISSING: Final = 404
CONFLICT: Final = 409
TOO_LONG: Final = "TooLong"
"""The reason when an answer is longer than we read."""
EXPIRED: Final = 410
"""The resourceVersion, or the continue token of a list, has expired: list again."""


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
    """No cluster is configured, or there is no login. The message names the fix."""


class InvalidNameError(ValueError):
    """Not a valid name of a job or namespace; nothing was sent."""


def is_transient(error: ApiError) -> bool:
    """True if the same request may succeed later: no answer arrived, or the server is busy or shutting down."""
    return error.code in {0, 429} or error.code >= 500


def was_refused(error: BaseException | None) -> bool:
    """True if the object certainly doesn't exist: a create without an answer may have been applied."""
    return isinstance(error, ApiError) and not is_transient(error)
