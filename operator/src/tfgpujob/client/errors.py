"""What may go wrong between a person and the cluster."""

from __future__ import annotations

from tfgpujob.api import Invalid
from tfgpujob.shell.ports import ApiError
from tfgpujob.shell.settings import SettingsError as NoClusterError

__all__ = ["ApiError", "InvalidJobError", "NoClusterError", "TensorBoardError"]


def is_passing(error: ApiError) -> bool:
    """Whether the same request may be answered a little later: no answer came, or the server is busy or going down."""
    return error.code in {0, 429} or error.code >= 500


class InvalidJobError(ValueError):
    """The operator would refuse this job; nothing was sent. `problems` has every one, with its field and fix."""

    def __init__(self, problems: tuple[Invalid, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class TensorBoardError(Exception):
    """There is nothing to show, or no TensorBoard to show it with: what is wrong, and what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
