"""The part of a pod in its gang, as its launcher uses it."""

from __future__ import annotations

from typing import Any

from tfgpujob_trainer.supervise.commands import Command, End, GiveUp


class Member:
    """A pod without a gang: when its processes end, it ends. Those of gangs override what they need."""

    speaks = False
    """Whether there are rounds."""

    def ended(self, round_: int, end: End) -> None:
        """Report that the processes of this pod have ended."""

    def command(self, round_: int) -> Command | None:  # noqa: ARG002
        """The last command that applies to processes of this round."""
        return GiveUp("off")

    def resize(self, workers: int) -> None:
        """Another number of workers was requested, by a client with the token. Only a leader can be asked."""

    def gang(self) -> dict[str, Any] | None:
        """What the leader reports of a gang whose number of workers can change; None from any other pod."""
        return None

    def restarts(self) -> int | None:
        """The restarts in place so far, if they may happen while this pod's processes run; else each pod knows them."""
        return None
