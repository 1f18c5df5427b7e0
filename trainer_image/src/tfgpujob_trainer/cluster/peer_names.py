"""Waits until the host names of a task's peers resolve. Does not import TensorFlow, which does not wait for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tfgpujob_contract.peers import SAY_SECONDS, looks
from tfgpujob_trainer.contract.environment import Environment
from tfgpujob_trainer.contract.exits import PeersMissingError
from tfgpujob_trainer.contract.text import counted
from tfgpujob_trainer.reporting.log import say

_SHOWN = 5


def resolve_peers(env: Environment, missing_are: Callable[[Sequence[str]], None] = lambda _: None) -> None:
    """Return once every name resolves: TensorFlow would fail at the first collective instead.

    In a pod, calls `missing_are` with the names of the missing pods at each look, and with none at the end, and raises
    PeersMissingError after the time that pods may take to start. In a local run the watchdog of the start-up decides.
    """
    said, limit = -math.inf, math.inf if env.start_seconds is None else env.start_seconds
    for waited, missing in looks((address.rpartition(":")[0] for address in env.waits_for), limit):
        names = ", ".join(missing[:_SHOWN]) + (" …" if len(missing) > _SHOWN else "")
        if missing and waited >= limit:
            raise PeersMissingError(
                f"{counted(len(missing), 'peer')} did not start within {limit} s "
                f"(spec.runPolicy.startDeadlineSeconds): {names}",
                "kubectl describe pod NAME, the part before the first dot, says why",
            )
        if missing and waited - said > SAY_SECONDS:
            say(f"waiting for the names of {counted(len(missing), 'peer')}: {names}")
            said = waited
        if env.start_seconds is not None and said >= 0:
            missing_are([host.partition(".")[0] for host in missing])
