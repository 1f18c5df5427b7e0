"""What may go wrong between a person and the cluster."""

from __future__ import annotations

from tfgpujob.api import Invalid
from tfgpujob.kube.errors import ApiError, InvalidNameError, NoClusterError

__all__ = [
    "ApiError",
    "InvalidJobError",
    "InvalidNameError",
    "LocalRunError",
    "NoClusterError",
    "PodError",
    "TensorBoardError",
]


class InvalidJobError(ValueError):
    """The operator would refuse this job; nothing was sent. `problems` has every one, with its field and fix."""

    def __init__(self, problems: tuple[Invalid, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class LocalRunError(Exception):
    """A job that was run on this machine did not succeed. `code` is the exit code of `tfgpu run`."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class PodError(Exception):
    """A pod that was made for the caller can't do its work: what is wrong, and what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")


class TensorBoardError(PodError):
    """There is nothing to show, or no TensorBoard to show it with."""
