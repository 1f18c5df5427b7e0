"""What may go wrong between a person and the cluster."""

from __future__ import annotations

from typing import Final

from tfgpujob.api import Invalid
from tfgpujob.shell.ports import ApiError
from tfgpujob.shell.settings import SettingsError as NoClusterError

__all__ = ["ApiError", "InvalidJobError", "InvalidNameError", "NoClusterError", "TensorBoardError"]

NOT_STARTED: Final = 400
"""How a kubelet answers for the log of a container that has not begun."""
FORBIDDEN: Final = 403
MISSING: Final = 404
CONFLICT: Final = 409
EXPIRED: Final = 410
"""The version, or the page of a list, is older than what the server remembers."""


def is_passing(error: ApiError) -> bool:
    """Whether the same request may be answered a little later: no answer came, or the server is busy or going down."""
    return error.code in {0, 429} or error.code >= 500


class InvalidNameError(ValueError):
    """What is no name of an object, a job's or a namespace's; nothing was sent."""


class InvalidJobError(ValueError):
    """The operator would refuse this job; nothing was sent. `problems` has every one, with its field and fix."""

    def __init__(self, problems: tuple[Invalid, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class TensorBoardError(Exception):
    """There is nothing to show, or no TensorBoard to show it with: what is wrong, and what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
