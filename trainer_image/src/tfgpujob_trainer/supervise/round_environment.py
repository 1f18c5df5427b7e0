"""The environment of a training process in a round of its gang. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfgpujob_contract.variables import Variable
from tfgpujob_trainer.contract import environment
from tfgpujob_trainer.contract.resize import resized, tasks
from tfgpujob_trainer.supervise.commands import Start


def in_round(own: Mapping[str, str], now: Start, processes: int, restarts: int | None) -> dict[str, str]:
    """Derived from the pod's own, which is that of round 0. `processes`: in each pod; `restarts`: of all pods, if they
    are not the round's."""
    told = dict(own)
    if now.round:
        times = now.restarts if restarts is None else restarts
        told |= {environment.ROUND: str(now.round), environment.IN_PLACE_RESTARTS: str(times)}
    if now.workers is not None:
        told["TF_CONFIG"] = resized(own["TF_CONFIG"], now.workers, processes, now.without)
        told[environment.WITHOUT] = ",".join(str(task) for task in tasks(now.without, processes))
        # TF_CONFIG's index no longer identifies the pod.
        told[Variable.REPLICA_INDEX] = str(environment.read(own).index)
    return told
